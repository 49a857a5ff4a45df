"""The quota of the values that one identity keeps, over all of its sessions."""

from __future__ import annotations

from collections.abc import Sized
from typing import Final, Protocol

from opdispatch_wire.errors import QueueFullError, RemoteLimitError

_RETRY_AFTER: Final = "1.000"


class SessionValues(Protocol):
    """The values of one session that count towards a quota."""

    @property
    def values(self) -> Sized:
        """All values of the session."""

    @property
    def bytes(self) -> int:
        """Their size in bytes."""


class ValueQuota:
    """The quota of one identity; None: unlimited. For use in the event loop only."""

    def __init__(self, identity: str, values: int | None, nbytes: int | None) -> None:
        self._identity = identity
        self._values = values
        self._bytes = nbytes
        self.holders: set[SessionValues] = set()
        """Its sessions that hold values, including closed ones that still have some."""

    def check_room(self, nbytes: int) -> None:
        """Raise QueueFullError if no further value, or not so many bytes, can be kept."""
        values, held = self._sums()
        is_full = self._values is not None and values >= self._values
        if is_full or (self._bytes is not None and (held + max(nbytes, 1) > self._bytes)):
            raise QueueFullError(
                f"{self._described(values, held)}; the call never started",
                hint="release some of them, and try again",
                started="no",
                retry_after=_RETRY_AFTER,
            )

    def check_results(self, values: int, nbytes: int) -> None:
        """Raise RemoteLimitError if these results of a call, which has run, cannot be kept."""
        before, held = self._sums()
        is_over = self._values is not None and before + values > self._values
        if is_over or (self._bytes is not None and held + nbytes > self._bytes):
            raise RemoteLimitError(
                f"{self._described(before, held)}, and has no room for {values} more of {nbytes} "
                "bytes",
                hint="release some of them",
                limit=str(self._values if is_over else self._bytes),
            )

    def _sums(self) -> tuple[int, int]:
        values = sum(len(holder.values) for holder in self.holders)
        return values, sum(holder.bytes for holder in self.holders)

    def _described(self, values: int, nbytes: int) -> str:
        most = [
            f"{limit} {what}"
            for limit, what in ((self._values, "values"), (self._bytes, "bytes"))
            if limit is not None
        ]
        return (
            f"{self._identity} keeps {values} remote values of {nbytes} bytes in all of its "
            f"sessions, and its quota is {' and '.join(most)}"
        )
