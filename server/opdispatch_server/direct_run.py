"""One call that a client has sent to an interpreter directly, from its coming to its reply."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from opdispatch_server.nested_time import NestedTime

ATTENTION = 1.0
"""Seconds for which an interpreter takes direct calls without hearing that it may.

See Note [Direct calls and the registry] in ``worker.incoming.direct_calls``.
"""


class DirectRun:
    """``began`` is a time of ``time.monotonic``, 0 while the call waits for its turn."""

    __slots__ = (
        "began",
        "id",
        "is_reported",
        "lane",
        "load_id",
        "nested_calls",
        "operator",
        "values",
    )

    def __init__(
        self, operator: str, load_id: int, lane: int, number: int, values: Sequence[Any] = ()
    ) -> None:
        self.operator = operator
        self.load_id = load_id
        self.lane = lane
        self.id = number
        self.nested_calls = NestedTime()
        self.began = 0.0
        """When its kernel began, by ``time.monotonic``; 0: it has not yet."""
        self.is_reported = False
        """The daemon has been told that it takes too long."""
        self.values = values
        """Remote ones that it will use: see ``ValueStore.pin``."""

    def is_overdue(self, timeout: float) -> bool:
        """Return whether its kernel has run for longer, without the calls that it makes."""
        return (
            self.began > 0
            and not self.nested_calls.is_running
            and self.nested_calls.own_seconds(self.began) > timeout
        )
