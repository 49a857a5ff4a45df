"""Nested calls of an interpreter: the lane to the daemon, and a new one when it breaks."""

from __future__ import annotations

import contextlib
import select
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from opdispatch import DispatchKey, DispatchKeySet, OperatorHandle
from opdispatch_server.call_context import RUNNING_CALL, RunningCall
from opdispatch_server.worker.execution.daemon_lane import DaemonLane
from opdispatch_wire.errors import DaemonUnavailableError, DeadlineExceededError, WireError
from opdispatch_wire.lanes import lane_socket
from opdispatch_wire.lanes.frame_kind import FrameKind
from opdispatch_wire.lanes.lane_messages import HANDSHAKE_TIMEOUT
from opdispatch_wire.v1 import execution_pb2, execution_pb2_grpc, values_pb2
from opdispatch_wire.values import value_from_proto, value_to_proto
from tests.unit.lane_peer import LIMIT, Peer
from tests.waits import LONGEST_WAIT

KEYS = DispatchKeySet(DispatchKey.CPU)


class GrpcDaemon(execution_pb2_grpc.ExecutionServiceServicer):  # type: ignore[misc]
    """Answers calls that come over gRPC."""

    def __init__(self) -> None:
        self.requests: list[execution_pb2.CallRequest] = []

    def Call(self, request: execution_pb2.CallRequest, context: object) -> Any:  # noqa: N802
        self.requests.append(request)
        return execution_pb2.CallReply(returns=[value_to_proto("grpc")])


@pytest.fixture
def grpc_daemon() -> GrpcDaemon:
    return GrpcDaemon()


@pytest.fixture
def grpc_address(tmp_path: Path, grpc_daemon: GrpcDaemon) -> Iterator[str]:
    address = f"unix:{tmp_path / 'grpc'}"
    server = grpc.server(ThreadPoolExecutor(1))
    execution_pb2_grpc.add_ExecutionServiceServicer_to_server(grpc_daemon, server)
    server.add_insecure_port(address)
    server.start()
    yield address
    server.stop(None).wait(LONGEST_WAIT)


@pytest.fixture
def op(define: Callable[[str], OperatorHandle]) -> OperatorHandle:
    return define("test::where(int x) -> str")


