"""How the calls of a blocking session travel: the choice of a lane, and calls on it."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Protocol, TypeVar

import grpc

from opdispatch.errors import OpdispatchError
from opdispatch_client.call_future import Callback, CallFuture
from opdispatch_client.endpoint import Endpoint
from opdispatch_client.listings import ServerInfo
from opdispatch_client.rpcs import Rpc
from opdispatch_client.unary_calls import UnaryCalls
from opdispatch_wire.blocking_lane import BlockingLane
from opdispatch_wire.blocking_stream import BlockingStream
from opdispatch_wire.lane_messages import LaneClosedError
from opdispatch_wire.pending_calls import OnDone
from opdispatch_wire.status import late_answer_error, lost_connection_error
from opdispatch_wire.v1 import execution_pb2

LOG = logging.getLogger("opdispatch.client")

T = TypeVar("T")

SUBMITTED_AT_MOST = 1024
"""How many submitted calls of a session are under way before the next one has to wait."""


class CallLane(Protocol):
    """A way for calls. Each has an id of its own; see ``BlockingLane`` for what is raised."""

    @property
    def is_closed(self) -> bool:
        """Whether calls have no chance any more."""

    def call(
        self, request: execution_pb2.CallRequest, timeout: float | None, what: str
    ) -> execution_pb2.CallReply:
        """Sends a call and waits for the reply."""

    def begin(
        self, request: execution_pb2.CallRequest, timeout: float | None, what: str, on_done: OnDone
    ) -> int:
        """Begins a call, which is sent by ``flush`` at the latest; returns its id."""

    def flush(self) -> None:
        """Sends what has begun."""

    def cancel(self, number: int) -> None:
        """Nobody waits any more for a call that has begun."""

    def close(self) -> None:
        """Ends all calls with LaneClosedError. Idempotent."""


class BlockingCalls:
    """The calls of one session. Any number of threads may make them.

    ``introduce`` asks the daemon again who it is, and returns that and the message limit.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        channel: grpc.Channel,
        introduce: Callable[[], tuple[ServerInfo, int]],
    ) -> None:
        self._endpoint = endpoint
        self._channel = channel
        self._introduce = introduce
        self._is_closed = False
        self._lane: CallLane
        self.lane = "grpc"
        """The lane's name."""
        self._opening = threading.Lock()  # a lane that broke is opened again by one thread
        self._slots = threading.BoundedSemaphore(SUBMITTED_AT_MOST)
        self._callbacks = ThreadPoolExecutor(1, "call-callbacks")

    def open(self, info: ServerInfo, limit: int) -> None:
        """Chooses a lane for messages of at most ``limit`` bytes.

        Raises DaemonUnavailableError if there is none of the kind that the endpoint insists on.
        """
        self.lane, self._lane = self._choose(info.lane, limit)

    def close(self) -> None:
        """Ends all calls; no others can be made. Idempotent."""
        self._is_closed = True
        if hasattr(self, "_lane"):
            self._lane.close()
        self._callbacks.shutdown(wait=False)

    def call(self, rpc: Rpc[T]) -> T:
        """Makes a call and waits for its result. Raises what went wrong."""
        lane = self._open_lane()
        request, timeout = self._request_of(rpc)
        try:
            reply = lane.call(request, timeout, rpc.what)
        except (TimeoutError, LaneClosedError) as error:
            raise self._failure(error) from None
        return rpc.read(reply)

    def submit(self, make: Callable[[], Rpc[Any]], *, flush: bool = True) -> Future[Any]:
        """Begins the call that ``make`` gives; whatever goes wrong is the future's exception.

        Waits while SUBMITTED_AT_MOST calls are under way. What is not flushed may stay here.
        """
        if not self._slots.acquire(blocking=False):
            self.flush()
            self._slots.acquire()
        future = CallFuture(self._run_callback, self._slots.release)
        try:
            self._begin(make(), future)
        except Exception as error:
            future.fail(self._failure(error))
        if flush:
            self.flush()
        return future

    def flush(self) -> None:
        """Sends what has been submitted."""
        self._lane.flush()

    def _begin(self, rpc: Rpc[Any], future: CallFuture) -> None:
        def on_done(result: execution_pb2.CallReply | Exception) -> None:
            try:
                if isinstance(result, Exception):
                    raise self._failure(result)
                value = rpc.read(result)
            except BaseException as error:  # the future's, whatever it is
                future.fail(error)
            else:
                future.succeed(value)

        lane = self._open_lane()
        request, timeout = self._request_of(rpc)
        number = lane.begin(request, timeout, rpc.what, on_done)
        future.cancel_call = lambda: lane.cancel(number)

    def _request_of(self, rpc: Rpc[Any]) -> tuple[execution_pb2.CallRequest, float | None]:
        request, timeout = rpc.request, self._endpoint.timeout
        assert isinstance(request, execution_pb2.CallRequest), "it comes from rpcs.call"
        if timeout is not None:
            request.timeout = timeout
        return request, timeout

    def _failure(self, error: Exception) -> Exception:
        """What the caller is told of an error of the lane."""
        if isinstance(error, TimeoutError):
            return late_answer_error(self._endpoint.address)
        if isinstance(error, LaneClosedError):
            if self._is_closed:
                return self._endpoint.closed_error()
            return lost_connection_error(self._endpoint.address, str(error))
        return error

    def _run_callback(self, callback: Callback, future: CallFuture) -> None:
        with contextlib.suppress(RuntimeError):  # the session is closed
            self._callbacks.submit(_run_logged, callback, future)
            return
        _run_logged(callback, future)

    # -- the choice of a lane -------------------------------------------------------------------

    def _open_lane(self) -> CallLane:
        """The lane, opened again if it broke. Raises DaemonUnavailableError."""
        if self._is_closed:
            raise self._endpoint.closed_error()
        lane = self._lane
        if not lane.is_closed:
            return lane
        with self._opening:
            if self._lane is lane:
                self.open(*self._introduce())
            return self._lane

    def _choose(self, path: str, limit: int) -> tuple[str, CallLane]:
        endpoint, wanted = self._endpoint, self._endpoint.lane
        if wanted in ("auto", "local"):
            why = endpoint.why_no_lane(path)
            if not why:
                try:
                    return "local", BlockingLane.connect(path, limit)
                except (OSError, OpdispatchError) as error:
                    why = str(error)
            if wanted == "local":
                raise endpoint.no_lane_error(why)
        if wanted in ("auto", "stream"):
            try:
                return "stream", BlockingStream.open(self._channel, limit)
            except LaneClosedError as error:
                if wanted == "stream":
                    raise endpoint.no_stream_error(str(error)) from None
        return "grpc", UnaryCalls(self._channel, endpoint.address, limit)


def _run_logged(callback: Callback, future: CallFuture) -> None:
    try:
        callback(future)
    except Exception:  # as any future of concurrent.futures does
        LOG.exception("exception calling callback for %r", future)
