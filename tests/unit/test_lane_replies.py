"""The replies of a lane: when they are sent, and what is sent in place of one that cannot be."""

import logging
import select
import socket

import pytest

from opdispatch_server.worker.incoming.lane_pace import LanePace
from opdispatch_server.worker.incoming.lane_replies import LaneReplies, failure, failure_of_run
from opdispatch_wire.errors import KernelError, MessageTooLargeError
from opdispatch_wire.lanes.frame_kind import FrameKind
from opdispatch_wire.lanes.frame_writer import FrameWriter
from opdispatch_wire.lanes.frames import FrameReader
from opdispatch_wire.status import error_from_status
from opdispatch_wire.v1 import execution_pb2


class Execution:
    """Serializes replies of at most ``limit`` bytes."""

    def serialize(self, reply, limit, tensors):
        data = reply.SerializeToString()
        if len(data) > limit:
            raise MessageTooLargeError(f"the result of the call has {len(data)} bytes")
        return data


class Side:
    """The replies of one lane, and the other end of its connection."""

    def __init__(self):
        ours, self.theirs = socket.socketpair()
        self.ours = ours
        self.pace = LanePace()
        self.replies = LaneReplies(FrameWriter(ours), Execution(), self.pace)
        self.reader = FrameReader(1 << 20)

    def received(self):
        found = []
        while select.select([self.theirs], [], [], 0)[0]:
            frame = self.reader.receive(self.theirs)
            while frame is not None:
                assert frame[0] is FrameKind.REPLY
                found.append(execution_pb2.CallReply.FromString(frame[1]))
                frame = self.reader.next_frame()
        return found


@pytest.fixture
def side():
    made = Side()
    yield made
    made.ours.close()
    made.theirs.close()


def test_a_reply_waits_for_those_that_follow_it_at_once(side):
    side.pace.note_beginning(1e6)
    for number in (1, 2, 3):
        side.replies.send(execution_pb2.CallReply(id=number))
        assert not side.received()
    side.replies.flush()
    assert [reply.id for reply in side.received()] == [1, 2, 3]


def test_replies_that_have_waited_are_sent_with_the_next_one(side):
    side.replies.send(execution_pb2.CallReply(id=1))
    assert not side.received()
    side.replies.send(execution_pb2.CallReply(id=2))  # which a beginning of no length outlasts
    assert [reply.id for reply in side.received()] == [1, 2]


def test_the_error_is_sent_of_a_reply_that_cannot_be(side):
    side.replies.limit = 100
    side.replies.send_with(execution_pb2.CallReply(id=7, interpreter="w" * 200), None)
    side.replies.flush()
    (reply,) = side.received()
    assert reply.id == 7
    assert isinstance(error_from_status(reply.error), MessageTooLargeError)


def test_a_failed_call_is_logged_if_that_should_not_have_happened(caplog):
    caplog.set_level(logging.DEBUG)
    request = execution_pb2.CallRequest(id=5, operator="a::b")
    assert failure_of_run(request, KernelError("no")) == failure(request, KernelError("no"))
    assert not caplog.records
    assert failure_of_run(request, KeyError("no")).id == 5
    assert ["a::b" in record.getMessage() for record in caplog.records] == [True]
