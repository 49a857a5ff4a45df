"""The other side of a blocking lane, which the test plays, and calls in threads of their own."""

from __future__ import annotations

import socket
import threading

from opdispatch_wire.lanes import lane_messages
from opdispatch_wire.lanes.blocking_lane import BlockingLane
from opdispatch_wire.lanes.frame_kind import FrameKind, frame_header
from opdispatch_wire.lanes.frames import FrameReader
from opdispatch_wire.v1 import execution_pb2
from tests.waits import accept

LIMIT = 1 << 24


class Peer:
    """The other side of one lane, one frame at a time."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self._reader = FrameReader(LIMIT)
        self.connection: socket.socket | None = None

    def accept(self, limit: int = LIMIT, *, shares_memory: bool = False) -> None:
        self.accept_without_answer()
        self.welcome(limit, shares_memory=shares_memory)

    def accept_without_answer(self) -> None:
        self.connection = accept(self._listener)
        kind, _ = self.read()
        assert kind is FrameKind.HELLO

    def welcome(self, limit: int = LIMIT, *, shares_memory: bool = False) -> None:
        self.write(FrameKind.WELCOME, lane_messages.welcome(limit, shares_memory=shares_memory))

    def read(self) -> tuple[FrameKind, bytes | memoryview]:
        assert self.connection is not None
        while (frame := self._reader.next_frame()) is None:
            count = self.connection.recv_into(self._reader.space())
            assert count
            self._reader.received(count)
        return frame

    def read_call(self) -> execution_pb2.CallRequest:
        kind, payload = self.read()
        assert kind is FrameKind.CALL
        return execution_pb2.CallRequest.FromString(bytes(payload))

    def write(self, kind: FrameKind, payload: bytes) -> None:
        assert self.connection is not None
        self.connection.sendall(frame_header(kind, len(payload)) + payload)

    def answer(self, call: execution_pb2.CallRequest) -> None:
        reply = execution_pb2.CallReply(id=call.id, interpreter=call.operator)
        self.write(FrameKind.REPLY, reply.SerializeToString())


class Caller(threading.Thread):
    """One call in a thread of its own."""

    def __init__(self, lane: BlockingLane, operator: str, timeout: float | None = 30.0) -> None:
        super().__init__()
        self.outcome: object = None
        self._call = lambda: lane.call(
            execution_pb2.CallRequest(operator=operator), timeout, "the call"
        )
        self.start()

    def run(self) -> None:
        try:
            self.outcome = self._call().interpreter
        except Exception as error:
            self.outcome = error
