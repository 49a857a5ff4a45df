"""Interpreters that the daemon calls over a gRPC stream, as it does those of other machines."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from itertools import chain
from pathlib import Path
from threading import Event

import grpc
import numpy as np
import pytest

import opdispatch_client as oc
from opdispatch_client.endpoint import LaneChoice
from opdispatch_wire.calls import call_request
from opdispatch_wire.protocol_version import PROTOCOL_VERSION
from opdispatch_wire.v1 import execution_pb2, execution_pb2_grpc, interpreter_pb2_grpc
from opdispatch_wire.v1 import interpreter_pb2 as pb
from tests.service.conftest import WriteLibrary
from tests.service.doors import Doors, door_library
from tests.service.libraries import IMAGE, constant
from tests.service.raw_lane import raw_lane
from tests.service.running_daemon import Background, RunningDaemon, wait_for
from tests.service.test_interpreters import worker
from tests.waits import LONGEST_WAIT

LIMIT = 1 << 20
LARGE = np.arange(5 * LIMIT // 8, dtype=np.float64)
GROW = """\
from opdispatch import Library
import numpy as np

lib = Library("grow", "DEF")
lib.define("tile(Tensor x, int n) -> Tensor")
lib.impl("tile", np.tile, "CPU")
"""
LANES: list[LaneChoice] = ["local", "stream", "grpc"]


@contextmanager
def with_far_one(folder: Path) -> Iterator[RunningDaemon]:
    """A daemon with a near interpreter, worker-1, and a far one, that a user has started."""
    daemon = RunningDaemon(folder, "--max-message-bytes", str(LIMIT), workers=1)
    try:
        daemon.wait_until_ready()
        with (
            worker(daemon, "--name", "far", "--listen", "127.0.0.1:0"),
            daemon.connect() as session,
        ):
            assert wait_for(lambda: len(session.interpreters()) == 2)
            yield daemon
    finally:
        daemon.clean_up()


@pytest.fixture(scope="module")
def shared_daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningDaemon]:
    with with_far_one(tmp_path_factory.mktemp("far")) as daemon:
        yield daemon


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[RunningDaemon]:
    with with_far_one(tmp_path) as daemon:
        yield daemon


@pytest.fixture
def loaded(lent_daemon: RunningDaemon, write_library: WriteLibrary) -> RunningDaemon:
    with lent_daemon.connect() as session:
        session.load(write_library("image", IMAGE), on="far")
    return lent_daemon


@pytest.mark.parametrize("lane", LANES)
def test_they_run_what_is_called(loaded: RunningDaemon, lane: LaneChoice):
    x = np.arange(6.0)
    with loaded.connect(lane=lane) as session:
        np.testing.assert_array_equal(session.ops.image.pipeline(x), 1 - x * 3)
        assert session.ops.image.add_(x, np.ones(6)) is x
        assert x.tolist() == [1, 2, 3, 4, 5, 6]
        answers = session.map("image::invert", [(np.full(3, n),) for n in range(300)])
        assert [answer.tolist() for answer in answers] == [[1 - n] * 3 for n in range(300)]
        with pytest.raises(oc.KernelError, match="in interpreter far raised ValueError") as caught:
            session.ops.image.boom(x)
        assert "Traceback" in caught.value.facts["traceback"]
        assert wait_for(lambda: sum(i.calls_in_flight for i in session.interpreters()) == 0)
        assert session.check_invariants() == []


def test_no_message_limit_is_one_for_tensors(loaded: RunningDaemon):
    with loaded.connect(lane="stream") as session:
        np.testing.assert_array_equal(session.ops.image.invert(LARGE), 1 - LARGE)
        x = LARGE.copy()
        assert session.ops.image.add_(x, LARGE) is x
        np.testing.assert_array_equal(x, 2 * LARGE)


def test_the_message_limit_of_a_caller_without_chunks_holds(
    lent_daemon: RunningDaemon, write_library: WriteLibrary
):
    with lent_daemon.connect(lane="grpc") as session:
        session.load(write_library("grow", GROW), on="far")
        part = LARGE[: LIMIT // 16]
        with pytest.raises(oc.MessageTooLargeError, match="the result of the call has"):
            session.ops.grow.tile(part, 3)
        assert session.ops.grow.tile(part, 1).shape == part.shape


def test_their_kernels_call_near_ones_and_the_other_way_round(
    lent_daemon: RunningDaemon, write_library: WriteLibrary
):
    outer = (
        "from opdispatch import Library, ops\nlib = Library('{0}', 'DEF')\n"
        "lib.define('get(Tensor x, int depth) -> int')\n"
        "def get(x, depth):\n"
        "    return ops.{1}.get(x, depth - 1) + 1 if depth else 0\n"
        "lib.impl('get', get, 'CPU')\n"
    )
    with lent_daemon.connect() as session:
        session.load(write_library("here", outer.format("here", "there")), on="worker-1")
        session.load(write_library("there", outer.format("there", "here")), on="far")
        assert session.ops.here.get(np.zeros(2), 7) == 7
        assert session.ops.there.get(np.zeros(2), 7) == 7


def test_far_calls_run_up_to_max_concurrency(
    lent_daemon: RunningDaemon, write_library: WriteLibrary, tmp_path: Path
):
    with closing(Doors(tmp_path)) as doors, lent_daemon.connect() as session:
        session.load(write_library("door", door_library("door", max_concurrency=2)), on="far")
        calls = [
            session.submit("door::enter", np.zeros(1), doors.folder, f"caller {n}")
            for n in range(5)
        ]
        assert {doors.next_inside() for _ in range(2)} == {"caller 0", "caller 1"}
        assert doors.no_other_is_inside()
        doors.let_out(5)
        assert [call.result(LONGEST_WAIT) for call in calls] == [f"caller {n}" for n in range(5)]


def test_one_that_dies_fails_its_calls_and_is_gone(
    daemon: RunningDaemon, write_library: WriteLibrary
):
    daemon.expects_errors = True
    with closing(Doors(daemon.folder)) as doors, daemon.connect(retry=False) as session:
        session.load(write_library("door", door_library("door")), on="far")
        with Background(session.ops.door.enter, np.zeros(1), doors.folder, "caller") as call:
            assert doors.next_inside() == "caller"
            [pid] = [i.pid for i in session.interpreters() if i.name == "far"]
            os.kill(pid, signal.SIGKILL)
            with pytest.raises(oc.InterpreterDiedError, match="far"):
                call.result()
        assert wait_for(lambda: len(session.interpreters()) == 1)
        assert session.check_invariants() == []


def _cancels(request: execution_pb2.CallRequest) -> None:
    request.cancel = True


def _is_a_chunk(request: execution_pb2.CallRequest) -> None:
    request.chunk.offset, request.chunk.length, request.chunk.data = 7, 8, b"x"


@pytest.mark.parametrize("spoil", [_cancels, _is_a_chunk])
def test_a_call_that_says_what_only_streams_say_never_reaches_one(
    loaded: RunningDaemon, spoil: Callable[[execution_pb2.CallRequest], None]
):
    """There it would be no call: it had no reply, or ended the stream of all others."""
    x = np.arange(3.0)
    request = call_request("image::invert", [x], {}, request_id=1)
    spoil(request)
    target = loaded.address.replace("unix://", "unix:")
    with grpc.insecure_channel(target) as channel:
        stub = execution_pb2_grpc.ExecutionServiceStub(channel)
        with pytest.raises(grpc.RpcError, match=r"\$\.cancel and \$\.chunk") as refused:
            stub.Call(request, timeout=LONGEST_WAIT)
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    with loaded.connect(direct=False) as session:
        if request.HasField("chunk"):
            with raw_lane(session.server_info.lane) as lane:
                lane.greet()
                for _ in range(2):  # the daemon knows such calls by the second time
                    lane.ask(request)
                    assert "$.cancel and $.chunk" in lane.reply().error.message
                    session.ops.image.invert(x)
        np.testing.assert_array_equal(session.ops.image.invert(x), 1 - x)
        assert session.check_invariants() == []


def test_a_library_moves_between_far_and_near_ones(
    lent_daemon: RunningDaemon, write_library: WriteLibrary
):
    x = np.zeros(2)
    with lent_daemon.connect() as session:
        session.load(write_library("const", constant(1)), interpreters=2)
        assert {session.ops.const.get(x) for _ in range(20)} == {1}
        session.drain("far")
        session.load(write_library("const", constant(2)))
        assert {session.ops.const.get(x) for _ in range(20)} == {2}
        session.drain("far", undo=True)
        session.scale("const", 2)
        assert {session.ops.const.get(x) for _ in range(20)} == {2}
        assert session.check_invariants() == []


def test_unreachable_interpreter_learns_that_it_is(shared_daemon: RunningDaemon):
    hello = pb.Hello(protocol_version=PROTOCOL_VERSION, pid=1, name="lost", address="127.0.0.1:1")
    target = shared_daemon.address.replace("unix://", "unix:")
    with grpc.insecure_channel(target) as channel:
        stub = interpreter_pb2_grpc.InterpreterServiceStub(channel)
        said = iter([pb.InterpreterMessage(hello=hello)])
        *_, last = stub.Session(chain(said, iter(Event().wait, None)), timeout=60)
    assert last.goodbye.reason.startswith("the daemon cannot call it at 127.0.0.1:1: ")
    assert not last.goodbye.come_back
