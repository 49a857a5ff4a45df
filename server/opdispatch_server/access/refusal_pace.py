"""Delay refusals to addresses that have had many, because each refusal costs the daemon time.

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
"""Capacity of an address's token bucket: refusals sent without delay."""
PER_SECOND: Final = 20.0
LONGEST: Final = 5.0
"""The longest delay, in seconds."""
MOST_DELAYED: Final = 2000
"""The most delayed refusals; beyond it they are sent immediately, because each takes memory."""

_MOST_REMEMBERED = 4096


class RefusalPace:
    """The refusals of all addresses. For use in the event loop only."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        # By address, when its bucket will be full again.
        self._full_at: OrderedDict[str, float] = OrderedDict()
        self.waiting = 0
        """Number of delayed refusals; callers of ``delay`` increment and decrement it."""

    def delay(self, peer: str) -> float:
        """Count a refusal of ``peer``, gRPC's name of it; return its delay in seconds."""
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
