"""The routes that a session knows: which interpreters run which calls. No I/O."""

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
"""How many a session keeps; the oldest goes first."""

# One call may meet the last step of the one before it.
_WAITS_OF_CONTENTION = 3

# How long the daemon is not asked again for a route that it did not give, in seconds.
_REFUSAL_LASTS = 1.0


class DirectRoute:
    """Where calls of one shape may go. ``targets`` are all holders of the kernel.

    ``within_reach`` has the session numbers of those that can be called directly, as far as is
    known; it is replaced, never changed, so that any thread may look.
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
        """Until when streams can be opened with what the route has, by ``time.monotonic``."""
        self.waits = 0
        """Of the last calls that went directly, so many had to wait there."""
        self.is_current = True
        """Whether ``Routes`` has it; it never comes back."""
        # Not all sessions begin with the same target.
        self._turn = random.randrange(len(self.targets) or 1)

    @property
    def is_contended(self) -> bool:
        """Return whether others seem to keep busy the interpreters that are called directly."""
        return self.waits >= _WAITS_OF_CONTENTION

    def note_wait(self, has_waited: bool) -> None:
        """Record whether a direct call had to wait for others."""
        self.waits = self.waits + 1 if has_waited else 0

    def next_turn(self) -> int:
        """Return another number for each call, most often one more than the last."""
        self._turn += 1
        return self._turn

    def direct(self, request: execution_pb2.CallRequest) -> None:
        """Turn a request for the daemon into one for an interpreter."""
        request.operator = self.operator
        request.kernel.CopyFrom(self.kernel)
        request.route_epoch = self.epoch

    def without(self, session: int) -> None:
        """Remove an interpreter that cannot be reached: the daemon relays its calls."""
        self.within_reach -= {session}


class Routes:
    """By the shapes of calls; see ``call_shape``. Any thread may ask.

    ``_mutex`` is held for changes; readers see the table before or after one.
    """

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._routes: dict[Hashable, DirectRoute] = {}
        self._refused_until: dict[Hashable, float] = {}
        self.relayed = RelayedCalls()

    def find(self, shape: Hashable) -> DirectRoute | None:
        """Return the route of calls of that shape, if one is known that leads anywhere directly."""
        route = self._routes.get(shape)
        return route if route is not None and route.within_reach else None

    def wants(self, shape: Hashable) -> bool:
        """Return whether the daemon is to be asked for a route."""
        if self.find(shape) is not None:
            return False  # it is a matter of time
        return time.monotonic() >= self._refused_until.get(shape, 0.0)

    def postpone(self, shape: Hashable) -> None:
        """Ask the daemon later: its answer was of no use."""
        with self._mutex:
            _put(self._refused_until, shape, time.monotonic() + _REFUSAL_LASTS)

    def learn(self, shape: Hashable, reply: execution_pb2.CallReply, epoch: int = 0) -> None:
        """Take over the daemon's answer to a request with that ``route_epoch``.

        To one with an epoch, an answer without a route means that there is none that is newer.
        """
        with self._mutex:
            if reply.HasField("route") and reply.route.targets:
                self._refused_until.pop(shape, None)
                for gone in _put(self._routes, shape, DirectRoute(reply.route)):
                    gone.is_current = False
            elif not epoch:
                _put(self._refused_until, shape, time.monotonic() + _REFUSAL_LASTS)

    def refused(self, epoch: int, session: int) -> None:
        """Call an interpreter no more by the routes of an epoch: it has refused one of them.

        They may hold for others. Where it was too early, the daemon gives the same route again.
        """
        with self._mutex:
            for route in self._routes.values():
                if route.epoch == epoch:
                    route.without(session)

    def drop(self, route: DirectRoute) -> None:
        """Drop one route, which others of its epoch outlive."""
        with self._mutex:
            self._routes = {s: each for s, each in self._routes.items() if each is not route}
            route.is_current = False

    def forget(self, epoch: int) -> None:
        """Drop the routes of an epoch: their tickets open no streams any more."""
        with self._mutex:
            kept = {s: route for s, route in self._routes.items() if route.epoch != epoch}
            for route in self._routes.values():
                route.is_current = route.epoch != epoch
            self._routes = kept


def _put(table: dict[Hashable, V], shape: Hashable, value: V) -> list[V]:
    """Put a value in, and return those that make room for it."""
    gone = [table.pop(shape)] if shape in table else []
    if len(table) >= MOST_ROUTES:
        gone.append(table.pop(next(iter(table))))
    table[shape] = value
    return gone


def find_refusal(reply: execution_pb2.CallReply) -> RefusedError | None:
    """Return why an interpreter wants the daemon to be asked, if it does: the call has not run."""
    if not reply.HasField("error"):
        return None
    error = error_from_status(reply.error)
    if isinstance(error, RefusedError) and not isinstance(error, QueueFullError):
        return error
    return None
