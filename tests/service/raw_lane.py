"""A peer on a local lane that keeps to no rules."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager

import opdispatch_client as oc
from opdispatch_wire.calls import call_request
from opdispatch_wire.lanes import lane_messages
from opdispatch_wire.lanes.frame_kind import FrameKind, frame_header
from opdispatch_wire.lanes.frames import FrameReader
from opdispatch_wire.v1 import execution_pb2
from tests.waits import LONGEST_WAIT


class RawLane:
    """A connection to a lane that says whatever a test wants it to say.

    With a ``route`` it is an interpreter's, and calls are what that one takes.
    """

    def __init__(self, path: str, route: execution_pb2.Route | None = None) -> None:
        self.route = route
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(LONGEST_WAIT)
        self.socket.connect(path)
        self._reader = FrameReader(1 << 24)

    def say(self, kind: FrameKind, payload: bytes) -> None:
        self.socket.sendall(frame_header(kind, len(payload)) + payload)

    def hear(self) -> tuple[FrameKind, bytes] | None:
        """The next frame; None at the end."""
        while (frame := self._reader.next_frame()) is None:
            try:
                count = self.socket.recv_into(self._reader.space())
            except ConnectionResetError:
                return None
            if not count:
                return None
            self._reader.received(count)
        return frame[0], bytes(frame[1])

    def greet(self) -> None:
        self.say(FrameKind.HELLO, lane_messages.hello(1 << 24))
        frame = self.hear()
        assert frame is not None
        assert frame[0] is FrameKind.WELCOME

    def call(self, number: int, operator: str, *args: object) -> None:
        self.ask(self.request(number, operator, *args))

    def request(self, number: int, operator: str, *args: object) -> execution_pb2.CallRequest:
        request = call_request(operator, args, {}, request_id=number)
        if self.route is not None:
            request.operator = self.route.operator
            request.kernel.CopyFrom(self.route.kernel)
            request.route_epoch = self.route.epoch
        return request

    def ask(self, request: execution_pb2.CallRequest) -> None:
        self.say(FrameKind.CALL, request.SerializeToString())

    def reply(self) -> execution_pb2.CallReply:
        frame = self.hear()
        assert frame is not None
        assert frame[0] is FrameKind.REPLY
        return execution_pb2.CallReply.FromString(frame[1])


@contextmanager
def raw_lane(path: str, route: execution_pb2.Route | None = None) -> Iterator[RawLane]:
    lane = RawLane(path, route)
    try:
        yield lane
    finally:
        lane.socket.close()


def find_route(session: oc.Session, operator: str, *args: object) -> execution_pb2.Route:
    """Return the daemon's route of calls like this one, which is made once for it."""
    with raw_lane(session.server_info.lane) as lane:
        lane.greet()
        request = lane.request(1, operator, *args)
        request.wants_route = True
        lane.ask(request)
        reply = lane.reply()
        assert reply.route.targets
        return reply.route
