"""Delays for refusals to callers that have had many: refusals cost the daemon time.

Each address has a token bucket of immediate refusals, which refills with time. If the bucket is
empty, the refusal is sent when it has refilled, or after LONGEST: that slows down a client that
asks again only after a reply, as nearly all do. Permitted requests never wait.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

AT_ONCE: Final = 200
"""How many refusals of one address are sent immediately."""
PER_SECOND: Final = 20.0
LONGEST: Final = 5.0
"""The longest delay, in seconds."""
MOST_DELAYED: Final = 2000
"""If so many refusals are waiting, others are sent immediately, because each takes memory."""

_MOST_REMEMBERED = 4096


class RefusalPace:
    """The refusals of all addresses. For use in the event loop only."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        # By address, when its bucket will be full again.
        self._full_at: OrderedDict[str, float] = OrderedDict()
        self.waiting = 0
        """How many refusals are waiting; callers of ``delay`` count theirs."""

    def delay(self, peer: str) -> float:
        """Count a refusal of a peer, as gRPC names it; return how many seconds to delay it."""
        address, now = peer.rpartition(":")[0], self._clock()
        full_at = max(self._full_at.pop(address, now), now) + 1 / PER_SECOND
        delay = full_at - now - AT_ONCE / PER_SECOND
        # A flood from clients that do not wait for replies does not lock the address out for long.
        self._full_at[address] = min(full_at, now + AT_ONCE / PER_SECOND + LONGEST)
        if len(self._full_at) > _MOST_REMEMBERED:
            self._full_at.popitem(last=False)
        if self.waiting >= MOST_DELAYED:
            return 0.0
        return min(max(delay, 0.0), LONGEST)
