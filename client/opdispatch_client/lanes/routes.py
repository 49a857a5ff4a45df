"""The routes that a session knows: the interpreters that run calls of each shape. No I/O."""

from __future__ import annotations

import math
import random
import threading
import time
from collections.abc import Hashable
from typing import TypeVar

from opdispatch_client.lanes.relayed_calls import RelayedCalls
from opdispatch_wire.errors import QueueFullError, RefusedError
from opdispatch_wire.status import error_from_status
from opdispatch_wire.v1 import execution_pb2

V = TypeVar("V")

MOST_ROUTES = 1024
"""Most routes that a session keeps; beyond that, the oldest is dropped."""

# Number of consecutive calls that waited after which a route counts as contended. More than one,
# since a call may also wait for an earlier call of its own session.
_WAITS_OF_CONTENTION = 3

# Seconds before the daemon is asked again for a route that it did not give.
_REFUSAL_LASTS = 1.0


class DirectRoute:
    """The interpreters that calls of one shape may go to: ``targets``, all holders of the kernel.

    ``within_reach`` has the session numbers of those that can be called directly, as far as is
    known. It is replaced and never changed in place, so that any thread may read it.
    """

    __slots__ = (
        "_turn",
        "epoch",
        "is_current",
        "is_repeatable",
        "kernel",
        "operator",
        "targets",
        "tickets_until",
        "waits",
        "within_reach",
    )

    def __init__(self, message: execution_pb2.Route) -> None:
        self.epoch = message.epoch
        self.operator = message.operator
        self.kernel = message.kernel
        self.is_repeatable = message.is_repeatable
        self.targets = tuple(message.targets)
        self.within_reach = frozenset(target.session for target in self.targets)
        self.tickets_until = (
            time.monotonic() + message.ticket_seconds if message.ticket_seconds else math.inf
        )
        """Expiry of the tickets for opening streams, by ``time.monotonic``."""
        self.waits = 0
        """Number of the most recent direct calls in a row that waited for a busy interpreter."""
        self.is_current = True
        """Whether ``Routes`` still has this route; once dropped, it never returns."""
        # Not all sessions begin with the same target.
        self._turn = random.randrange(len(self.targets) or 1)

    @property
    def is_contended(self) -> bool:
        """Return whether other sessions seem to keep the interpreters in reach busy."""
        return self.waits >= _WAITS_OF_CONTENTION

    def note_wait(self, has_waited: bool) -> None:
        """Record whether a direct call had to wait for others."""
        self.waits = self.waits + 1 if has_waited else 0

    def next_turn(self) -> int:
        """Return the next number of a round robin. Racing threads may get the same one."""
        self._turn += 1
        return self._turn

    def direct(self, request: execution_pb2.CallRequest) -> None:
        """Turn a request to the daemon into one to an interpreter."""
        request.operator = self.operator
        request.kernel.CopyFrom(self.kernel)
        request.route_epoch = self.epoch

    def without(self, session: int) -> None:
        """Remove an interpreter from those in reach, so that the daemon relays its calls."""
        self.within_reach -= {session}


class Routes:
    """The routes of one session, by the shapes of calls: see ``call_shape``. Thread-safe.

    ``_mutex`` is held for changes. Readers take no lock: they see the table before or after one.
    """

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._routes: dict[Hashable, DirectRoute] = {}
        self._refused_until: dict[Hashable, float] = {}
        self.relayed = RelayedCalls()

    def find(self, shape: Hashable) -> DirectRoute | None:
        """Return the route for calls of that shape, if it has any interpreter in reach."""
        route = self._routes.get(shape)
        return route if route is not None and route.within_reach else None

    def wants(self, shape: Hashable) -> bool:
        """Return whether to ask the daemon for a route."""
        if self.find(shape) is not None:
            return False  # its lane is being opened
        return time.monotonic() >= self._refused_until.get(shape, 0.0)

    def postpone(self, shape: Hashable) -> None:
        """Request no route for that shape for a while, since the last one was unusable."""
        with self._mutex:
            _put(self._refused_until, shape, time.monotonic() + _REFUSAL_LASTS)

    def learn(self, shape: Hashable, reply: execution_pb2.CallReply, epoch: int = 0) -> None:
        """Store the route in the daemon's reply to a request with that ``route_epoch``.

        If the request had an epoch, a reply without a route means that no newer one exists.
        """
        with self._mutex:
            if reply.HasField("route") and reply.route.targets:
                self._refused_until.pop(shape, None)
                for gone in _put(self._routes, shape, DirectRoute(reply.route)):
                    gone.is_current = False
            elif not epoch:
                _put(self._refused_until, shape, time.monotonic() + _REFUSAL_LASTS)

    def refused(self, epoch: int, session: int) -> None:
        """Stop calling an interpreter directly by the routes of an epoch, as it has refused one.

        The routes may still hold for other interpreters. If the interpreter only did not know the
        epoch yet, the daemon returns the same route again.
        """
        with self._mutex:
            for route in self._routes.values():
                if route.epoch == epoch:
                    route.without(session)

    def drop(self, route: DirectRoute) -> None:
        """Drop one route; others of its epoch stay."""
        with self._mutex:
            self._routes = {s: each for s, each in self._routes.items() if each is not route}
            route.is_current = False

    def forget(self, epoch: int) -> None:
        """Drop all routes of an epoch, whose tickets have expired."""
        with self._mutex:
            kept = {s: route for s, route in self._routes.items() if route.epoch != epoch}
            for route in self._routes.values():
                route.is_current = route.epoch != epoch
            self._routes = kept


def _put(table: dict[Hashable, V], shape: Hashable, value: V) -> list[V]:
    """Insert a value; return the entries that it replaces or evicts."""
    gone = [table.pop(shape)] if shape in table else []
    if len(table) >= MOST_ROUTES:
        gone.append(table.pop(next(iter(table))))
    table[shape] = value
    return gone


def find_refusal(reply: execution_pb2.CallReply) -> RefusedError | None:
    """Return the refusal by which an interpreter sends a call to the daemon; None if it has run."""
    if not reply.HasField("error"):
        return None
    error = error_from_status(reply.error)
    if isinstance(error, RefusedError) and not isinstance(error, QueueFullError):
        return error
    return None
