"""One call that a client sent to an interpreter directly, from its arrival to its reply."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from opdispatch_server.nested_time import NestedTime

ATTENTION = 1.0
"""How long an interpreter accepts direct calls without a confirmation, in seconds.

See Note [Direct calls and the registry] in ``worker.incoming.direct_calls``.
"""


class DirectRun:
    """One direct call. ``began`` is a time of ``time.monotonic``, 0 while the call waits."""

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
        """When its kernel began, by ``time.monotonic``; 0: not yet."""
        self.is_reported = False
        """Whether the daemon has been notified that it takes too long."""
        self.values = values
        """The remote values that it will use: see ``ValueStore.pin``."""

    def is_overdue(self, timeout: float) -> bool:
        """Return whether its kernel has run longer than ``timeout``, without its nested calls."""
        return (
            self.began > 0
            and not self.nested_calls.is_running
            and self.nested_calls.own_seconds(self.began) > timeout
        )
