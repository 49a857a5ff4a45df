"""The peer at the other end of a gRPC stream of calls."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

SESSION_KEY = "opdispatch-session"
LANE_KEY = "opdispatch-lane"


class StreamLane(NamedTuple):
    """``session`` is the daemon's number for an interpreter, 0 if it is none that takes calls of
    clients; ``number`` is what it calls the stream.
    """

    session: int = 0
    number: int = 0

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        """Metadata for the calling side, before the first reply."""
        return ((SESSION_KEY, str(self.session)), (LANE_KEY, str(self.number)))

    @classmethod
    def told(cls, metadata: Iterable[tuple[str, str | bytes]] | None) -> StreamLane:
        """Read the session and the lane's number from a call's metadata; 0 where absent."""
        said = {
            key: int(value)
            for key, value in metadata or ()
            if isinstance(value, str) and value.isdecimal() and len(value) <= 20
        }
        return cls(said.get(SESSION_KEY, 0), said.get(LANE_KEY, 0))
