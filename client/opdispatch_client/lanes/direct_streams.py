"""A session's gRPC streams to interpreters, opened in the background when a route leads there.

It can take long to find that a port is unreachable, so calls go through the daemon until the
stream is open.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Hashable
from typing import Generic, Protocol, TypeVar

import grpc

from opdispatch_client.endpoint import Endpoint
from opdispatch_client.lanes.direct_way import (
    DirectWay,
    InterpreterLane,
    RelayedWay,
    choose_again,
    choose_way,
)
from opdispatch_client.lanes.routes import DirectRoute, Routes
from opdispatch_wire.credentials import shown_ticket
from opdispatch_wire.lanes.blocking_stream import BlockingStream
from opdispatch_wire.lanes.lane_messages import LaneClosedError, NotAdmittedError
from opdispatch_wire.v1 import execution_pb2

LOG = logging.getLogger("opdispatch.client")

# Seconds before an unreachable interpreter is tried again.
_UNREACHABLE_LASTS = 60.0
# Seconds before one that refused the ticket is tried again, with a new ticket from the daemon.
_REFUSAL_LASTS = 1.0


class InterpreterStream(InterpreterLane, Protocol):
    """Base of the blocking and the asyncio stream to an interpreter."""

    def close(self) -> None:
        """End all calls with LaneClosedError. Idempotent."""


S = TypeVar("S", bound=InterpreterStream)


class DirectStreams(ABC, Generic[S]):
    """The streams of one session, by interpreter. Thread-safe.

    ``_mutex`` protects all fields. ``_streams`` has the open streams. ``_retry_at`` has the time of
    the next attempt for interpreters without one, which is infinite during an attempt.
    """

    def __init__(self, endpoint: Endpoint, routes: Routes) -> None:
        self._endpoint = endpoint
        self._routes = routes
        self._mutex = threading.Lock()
        self._streams: dict[int, S] = {}
        self._retry_at: dict[int, float] = {}
        self._is_closed = False

    def find(self, shape: Hashable, limit: int) -> DirectWay[S] | RelayedWay | None:
        """Return the way for a call of that shape, to the interpreter with our fewest calls.

        None if no stream is open; the daemon then chooses. New streams take messages of at most
        ``limit`` bytes.
        """
        route = self._routes.find(shape)
        if route is None:
            return None
        streams = [self._stream_to(target, route, limit) for target in route.targets]
        if not route.within_reach:
            self._routes.postpone(shape)
        return choose_way(route, streams, self._routes.relayed)

    def find_again(self, way: DirectWay[S], shape: Hashable) -> DirectWay[S] | None:
        """Return the way of a call like ``DirectLanes.find_again``."""
        return choose_again(self._routes, way, shape, self._streams)

    def prepare(self, shape: Hashable, limit: int) -> None:
        """Begin to open streams to the targets of the route for that shape."""
        self.find(shape, limit)

    def close(self) -> None:
        """End all calls with LaneClosedError. Idempotent."""
        with self._mutex:
            self._is_closed = True
            streams, self._streams = self._streams, {}
        for stream in streams.values():
            self._end(stream)

    @abstractmethod
    def _begin_opening(self, target: execution_pb2.RouteTarget, limit: int) -> None:
        """Begin to open a stream in another thread or task, which calls ``_opened`` at the end."""

    @abstractmethod
    def _end(self, stream: S) -> None:
        """Close a stream and its channel."""

    def _stream_to(
        self, target: execution_pb2.RouteTarget, route: DirectRoute, limit: int
    ) -> S | None:
        """Return the open stream to a target, or begin to open one.

        None if the daemon has to relay calls there, temporarily or until the route changes.
        """
        session = target.session
        with self._mutex:
            stream = self._streams.get(session)
            is_open = stream is not None and not stream.is_closed
            if is_open or session not in route.within_reach:
                return stream
            if self._is_closed:
                return None
            self._streams.pop(session, None)
            retry_at = self._retry_at.get(session, 0.0)
            now = time.monotonic()
            is_due = stream is None and bool(target.ports) and now >= retry_at
            is_stale = is_due and now >= route.tickets_until
            if is_due and not is_stale:
                # Set under the mutex, before the attempt begins below without it, so that no
                # second attempt begins.
                self._retry_at[session] = math.inf
        if stream is not None:
            self._end(stream)
        if is_stale:
            self._routes.forget(route.epoch)  # the next call asks for a new route and tickets
        elif is_due:
            self._begin_opening(target, limit)
        elif retry_at != math.inf:
            route.without(session)  # it has gone, or is out of reach
        return None

    def _opened(
        self, target: execution_pb2.RouteTarget, stream: S | None, *, is_refused: bool = False
    ) -> None:
        """Store the opened stream; None means that the interpreter could not be reached."""
        session, now = target.session, time.monotonic()
        with self._mutex:
            # Drop entries of past interpreters, whose session numbers never recur.
            self._retry_at = {s: at for s, at in self._retry_at.items() if at > now}
            over = [self._streams.pop(s) for s, each in [*self._streams.items()] if each.is_closed]
            del self._retry_at[session]
            if stream is None:
                pause = _REFUSAL_LASTS if is_refused else _UNREACHABLE_LASTS
                self._retry_at[session] = now + pause
            elif self._is_closed:
                over.append(stream)
            else:
                self._streams[session] = stream
        for each in over:
            self._end(each)
        verb = "cannot go" if stream is None else "go"
        LOG.debug("calls %s to interpreter %s directly", verb, target.interpreter)


class BlockingDirectStreams(DirectStreams[BlockingStream]):
    """Streams for the threads of a blocking session. Each is opened in a separate thread."""

    def __init__(self, endpoint: Endpoint, routes: Routes) -> None:
        super().__init__(endpoint, routes)
        self._channels: dict[BlockingStream, grpc.Channel] = {}

    def _begin_opening(self, target: execution_pb2.RouteTarget, limit: int) -> None:
        opening = threading.Thread(
            target=self._open, args=(target, limit), name="direct-stream", daemon=True
        )
        try:
            opening.start()
        except RuntimeError:  # no thread: the system's limit is reached
            self._opened(target, None)

    def _open(self, target: execution_pb2.RouteTarget, limit: int) -> None:
        found, is_refused = None, False
        try:
            found = self._find_open(target, limit)
        except NotAdmittedError:
            is_refused = True
        finally:  # whatever went wrong: otherwise the interpreter would never be tried again
            self._opened(target, found, is_refused=is_refused)

    def _find_open(self, target: execution_pb2.RouteTarget, limit: int) -> BlockingStream | None:
        """Open a stream to the interpreter; return None if it cannot be reached.

        Raises NotAdmittedError if it refuses the ticket.
        """
        refusal: NotAdmittedError | None = None
        for port in target.ports:
            channel = self._endpoint.interpreter_channel(port)
            try:
                stream = BlockingStream.open(
                    channel, limit, authorization=shown_ticket(target.ticket)
                )
            except LaneClosedError as error:
                channel.close()
                refusal = error if isinstance(error, NotAdmittedError) else refusal
                continue
            self._channels[stream] = channel
            if stream.peer.session == target.session:
                return stream
            self._end(stream)  # an interpreter of another daemon listens at this port
        if refusal is not None:
            raise refusal
        return None

    def _end(self, stream: BlockingStream) -> None:
        stream.close()
        self._channels.pop(stream).close()