class LocalDaemon:
    """The daemon's end of the local lane, one connection at a time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.listener = lane_socket.listen(str(path))
        self._threads = ThreadPoolExecutor(1)
        self._serving: list[Future[None]] = []

    def serve(self, *steps: Callable[[Peer], object]) -> None:
        """The next connection, which ends after these steps."""

        def run() -> None:
            peer = Peer(self.listener)
            peer.accept()
            assert peer.connection is not None
            with peer.connection:
                for step in steps:
                    step(peer)

        self._serving.append(self._threads.submit(run))

    def finish(self) -> None:
        """Wait until what was to be served has been."""
        while self._serving:
            self._serving.pop().result(LONGEST_WAIT)

    def stop(self) -> None:
        """Take no connections any more."""
        self.listener.close()
        self.path.unlink(missing_ok=True)


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[LocalDaemon]:
    daemon = LocalDaemon(tmp_path / "lane")
    yield daemon
    daemon.finish()
    daemon.stop()


@pytest.fixture
def lane(grpc_address: str, daemon: LocalDaemon) -> Iterator[DaemonLane]:
    with contextlib.closing(DaemonLane(grpc_address, LIMIT)) as lane:
        yield lane


def answer(peer: Peer) -> None:
    reply = execution_pb2.CallReply(id=peer.read_call().id, returns=[value_to_proto("lane")])
    peer.write(FrameKind.REPLY, reply.SerializeToString())


def talk_nonsense(peer: Peer) -> None:
    peer.read_call()
    peer.write(FrameKind.CALL, b"")


def break_lane(daemon: LocalDaemon, lane: DaemonLane, op: OperatorHandle) -> None:
    daemon.serve(Peer.read_call)
    lane.use_local_lane(str(daemon.path))
    with pytest.raises(DaemonUnavailableError):
        lane.call(op, KEYS, [1])


def see_end(peer: Peer) -> None:
    assert peer.connection is not None
    assert peer.connection.recv(1) == b""


@pytest.mark.parametrize(
    ("fail", "error"), [(talk_nonsense, WireError), (Peer.read_call, DaemonUnavailableError)]
)
def test_a_lane_that_broke_is_opened_again_for_the_next_call(
    daemon: LocalDaemon,
    lane: DaemonLane,
    op: OperatorHandle,
    fail: Callable[[Peer], object],
    error: type[Exception],
):
    daemon.serve(answer, fail)
    daemon.serve(answer, answer)
    lane.use_local_lane(str(daemon.path))
    assert lane.call(op, KEYS, [1]) == ["lane"]
    with pytest.raises(error):
        lane.call(op, KEYS, [1])
    assert lane.call(op, KEYS, [1]) == ["lane"]
    assert lane.call(op, KEYS, [1]) == ["lane"]


def test_calls_go_over_grpc_when_the_lane_cannot_be_opened_again(
    daemon: LocalDaemon, lane: DaemonLane, op: OperatorHandle
):
    break_lane(daemon, lane, op)
    daemon.stop()
    assert lane.call(op, KEYS, [1]) == ["grpc"]
    assert lane.call(op, KEYS, [1]) == ["grpc"]


class Meanwhile:
    """An argument: when it is first encoded, something happens, as in another thread."""

    def __init__(self, happens: Callable[[], object]) -> None:
        self._happens = [happens]

    def __opdispatch_fill_value__(self, message: values_pb2.Value, at: str) -> None:
        while self._happens:
            self._happens.pop()()
        message.integer = 1


@pytest.mark.parametrize("size", [1, 1 << 18])
def test_a_call_that_was_not_sent_when_the_lane_broke_goes_over_grpc(
    daemon: LocalDaemon, lane: DaemonLane, op: OperatorHandle, grpc_daemon: GrpcDaemon, size: int
):
    def breaks() -> None:
        with pytest.raises(DaemonUnavailableError):
            lane.call(op, KEYS, [1])

    daemon.serve(Peer.read_call)
    daemon.serve(answer)
    lane.use_local_lane(str(daemon.path))
    assert lane.call(op, KEYS, [[Meanwhile(breaks), np.zeros(size)]]) == ["grpc"]
    [request] = grpc_daemon.requests
    _, array = request.args[0].list.items
    assert value_from_proto(array).size == size
    assert lane.call(op, KEYS, [1]) == ["lane"]


def test_a_call_that_was_not_sent_when_the_lane_was_closed_is_sent_nowhere(
    daemon: LocalDaemon, lane: DaemonLane, op: OperatorHandle, grpc_daemon: GrpcDaemon
):
    daemon.serve(see_end)
    lane.use_local_lane(str(daemon.path))
    with pytest.raises(DaemonUnavailableError):
        lane.call(op, KEYS, [Meanwhile(lane.close)])
    assert not grpc_daemon.requests


def test_one_thread_opens_it_and_others_do_not_wait_for_that(
    daemon: LocalDaemon, lane: DaemonLane, op: OperatorHandle
):
    break_lane(daemon, lane, op)
    daemon.finish()
    with ThreadPoolExecutor(1) as threads:
        opening = threads.submit(lane.call, op, KEYS, [1])
        assert select.select([daemon.listener], [], [], LONGEST_WAIT)[0], "it is not opened"
        assert lane.call(op, KEYS, [1]) == ["grpc"]
        daemon.serve(answer, answer)
        assert opening.result(LONGEST_WAIT) == ["lane"]
        assert lane.call(op, KEYS, [1]) == ["lane"]


def test_a_call_waits_for_a_new_lane_no_longer_than_until_its_deadline(
    daemon: LocalDaemon, lane: DaemonLane, op: OperatorHandle
):
    break_lane(daemon, lane, op)
    daemon.finish()
    # No welcome comes.
    began = time.monotonic()
    token = RUNNING_CALL.set(RunningCall(deadline=began + 0.05))
    with contextlib.suppress(DeadlineExceededError):  # gRPC may be quick enough even now
        lane.call(op, KEYS, [1])
    RUNNING_CALL.reset(token)
    assert time.monotonic() - began < HANDSHAKE_TIMEOUT / 2
    silent = Peer(daemon.listener)
    silent.accept_without_answer()  # it was not for lack of trying
    assert silent.connection is not None
    silent.connection.close()
    daemon.serve(answer)
    assert lane.call(op, KEYS, [1]) == ["lane"], "nor the last try"


def test_a_lane_stays_when_a_call_was_only_late(
    daemon: LocalDaemon, lane: DaemonLane, op: OperatorHandle
):
    daemon.serve(Peer.read_call, Peer.read, answer)
    lane.use_local_lane(str(daemon.path))
    token = RUNNING_CALL.set(RunningCall(deadline=0.0))
    with pytest.raises(DeadlineExceededError):
        lane.call(op, KEYS, [1])
    RUNNING_CALL.reset(token)
    assert lane.call(op, KEYS, [1]) == ["lane"]


def test_closed_lane_is_not_reopened(daemon: LocalDaemon, lane: DaemonLane, op: OperatorHandle):
    daemon.serve(see_end)
    lane.use_local_lane(str(daemon.path))
    lane.close()
    for _ in range(2):
        with pytest.raises(DaemonUnavailableError):
            lane.call(op, KEYS, [1])
