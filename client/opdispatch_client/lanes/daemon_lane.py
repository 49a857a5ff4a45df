"""A blocking session's lane to its daemon: the choice of it, and a new one when it breaks."""

from __future__ import annotations

import threading
from collections.abc import Callable

import grpc

from opdispatch.errors import OpdispatchError
from opdispatch_client.endpoint import Endpoint
from opdispatch_client.lanes.call_lane import CallLane
from opdispatch_client.lanes.unary_calls import UnaryCalls
from opdispatch_client.listings import ServerInfo
from opdispatch_wire.blocking_lane import BlockingLane
from opdispatch_wire.blocking_stream import BlockingStream
from opdispatch_wire.channel import MAX_MESSAGE_BYTES_HIGHEST
from opdispatch_wire.lane_messages import LaneClosedError


class DaemonLane:
    """The lane of one session. Any number of threads may use it.

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
        self.name = "grpc"
        """What kind of lane it is."""
        self._opening = threading.Lock()  # a lane that broke is opened again by one thread

    @property
    def is_closed(self) -> bool:
        """Whether ``close`` was called."""
        return self._is_closed

    @property
    def max_message_bytes(self) -> int:
        """The longest request that the daemon takes, in bytes."""
        return self._lane.max_message_bytes

    def open(self, info: ServerInfo, limit: int) -> None:
        """Chooses a lane for messages of at most ``limit`` bytes.

        Raises DaemonUnavailableError if there is none of the kind that the endpoint insists on.
        """
        self.name, self._lane = self._choose(info.lane, limit)

    def get(self) -> CallLane:
        """The lane, opened again if it broke. Raises DaemonUnavailableError."""
        if self._is_closed:
            raise self._endpoint.closed_error()
        lane = self._lane
        if not lane.is_closed:
            return lane
        with self._opening:
            if self._lane is lane:
                lane.close()
                self.open(*self._introduce())
            return self._lane

    def close(self) -> None:
        """Ends all calls; no others can be made. Idempotent."""
        self._is_closed = True
        if hasattr(self, "_lane"):
            self._lane.close()

    def _choose(self, path: str, limit: int) -> tuple[str, CallLane]:
        endpoint, wanted = self._endpoint, self._endpoint.lane
        if wanted in ("auto", "local"):
            why = endpoint.why_no_lane(path)
            if not why:
                try:
                    return "local", BlockingLane.connect(
                        path, limit, call_limit=MAX_MESSAGE_BYTES_HIGHEST
                    )
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
