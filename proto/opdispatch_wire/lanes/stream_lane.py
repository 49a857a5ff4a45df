"""The identity of the peer at the other end of a gRPC stream of calls."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

SESSION_KEY = "opdispatch-session"
LANE_KEY = "opdispatch-lane"


class StreamLane(NamedTuple):
    """A stream as the called side identifies it.

    ``session`` is the daemon's number for the interpreter, or 0 if the other side is not an
    interpreter that accepts direct calls. ``number`` is its number for the stream.
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
