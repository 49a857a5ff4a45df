"""A blocking session's lane to its daemon: the choice of it, and a new one when it breaks."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future

import grpc

from opdispatch_client.daemon_wait import DaemonWait
from opdispatch_client.endpoint import Endpoint
from opdispatch_client.lanes.lane_choice import UNUSABLE, LaneKind, kinds_to_try
from opdispatch_client.lanes.protocol import CallLane
from opdispatch_client.lanes.unary_calls import UnaryCalls
from opdispatch_client.listings import ServerInfo
from opdispatch_wire.channel import MAX_MESSAGE_BYTES_HIGHEST
from opdispatch_wire.errors import DaemonUnavailableError, RefusedError, copy_of_error
from opdispatch_wire.lanes.blocking_lane import BlockingLane
from opdispatch_wire.lanes.blocking_stream import BlockingStream


class DaemonLane:
    """The lane of one session. Any number of threads may use it.

    It is opened again, once the daemon is back: see Note [A daemon that restarts]. ``introduce``
    asks the daemon again who it is, and returns that and the message limit.
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
        self.name: LaneKind = "grpc"
        """Kind of the lane."""
        # Protects `_lane`, `_attempt` and `_is_closed` where they change: after `close` there is
        # no new lane and no attempt, and the one that takes an attempt away says how it ended.
        self._guard = threading.Lock()
        self._attempt: Future[CallLane] | None = None  # to open the lane again
        self._wait: DaemonWait | None = None  # of the attempt
        self._closing = threading.Event()
        # Those whose daemon is stopping, for as long as calls on them go on.
        self._left: set[CallLane] = set()

    @property
    def is_closed(self) -> bool:
        """Whether ``close`` was called."""
        return self._is_closed

    @property
    def max_message_bytes(self) -> int:
        """The longest request that the daemon takes, in bytes."""
        return self._lane.max_message_bytes

    def open(self, info: ServerInfo, limit: int) -> None:
        """Choose a lane for messages of at most ``limit`` bytes.

        Raises DaemonUnavailableError if there is none of the kind that the endpoint insists on.
        """
        self.name, self._lane = self._choose(info.lane, limit)

    def get(self, deadline: float | None) -> CallLane:
        """Return the lane, opened again if it broke.

        All who need it then wait for one attempt, and get the error of that if it fails; none
        waits longer than until ``deadline``, by ``time.monotonic``, unless no thread can be
        started. Raises TimeoutError, and what went wrong: DaemonUnavailableError, for one.
        """
        if self._is_closed:
            raise self._endpoint.closed_error()
        lane = self._lane
        if self._left:
            self._close_left(lane)
        if self.is_open:
            return lane
        return self._wait_for_another(lane, deadline)

    @property
    def is_open(self) -> bool:
        """Whether ``get`` returns a lane without waiting."""
        return not (self._lane.is_closed or self._lane in self._left)

    def leave(self, lane: CallLane) -> None:
        """Open another lane for the next calls: the daemon at that one is stopping."""
        with self._guard:
            if lane.is_connected and not self._is_closed:
                self._left.add(lane)

    def pause(self, seconds: float) -> None:
        """Wait so long, or until ``close``."""
        self._closing.wait(seconds)

    def close(self) -> None:
        """End all calls; no others can be made. Idempotent."""
        with self._guard:
            self._is_closed = True
            self._closing.set()
            attempt, self._attempt = self._attempt, None
            if attempt is not None:
                attempt.set_exception(self._endpoint.closed_error())
        for lane in list(self._left):
            lane.close()
        if hasattr(self, "_lane"):
            self._lane.close()

    def _close_left(self, lane: CallLane) -> None:
        """Close the lanes before ``lane`` on which no call goes on."""
        with self._guard:
            idle = {each for each in self._left if each is not lane and not each.calls_in_flight}
            self._left -= idle
        for each in idle:
            each.close()

    def _wait_for_another(self, broken: CallLane, deadline: float | None) -> CallLane:
        try:
            attempt = self._join_attempt(broken)
        except RuntimeError:  # of threading: the system's limit is reached
            return self._replace(broken)
        left = None if deadline is None else max(deadline - time.monotonic(), 0.0)
        try:
            error = attempt.exception(left)
        except TimeoutError:
            wait = self._wait
            failure = None if wait is None else wait.failure()
            if failure is None:
                raise
            raise failure from None
        if error is None:
            return attempt.result()
        raise copy_of_error(error)

    def _join_attempt(self, broken: CallLane) -> Future[CallLane]:
        """Return the attempt that is under way, or a new one.

        Raises RuntimeError without a thread.
        """
        with self._guard:
            if self._attempt is not None:
                return self._attempt
            attempt: Future[CallLane] = Future()
            if self._is_closed:
                attempt.set_exception(self._endpoint.closed_error())
            elif self._lane is not broken:
                attempt.set_result(self._lane)
            else:
                # In a thread of its own: no caller's deadline, and no Ctrl-C, ends it for others.
                threading.Thread(
                    target=self._try, args=(broken, attempt), name="lane-opening", daemon=True
                ).start()
                self._attempt = attempt
            return attempt

    def _try(self, broken: CallLane, attempt: Future[CallLane]) -> None:
        failure: BaseException | None = None
        try:
            self._replace(broken)
        except BaseException as error:
            failure = error
        with self._guard:
            if self._attempt is attempt:  # else the lane was closed
                self._attempt = None
                if failure is None:
                    attempt.set_result(self._lane)
                else:
                    attempt.set_exception(failure)
        del attempt, failure  # an error refers to this frame

    def _replace(self, broken: CallLane) -> CallLane:
        """Return the lane after that one; open it unless another thread is quicker."""
        if not broken.calls_in_flight:
            broken.close()
        wait = self._wait = DaemonWait(self._endpoint.wait)
        while True:
            try:
                info, limit = self._introduce()
                name, lane = self._choose(info.lane, limit)
                break
            except (DaemonUnavailableError, RefusedError) as error:
                pause = wait.pause_after(error, is_repeatable=True)
            self.pause(pause)
            if self._is_closed:
                raise self._endpoint.closed_error()
        with self._guard:
            # Without a thread for it (``_wait_for_another``), several callers may have come here:
            # one lane is kept, and after ``close`` none.
            if self._lane is broken and not self._is_closed:
                self.name, self._lane = name, lane
                return lane
        lane.close()
        if self._is_closed:
            raise self._endpoint.closed_error()
        return self._lane

    def _choose(self, path: str, limit: int) -> tuple[LaneKind, CallLane]:
        why = ""
        for kind in kinds_to_try(self._endpoint):
            try:
                return kind, self._connect(kind, path, limit)
            except UNUSABLE[kind] as error:
                why = str(error)
        raise self._endpoint.no_lane_error(why)

    def _connect(self, kind: LaneKind, path: str, limit: int) -> CallLane:
        if kind == "local":
            self._endpoint.check_local_lane(path)
            return BlockingLane.connect(path, limit, call_limit=MAX_MESSAGE_BYTES_HIGHEST)
        if kind == "stream":
            return BlockingStream.open(self._channel, limit)
        return UnaryCalls(self._channel, self._endpoint.address, limit)
