"""Decide whether a call whose interpreter has died is retried, and whether alone.

An operator that writes nothing may run twice, unless its caller forbids it. A call that brought its
interpreter down is not retried: it would bring down the next one, too. A call that may have done so
is retried at most once, alone. Other calls are retried up to a limit.
"""

from __future__ import annotations

from dataclasses import dataclass

from opdispatch_wire.errors import InterpreterDiedError
from opdispatch_wire.v1 import execution_pb2

DEATHS_OF_OTHERS = 10
"""The most retries of a call after deaths that it is known not to have caused."""


@dataclass(slots=True)
class Retries:
    """The runs of one call so far."""

    deaths: int = 0
    was_suspect: bool = False
    """Whether it may have brought down an interpreter: its next run is alone, and the last one."""

    def may_run_again(self, error: InterpreterDiedError, *, is_harmless: bool) -> bool:
        """Return whether the call is retried after its interpreter died; call once for each death.

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
    """Return whether running a call twice is harmless and its caller does not forbid it."""
    return (request.retry or not request.HasField("retry")) and not writes
