"""Rate limiting of TLS handshakes at a gRPC port: each takes a millisecond of CPU time.

gRPC cannot refuse a connection before its handshake. If too many begin, the addresses that they
come from are *shut out* of the port for a while (``address_filter``), and so is an address that
holds most of the port's connections; all others can connect meanwhile.
"""

from __future__ import annotations

import functools
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Set
from typing import Final

from opdispatch_server.log_fields import Event, fields
from opdispatch_server.serving.address_filter import EVERYONE, MOST_NETWORKS, shut_out
from opdispatch_server.serving.connection_limits import ACCEPT_QUEUE
from opdispatch_server.serving.port_connections import Connection, Network, port_connections

AT_ONCE: Final = 1000
"""Handshakes that may begin at once: the bucket's capacity."""
PER_SECOND: Final = 100.0
"""Handshakes that may begin per second once the bucket is empty."""
SHORTEST, LONGEST = 0.25, 10.0
"""Minimum and maximum seconds for which a flooding address is shut out."""

HANDSHAKES_PER_CHECK: Final = 50
"""Number of handshakes between two examinations of the port's connections."""
FLOOD_SHARE: Final = 1 / 8
"""Share of the latest handshakes from which an address counts as flooding the port."""
MOST_PLACES: Final = 3 / 4
"""Share of the port's connections from which an address has too many."""

LOG = logging.getLogger("opdispatch.access")


class HandshakePace:
    """The handshakes of one port, once its number is known. ``_lock`` guards all fields."""

    def __init__(
        self,
        places: int,
        clock: Callable[[], float] = time.monotonic,
        later: Callable[[float, Callable[[], float | None]], object] | None = None,
    ) -> None:
        """Limit a port of at most ``places`` connections.

        ``later(seconds, function)`` schedules a function, which returns the seconds until its next
        call, or None.
        """
        self.port: int | None = None
        self._most = MOST_PLACES * places
        self._clock = clock
        self._later = later or _call_later
        self._lock = threading.Lock()
        # When the bucket will be full again.
        self._full_at = clock()
        self._begun = 0
        self._seen: Set[Connection] = frozenset()
        # When to readmit each network that is shut out.
        self._shut: dict[Network, float] = {}
        # Until when each network was last shut out, and for how many seconds; only the latest ones.
        self._lasted: dict[Network, tuple[float, float]] = {}

    def count(self) -> None:
        """Count a beginning handshake, and shut out flooding addresses. Any thread may call it."""
        with self._lock:
            now = self._clock()
            full_at = max(self._full_at, now) + 1 / PER_SECOND
            # However many begin meanwhile, no address is shut out for longer than that.
            self._full_at = min(full_at, now + AT_ONCE / PER_SECOND + LONGEST)
            self._begun += 1
            if self._begun < HANDSHAKES_PER_CHECK or self.port is None:
                return
            self._begun = 0
            ahead = self._full_at - now - AT_ONCE / PER_SECOND
            self._lasted = {
                each: (until, seconds)
                for each, (until, seconds) in self._lasted.items()
                if now < until + seconds
            }
            floods: Set[Network]
            floods = self._look(self.port, ahead > 1 / PER_SECOND) - self._shut.keys()
            if len(floods | self._shut.keys()) > MOST_NETWORKS:
                floods = EVERYONE - self._shut.keys()
            if not floods:
                return
            seconds = {each: self._seconds(each, max(ahead, SHORTEST)) for each in floods}
            try:
                # Scheduled first, so that networks are readmitted whatever fails below.
                for each in floods:
                    self._later(seconds[each], functools.partial(self._let_in, each))
                shut_out(self.port, self._shut.keys() | floods)
            except (OSError, RuntimeError):  # there is no descriptor left, or no thread
                return  # the next look tries again
            self._shut |= {each: now + seconds[each] for each in floods}
            self._lasted |= {each: (now + seconds[each], seconds[each]) for each in floods}
            self._begun = -ACCEPT_QUEUE  # those waiting in the accept queue belong to the flood
        LOG.warning(
            "too many connections begin at port %d: new ones of %s wait",
            self.port,
            "all addresses" if floods >= EVERYONE else ", ".join(sorted(map(str, floods))),
            extra=fields(Event.CONNECTION_REFUSED),
        )

    def _look(self, port: int, has_flood: bool) -> Set[Network]:
        """Return the networks to shut out, by the connections that exist now."""
        seen = _connections(port)
        since, self._seen = seen - self._seen, seen
        floods = _have(seen, self._most)
        if has_flood:
            floods |= _have(since, FLOOD_SHARE * HANDSHAKES_PER_CHECK)
            # Connections that have ended are not listed: then assume the latest flooding networks.
            floods = floods or self._lasted.keys() - self._shut or EVERYONE
        return floods

    def _seconds(self, network: Network, seconds: float) -> float:
        """Return for how many seconds, at least ``seconds``, to shut a network out.

        Twice as long as the last time, if that was recent.
        """
        if network in EVERYONE or network not in self._lasted:
            return seconds
        return max(seconds, min(2 * self._lasted[network][1], LONGEST))

    def _let_in(self, network: Network) -> float | None:
        """Readmit a network; return the seconds until the next attempt if it cannot be readmitted.

        Return None if it has been, or if a later call is scheduled.
        """
        assert self.port is not None, "it was shut out"
        with self._lock:
            # If shutting it out failed at first and succeeded later, the later one scheduled its
            # own readmission.
            until = self._shut.get(network)
            if until is None or self._clock() < until:
                return None
            if network in _have(_connections(self.port), self._most):
                return SHORTEST
            try:
                shut_out(self.port, self._shut.keys() - {network})
            except OSError:  # there is no descriptor left for finding its sockets
                return SHORTEST
            del self._shut[network]
            return None


def _connections(port: int) -> Set[Connection]:
    """Return the connections of a port; none if the system does not list them."""
    try:
        return frozenset(port_connections(port))
    except OSError:
        return frozenset()


def _have(connections: Iterable[Connection], least: float) -> Set[Network]:
    """Return the networks with at least ``least`` of these connections."""
    counts = Counter(each.network for each in connections)
    return {network for network, count in counts.items() if count >= least}


def _call_later(seconds: float, function: Callable[[], float | None]) -> None:
    """Call a function after ``seconds`` in a new thread, and again for as long as it asks for it.

    Further calls need no new thread. Raises RuntimeError if no thread can be started.
    """

    def run() -> None:
        left: float | None = seconds
        while left is not None:
            time.sleep(left)
            left = function()

    threading.Thread(target=run, daemon=True).start()
