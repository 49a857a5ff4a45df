"""Hostile peers on local lanes of the daemon and of interpreters: they hurt no others."""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import opdispatch_client as oc
from opdispatch_wire.errors import RefusedError, WireError
from opdispatch_wire.lanes import lane_messages
from opdispatch_wire.lanes.frame_kind import HEADER, FrameKind, frame_header
from opdispatch_wire.status import error_from_status
from opdispatch_wire.v1 import execution_pb2
from tests.service.raw_lane import RawLane, find_route, raw_lane
from tests.waits import LONGEST_WAIT

SHARED_WORKERS = 1
X = np.arange(3.0)

Door = tuple[str, execution_pb2.Route | None]


@pytest.fixture(params=["daemon", "interpreter"])
def door(unharmed: oc.Session, request: pytest.FixtureRequest) -> Door:
    """The path of a lane, and what calls on it need."""
    if request.param == "daemon":
        return unharmed.server_info.lane, None
    return interpreters_door(unharmed)


def interpreters_door(session: oc.Session) -> Door:
    route = find_route(session, "image::scale", X)
    return route.targets[0].lane, route


def _garbage(lane: RawLane) -> None:
    lane.socket.sendall(b"\xde\xad\xbe\xef" * 1000)


def _http(lane: RawLane) -> None:
    lane.socket.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")


def _call_before_hello(lane: RawLane) -> None:
    lane.call(1, "image::scale", X)


def _reply(lane: RawLane) -> None:
    lane.greet()
    lane.say(FrameKind.REPLY, execution_pb2.CallReply(id=1).SerializeToString())


def _hello_twice(lane: RawLane) -> None:
    lane.greet()
    lane.say(FrameKind.HELLO, lane_messages.hello(1 << 24))


def _no_request(lane: RawLane) -> None:
    lane.greet()
    lane.say(FrameKind.CALL, b"\xff" * 20)


def _too_large(lane: RawLane) -> None:
    lane.greet()
    lane.socket.sendall(HEADER.pack(2**32 - 1, FrameKind.CALL, bytes(3)))


def _long_cancel(lane: RawLane) -> None:
    lane.greet()
    lane.say(FrameKind.CANCEL, bytes(100_000))


@pytest.mark.parametrize(
    "speak",
    [
        _garbage,
        _http,
        _call_before_hello,
        _reply,
        _hello_twice,
        _no_request,
        _too_large,
        _long_cancel,
    ],
)
def test_malformed_frame_ends_only_its_lane(
    unharmed: oc.Session, door: Door, speak: Callable[[RawLane], None]
):
    with raw_lane(*door) as lane:
        speak(lane)
        last = lane.hear()
        if last is not None:
            assert last[0] is FrameKind.REFUSAL
            assert isinstance(lane_messages.refusal_error(last[1]), WireError)
            assert lane.hear() is None


def test_a_bad_call_is_an_error_of_that_call_alone(unharmed: oc.Session, door: Door):
    with raw_lane(*door) as lane:
        lane.greet()
        wrong = lane.request(1, "no::such", X)
        wrong.operator = "no::such"
        lane.ask(wrong)
        lane.call(2, "image::scale", X)
        replies = {}
        for _ in range(2):
            kind, payload = lane.hear() or (None, b"")
            assert kind is FrameKind.REPLY
            reply = execution_pb2.CallReply.FromString(payload)
            replies[reply.id] = reply
        assert "no::such" in replies[1].error.message
        assert not replies[2].HasField("error")


@pytest.mark.parametrize("cut", [1, 7, 8, 9, 60])
def test_truncated_frame_hurts_no_other_lane(unharmed: oc.Session, door: Door, cut: int):
    with raw_lane(*door) as lane:
        lane.greet()
        request = lane.request(1, "image::scale", X).SerializeToString()
        lane.socket.sendall((frame_header(FrameKind.CALL, len(request)) + request)[:cut])
        lane.socket.shutdown(socket.SHUT_WR)
        frame = lane.hear()
        assert frame is None or frame[0] is FrameKind.REFUSAL


def _send_until_the_peer_stops_reading(lane: RawLane, x: np.ndarray) -> int:
    """How many calls the daemon takes of a client that never reads a reply."""
    for sent in range(10_000):
        try:
            lane.call(sent + 1, "image::scale", x)
        except TimeoutError:
            return sent
    return 10_000


def test_a_client_that_stops_reading_is_not_read_any_more(unharmed: oc.Session, door: Door):
    big = np.zeros(100_000)
    with raw_lane(*door) as lane:
        lane.greet()
        lane.socket.settimeout(1.0)
        sent = _send_until_the_peer_stops_reading(lane, big)
        assert 0 < sent < 1000
        np.testing.assert_array_equal(unharmed.ops.image.pipeline(X), 1 - X * 3)


def _write_half(path: str) -> None:
    lane = RawLane(path)
    lane.greet()
    lane.socket.sendall(HEADER.pack(1_000_000, FrameKind.CALL, bytes(3)) + bytes(500_000))
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_client_that_is_killed_in_the_middle_of_a_write(unharmed: oc.Session, door: Door):
    context = multiprocessing.get_context("spawn")
    process = context.Process(target=_write_half, args=(door[0],))
    process.start()
    process.join(LONGEST_WAIT)
    assert process.exitcode == -signal.SIGKILL


def test_large_calls_that_are_begun_and_never_sent_keep_no_other_waiting(unharmed: oc.Session):
    path = unharmed.server_info.lane
    with raw_lane(path) as one, raw_lane(path) as two, raw_lane(path) as last:
        for lane in (one, two, last):
            lane.greet()
        for lane in (one, two):
            lane.socket.sendall(HEADER.pack(15 << 20, FrameKind.CALL, bytes(3)) + bytes(100))
        big = np.zeros(2_000_000)
        last.call(1, "image::scale", big)
        assert not last.reply().HasField("error")


