"""How long those wait for a refusal who have had many: it costs the daemon work, and others time.

Each address has a bucket of refusals at once, which fills up again with time. One whose bucket is
empty is answered when there is room, or after LONGEST: a client that asks again only when it has
heard the answer, and there are few that do not, is slowed down to that. Who may, never waits.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

AT_ONCE: Final = 200
"""So many refusals of one address are answered at once."""
PER_SECOND: Final = 20.0
LONGEST: Final = 5.0
"""In seconds."""
MOST_WAITING: Final = 2000
"""If so many refusals wait already, others are answered at once: each keeps some memory."""

_MOST_REMEMBERED = 4096


class RefusalPace:
    """The refusals of all addresses. Belongs to the event loop."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        # For each address, when its bucket is full again.
        self._full_at: OrderedDict[str, float] = OrderedDict()
        self.waiting = 0
        """How many refusals wait now; the holder of each counts it."""

    def delay(self, peer: str) -> float:
        """Count a refusal of a peer, as gRPC names it, and return how many seconds it waits."""
        address, now = peer.rpartition(":")[0], self._clock()
        full_at = max(self._full_at.pop(address, now), now) + 1 / PER_SECOND
        delay = full_at - now - AT_ONCE / PER_SECOND
        # A flood of those that do not wait for the answer does not close the door for long.
        self._full_at[address] = min(full_at, now + AT_ONCE / PER_SECOND + LONGEST)
        if len(self._full_at) > _MOST_REMEMBERED:
            self._full_at.popitem(last=False)
        if self.waiting >= MOST_WAITING:
            return 0.0
        return min(max(delay, 0.0), LONGEST)
