"""A blocking session's lane to its daemon: chosen at first, and replaced when it breaks."""

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
from opdispatch_wire.errors import DaemonUnavailableError, RefusedError, copy_of_error
from opdispatch_wire.lanes.blocking_lane import BlockingLane
from opdispatch_wire.lanes.blocking_stream import BlockingStream
from opdispatch_wire.message_size import MAX_MESSAGE_BYTES_HIGHEST


class DaemonLane:
    """The lane of one session. Any number of threads may use it.

    A broken lane is replaced once the daemon is back: see Note [A daemon that restarts].
    ``introduce`` repeats the handshake and returns the daemon's answer and the message limit.
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
        # Held for changes of `_lane`, `_attempt`, `_left` and `_is_closed`. After `close`, no lane
        # and no attempt is added. The thread that clears `_attempt` sets its result.
        self._guard = threading.Lock()
        self._attempt: Future[CallLane] | None = None  # to open the lane again
        self._wait: DaemonWait | None = None  # for the daemon, during the attempt
        self._closing = threading.Event()
        # Lanes to a stopping daemon, kept until the calls on them have ended.
        self._left: set[CallLane] = set()

    @property
    def is_closed(self) -> bool:
        """Whether ``close`` was called."""
        return self._is_closed

    @property
    def max_message_bytes(self) -> int:
        """Longest request in bytes that the daemon accepts."""
        return self._lane.max_message_bytes

    def open(self, info: ServerInfo, limit: int) -> None:
        """Choose a lane for messages of at most ``limit`` bytes.

        Raises DaemonUnavailableError if the endpoint requires a kind that cannot be opened.
        """
        self.name, self._lane = self._choose(info.lane, limit)

    def get(self, deadline: float | None) -> CallLane:
        """Return the lane, or a new one if it is broken.

        All threads that need a new lane wait for the same attempt, and get its error if it fails,
        such as DaemonUnavailableError. Raises TimeoutError at ``deadline``, by ``time.monotonic``,
        unless the attempt has met an error, which is raised instead. If no thread can be started
        for the attempt, this one makes it, and may exceed the deadline.
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
        """Use a new lane for the next calls, because the daemon at this one is stopping."""
        with self._guard:
            if lane.is_connected and not self._is_closed:
                self._left.add(lane)

    def pause(self, seconds: float) -> None:
        """Wait for that time, or until ``close``."""
        self._closing.wait(seconds)

    def close(self) -> None:
        """End all calls, and refuse new ones. Idempotent."""
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
        """Close the lanes that were left for ``lane`` and have no more calls in flight."""
        with self._guard:
            idle = {each for each in self._left if each is not lane and not each.calls_in_flight}
            self._left -= idle
        for each in idle:
            each.close()

    def _wait_for_another(self, broken: CallLane, deadline: float | None) -> CallLane:
        try:
            attempt = self._join_attempt(broken)
        except RuntimeError:  # no thread: the system's limit is reached
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
        """Return the attempt in progress, or begin one.

        Raises RuntimeError if no thread can be started for it.
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
                # In a separate thread, so that no caller's deadline or Ctrl-C ends it for others.
                # Started before `_attempt` is set: if that raises, there is no attempt.
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
            if self._attempt is attempt:  # otherwise ``close`` has set its result
                self._attempt = None
                if failure is None:
                    attempt.set_result(self._lane)
                else:
                    attempt.set_exception(failure)
        del attempt, failure  # the error's traceback refers to this frame: a cycle

    def _replace(self, broken: CallLane) -> CallLane:
        """Open a lane in place of a broken one; return it, or one opened by a faster thread."""
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
            # If no thread could be started for the attempt, several callers may get here: one of
            # their lanes is kept, and none after ``close``.
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