# -- direct calls alone -----------------------------------------------------------------------


def _wrong_epoch(request: execution_pb2.CallRequest) -> None:
    request.route_epoch += 1


def _no_epoch(request: execution_pb2.CallRequest) -> None:
    request.route_epoch = 0


def _no_kernel(request: execution_pb2.CallRequest) -> None:
    request.ClearField("kernel")


def _unknown_library(request: execution_pb2.CallRequest) -> None:
    request.kernel.load_id = 2**63


def _unknown_kernel(request: execution_pb2.CallRequest) -> None:
    request.kernel.registration = 2**31


def _no_kernel_there(request: execution_pb2.CallRequest) -> None:
    request.kernel.registration = 0  # the namespace


def _slot_of_another_library(request: execution_pb2.CallRequest) -> None:
    request.operator = "image::no_such"
    request.kernel.in_slot = True


def _slot_of_no_kernel(request: execution_pb2.CallRequest) -> None:
    request.kernel.in_slot = True
    request.kernel.dispatch_keys = 0


def _slot_of_all_keys(request: execution_pb2.CallRequest) -> None:
    request.kernel.in_slot = True
    request.kernel.dispatch_keys = 2**64 - 1


def _another_kernel(request: execution_pb2.CallRequest) -> None:
    request.operator = "image::no_such"


def _no_operator(request: execution_pb2.CallRequest) -> None:
    request.operator = ""


def _no_arguments(request: execution_pb2.CallRequest) -> None:
    del request.args[:]


def _says_that_it_is_late(request: execution_pb2.CallRequest) -> None:
    request.timeout = -1.0


def _fetch_for_me(request: execution_pb2.CallRequest) -> None:
    request.adopt = True
    remote = request.args.add().remote
    remote.id, remote.session, remote.source.lane = b"x" * 16, b"y" * 16, "/somewhere"


def _program(request: execution_pb2.CallRequest) -> None:
    request.program = b"\x0a\x00"


def _keep_for_me(request: execution_pb2.CallRequest) -> None:
    request.keep.session, request.keep.prefix = b"y" * 16, b"x" * 12


def _value_of_another_client(request: execution_pb2.CallRequest) -> None:
    request.args[0].remote.id = b"x" * 16


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (_fetch_for_me, RefusedError),
        (_program, RefusedError),
        (_keep_for_me, RefusedError),
        (_value_of_another_client, RefusedError),
        (_wrong_epoch, RefusedError),
        (_no_epoch, RefusedError),
        (_no_kernel, WireError),
        (_unknown_library, RefusedError),
        (_unknown_kernel, WireError),
        (_no_kernel_there, WireError),
        (_slot_of_another_library, WireError),
        (_slot_of_no_kernel, oc.OpdispatchError),
        (_slot_of_all_keys, oc.OpdispatchError),
        (_another_kernel, oc.OpdispatchError),
        (_no_operator, oc.OpdispatchError),
        (_no_arguments, oc.ArgumentError),
        (_says_that_it_is_late, oc.DeadlineExceededError),
    ],
)
def test_a_direct_call_that_is_wrong_is_an_error_of_that_call_alone(
    unharmed: oc.Session,
    change: Callable[[execution_pb2.CallRequest], None],
    error: type[Exception],
):
    with raw_lane(*interpreters_door(unharmed)) as lane:
        lane.greet()
        wrong = lane.request(1, "image::scale", X)
        change(wrong)
        lane.ask(wrong)
        assert isinstance(error_from_status(lane.reply().error), error)
        lane.call(2, "image::scale", X)
        assert not lane.reply().HasField("error")


def test_a_client_cannot_give_itself_more_than_the_library_allows(unharmed: oc.Session):
    """Reject on a client's lane the messages that only the daemon may send."""
    with raw_lane(*interpreters_door(unharmed)) as lane:
        lane.greet()
        for depth, run, load_id, limit in ((31, b"x" * 16, 0, 0), (1, b"", 7, 10**6)):
            forged = lane.request(depth, "image::scale", X)
            path = forged.path
            path.depth, path.run, path.lane, path.limit = depth, run, load_id, limit
            lane.ask(forged)
            assert not lane.reply().HasField("error")


@settings(deadline=None, max_examples=60, suppress_health_check=list(HealthCheck))
@given(data=st.binary(min_size=1, max_size=400), kind=st.sampled_from(list(FrameKind)))
def test_no_frame_harms_anybody(unharmed: oc.Session, data: bytes, kind: FrameKind):
    for path in (unharmed.server_info.lane, interpreters_door(unharmed)[0]):
        with raw_lane(path) as lane:
            lane.greet()
            lane.say(kind, data)
            lane.socket.shutdown(socket.SHUT_WR)
            while lane.hear() is not None:
                pass


@pytest.mark.parametrize("seconds", [float("nan"), -1.0, float("-inf")])
def test_a_timeout_that_is_no_time_has_passed(unharmed: oc.Session, door: Door, seconds: float):
    with raw_lane(*door) as lane:
        lane.greet()
        for number in range(2):
            request = lane.request(number, "image::scale", X)
            request.timeout = seconds
            lane.ask(request)
            error = error_from_status(lane.reply().error)
            assert isinstance(error, oc.DeadlineExceededError)


@pytest.mark.parametrize("seconds", [1e300, float("inf")])
def test_a_timeout_may_be_any_number(unharmed: oc.Session, door: Door, seconds: float):
    with raw_lane(*door) as lane:
        lane.greet()
        for number in range(2):
            request = lane.request(number, "image::scale", X)
            request.timeout = seconds
            lane.ask(request)
            assert lane.reply().returns
