"""The routes that a session knows: which interpreters run which calls. No I/O."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Hashable
from typing import TypeVar

from opdispatch_wire.errors import QueueFullError, RefusedError
from opdispatch_wire.status import error_from_status
from opdispatch_wire.v1 import execution_pb2

V = TypeVar("V")

MOST_ROUTES = 1024
"""How many a session keeps; the oldest goes first."""

# How long the daemon is not asked again for a route that it did not give, in seconds.
_REFUSAL_LASTS = 1.0


class DirectRoute:
    """Where calls of one shape may go. ``targets`` are those that have not failed so far."""

    __slots__ = ("_turns", "epoch", "kernel", "operator", "targets")

    def __init__(self, message: execution_pb2.Route) -> None:
        self.epoch = message.epoch
        self.operator = message.operator
        self.kernel = message.kernel
        self.targets = tuple(message.targets)
        self._turns = itertools.count()

    def next_turn(self) -> int:
        """Another number for each call, one after the other."""
        return next(self._turns)

    def direct(self, request: execution_pb2.CallRequest) -> None:
        """Makes a request for the daemon one for an interpreter."""
        request.operator = self.operator
        request.kernel.CopyFrom(self.kernel)
        request.route_epoch = self.epoch

    def without(self, session: int) -> None:
        """An interpreter has gone, or cannot be reached."""
        self.targets = tuple(target for target in self.targets if target.session != session)


class Routes:
    """By the shapes of calls; see ``call_shape``. Any thread may ask.

    ``_mutex`` is held for changes; whoever reads sees the table before or after one.
    """

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._routes: dict[Hashable, DirectRoute] = {}
        self._refused_until: dict[Hashable, float] = {}

    def find(self, shape: Hashable) -> DirectRoute | None:
        """The route of calls of that shape, if one is known."""
        route = self._routes.get(shape)
        return route if route is not None and route.targets else None

    def wants(self, shape: Hashable) -> bool:
        """Whether the daemon is to be asked for a route."""
        if self.find(shape) is not None:
            return False  # it is a matter of time
        return time.monotonic() >= self._refused_until.get(shape, 0.0)

    def postpone(self, shape: Hashable) -> None:
        """The daemon's answer was of no use: it is asked later."""
        with self._mutex:
            _put(self._refused_until, shape, time.monotonic() + _REFUSAL_LASTS)

    def learn(self, shape: Hashable, reply: execution_pb2.CallReply) -> None:
        """Takes over the daemon's answer."""
        with self._mutex:
            if reply.HasField("route") and reply.route.targets:
                self._refused_until.pop(shape, None)
                _put(self._routes, shape, DirectRoute(reply.route))
            else:
                _put(self._refused_until, shape, time.monotonic() + _REFUSAL_LASTS)

    def forget(self, epoch: int) -> None:
        """The registry has changed since."""
        with self._mutex:
            kept = {s: route for s, route in self._routes.items() if route.epoch != epoch}
            self._routes = kept


def _put(table: dict[Hashable, V], shape: Hashable, value: V) -> None:
    table.pop(shape, None)
    if len(table) >= MOST_ROUTES:
        del table[next(iter(table))]
    table[shape] = value


def find_refusal(reply: execution_pb2.CallReply) -> RefusedError | None:
    """Why an interpreter wants the daemon to be asked, if it does: the call has not run."""
    if not reply.HasField("error"):
        return None
    error = error_from_status(reply.error)
    if isinstance(error, RefusedError) and not isinstance(error, QueueFullError):
        return error
    return None
