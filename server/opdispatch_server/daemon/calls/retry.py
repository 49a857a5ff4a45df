"""Whether a call whose interpreter has died runs again, and how.

An operator that writes to nothing may run twice, unless its caller has something against it.
One that has brought its interpreter down does not: it would bring down the next one, too. One that
may have done so runs once more at most, and alone. One that has not, runs again until that is
hopeless.
"""

from __future__ import annotations

from dataclasses import dataclass

from opdispatch_wire.errors import InterpreterDiedError
from opdispatch_wire.v1 import execution_pb2

DEATHS_OF_OTHERS = 10
"""How often a call runs again of which it is known that it was not it."""


@dataclass(slots=True)
class Retries:
    """The runs of one call so far."""

    deaths: int = 0
    was_suspect: bool = False
    """It may have brought down an interpreter: its next run is the last one, and alone."""

    def may_run_again(self, error: InterpreterDiedError, *, is_harmless: bool) -> bool:
        """Return whether the call goes on after its interpreter has died; ask once a death.

        ``is_harmless``: see ``may_run_twice``.
        """
        if error.facts.get("started") == "no":
            return True
        self.deaths += 1
        if not is_harmless or self.was_suspect:
            return False
        suspect = error.facts.get("suspect")
        self.was_suspect = suspect is not None
        return suspect != "yes" and self.deaths <= DEATHS_OF_OTHERS


def may_run_twice(request: execution_pb2.CallRequest, *, writes: bool) -> bool:
    """Return whether it does no harm to run a call twice, and the caller has nothing against it."""
    return (request.retry or not request.HasField("retry")) and not writes
