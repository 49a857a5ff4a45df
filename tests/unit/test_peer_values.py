"""Connections between interpreters, over which one asks another one for values."""

from __future__ import annotations

import contextlib
import select
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from opdispatch import register_backend
from opdispatch.errors import DeviceError, DeviceLostError, DeviceMemoryError
from opdispatch_server.worker.values import peers as peer_values
from opdispatch_server.worker.values.device_exports import DeviceExports
from opdispatch_server.worker.values.peers import PeerValues
from opdispatch_wire.errors import RemoteValueGoneError, WireError
from opdispatch_wire.lanes import lane_messages, lane_socket
from opdispatch_wire.lanes.frame_kind import FrameKind
from opdispatch_wire.remote_values import RemoteFacts
from opdispatch_wire.v1 import execution_pb2, values_pb2
from opdispatch_wire.values import value_to_proto
from tests.open_descriptors import open_descriptors
from tests.simulated_accelerator import Accelerator, AcceleratorArray
from tests.unit.lane_peer import LIMIT, Peer
from tests.waits import LONGEST_WAIT, accept

X = np.arange(3.0)
DEVICE = "privateuseone:1"


@pytest.fixture
def values() -> Iterator[PeerValues]:
    with contextlib.closing(PeerValues(LIMIT)) as values:
        yield values


@contextlib.contextmanager
def owner(path: Path) -> Iterator[values_pb2.RemoteTensor]:
    """An interpreter that answers one question, and is gone at the end."""
    with lane_socket.listen(str(path)) as listener:
        peer = Peer(listener)

        def answer() -> None:
            peer.accept()
            reply = execution_pb2.CallReply(id=peer.read_call().id, returns=[value_to_proto(X)])
            peer.write(FrameKind.REPLY, reply.SerializeToString())

        answering = threading.Thread(target=answer)
        answering.start()
        message = values_pb2.RemoteTensor(id=b"1", interpreter=path.name)
        message.source.lane = str(path)
        yield message
        answering.join(LONGEST_WAIT)
        assert peer.connection is not None
        peer.connection.close()


def test_connections_to_ended_interpreters_are_closed(values: PeerValues, tmp_path: Path):
    before = open_descriptors()
    for number in range(5):
        with owner(tmp_path / f"{number}") as message:
            np.testing.assert_array_equal(values.fetch(message, 10, "$").value, X)
    opened = open_descriptors() - before
    assert len(opened) == 1  # to the last one, which was not asked for since


def test_one_that_is_gone_has_no_values(values: PeerValues, tmp_path: Path):
    with owner(tmp_path / "lane") as message:
        values.fetch(message, 10, "$")
    with pytest.raises(
        RemoteValueGoneError, match=r"cannot fetch the remote tensor .* from interpreter lane"
    ):
        values.fetch(message, 10, "$.args[0]")


@pytest.fixture
def accelerator() -> Iterator[Accelerator]:
    backend = Accelerator()
    with contextlib.closing(register_backend(backend)):
        yield backend


@contextlib.contextmanager
def sharing_owner(
    path: Path, exports: DeviceExports, questions: int
) -> Iterator[values_pb2.RemoteTensor]:
    """An interpreter with a value on a device, which is asked so often."""
    value = AcceleratorArray(X, 1)

    def answer(request: execution_pb2.CallRequest) -> execution_pb2.CallReply:
        reply = execution_pb2.CallReply(id=request.id)
        if request.device_lease:
            exports.end(request.device_lease)
        elif request.device_memory:
            tensor = reply.returns.add().tensor
            assert exports.offer(tensor, value, request.device_memory)
            RemoteFacts.of(value, at="$").write_to(tensor)
        else:
            reply.returns.append(value_to_proto(X))
        return reply

    def serve() -> None:
        peer.accept()
        listener.close()
        assert peer.connection is not None
        with peer.connection:
            for _ in range(questions):
                peer.write(FrameKind.REPLY, answer(peer.read_call()).SerializeToString())

    with lane_socket.listen(str(path)) as listener, ThreadPoolExecutor(1) as threads:
        peer = Peer(listener)
        serving = threads.submit(serve)
        message = values_pb2.RemoteTensor(id=b"1", interpreter=path.name, device=DEVICE)
        message.source.lane = str(path)
        yield message
        serving.result(LONGEST_WAIT)


def test_a_copy_ends_the_lease(values: PeerValues, accelerator: Accelerator, tmp_path: Path):
    exports = DeviceExports()
    with sharing_owner(tmp_path / "lane", exports, questions=2) as message:
        copy = values.fetch(message, 10, "$").value
    np.testing.assert_array_equal(accelerator.to_host(copy), X)
    assert len(exports) == 0


def fail_to_read(
    accelerator: Accelerator, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fail(*args: object) -> None:
        raise error

    monkeypatch.setattr(accelerator, "read_shared", fail)


@pytest.mark.parametrize("error", [DeviceMemoryError, DeviceLostError, WireError, RuntimeError])
def test_a_reader_that_fails_ends_the_lease(
    values: PeerValues,
    accelerator: Accelerator,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    error: type[Exception],
):
    fail_to_read(accelerator, monkeypatch, error("it cannot be read"))
    exports = DeviceExports()
    with (
        sharing_owner(tmp_path / "lane", exports, questions=2) as message,
        pytest.raises(error, match="it cannot be read"),
    ):
        values.fetch(message, 10, "$")
    assert len(exports) == 0


def test_a_reader_that_goes_by_way_of_the_host_ends_the_lease(
    values: PeerValues,
    accelerator: Accelerator,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    fail_to_read(accelerator, monkeypatch, DeviceError("it cannot be opened"))
    exports = DeviceExports()
    with sharing_owner(tmp_path / "lane", exports, questions=3) as message:
        np.testing.assert_array_equal(values.fetch(message, 10, "$").value, X)
    assert len(exports) == 0


def test_error_of_a_reader_is_reported_though_its_lease_has_ended(
    values: PeerValues,
    accelerator: Accelerator,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    """The owner has gone."""
    fail_to_read(accelerator, monkeypatch, DeviceMemoryError("it does not fit"))
    with (
        sharing_owner(tmp_path / "lane", DeviceExports(), questions=1) as message,
        pytest.raises(DeviceMemoryError, match="it does not fit"),
    ):
        values.fetch(message, 10, "$")


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep idle connections open while a test runs."""
    monkeypatch.setattr(lane_messages, "HANDSHAKE_TIMEOUT", 600.0)


@contextlib.contextmanager
def silent(path: Path) -> Iterator[tuple[values_pb2.RemoteTensor, socket.socket]]:
    """An interpreter that takes no connections until the test does that for it."""
    with lane_socket.listen(str(path)) as listener:
        message = values_pb2.RemoteTensor(id=b"2", interpreter=path.name)
        message.source.lane = str(path)
        yield message, listener


def wait_for_connection(listener: socket.socket) -> None:
    assert select.select([listener], [], [], LONGEST_WAIT)[0]


@pytest.mark.usefixtures("patient")
def test_silent_place_does_not_delay_reads_from_others(values: PeerValues, tmp_path: Path):
    with silent(tmp_path / "mute") as (mute, listener), ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(values.fetch, mute, None, "$")
        wait_for_connection(listener)
        with owner(tmp_path / "lane") as message:
            np.testing.assert_array_equal(values.fetch(message, 10, "$").value, X)
        assert not waiting.done()
        accept(listener).close()
        with pytest.raises(RemoteValueGoneError, match="from interpreter mute"):
            waiting.result(LONGEST_WAIT)


@pytest.mark.usefixtures("patient")
def test_no_longer_is_waited_for_a_connection_than_the_call_may_take(
    values: PeerValues, tmp_path: Path
):
    with silent(tmp_path / "mute") as (mute, listener), ThreadPoolExecutor(1) as threads:
        with pytest.raises(RemoteValueGoneError, match=r"it does not answer|timed out"):
            values.fetch(mute, 0.01, "$")
        accept(listener).close()
        waiting = threads.submit(values.fetch, mute, None, "$")
        wait_for_connection(listener)
        with pytest.raises(RemoteValueGoneError, match="it does not answer"):
            values.fetch(mute, 0, "$")
        assert not waiting.done()
        accept(listener).close()
        with pytest.raises(RemoteValueGoneError):
            waiting.result(LONGEST_WAIT)


@pytest.mark.usefixtures("patient")
def test_threads_share_a_connection_that_is_being_made(values: PeerValues, tmp_path: Path):
    def serve(calls: int) -> None:
        peer.accept()
        assert peer.connection is not None
        with peer.connection:
            for _ in range(calls):
                call = peer.read_call()
                reply = execution_pb2.CallReply(id=call.id, returns=[value_to_proto(X)])
                peer.write(FrameKind.REPLY, reply.SerializeToString())

    with silent(tmp_path / "lane") as (message, listener), ThreadPoolExecutor(5) as threads:
        peer = Peer(listener)
        fetching = [threads.submit(values.fetch, message, 30, "$") for _ in range(4)]
        wait_for_connection(listener)
        threads.submit(serve, len(fetching)).result(LONGEST_WAIT)
        for each in fetching:
            np.testing.assert_array_equal(each.result(LONGEST_WAIT).value, X)


@pytest.mark.usefixtures("patient")
def test_threads_that_wait_for_a_connection_share_its_failure(
    values: PeerValues, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    waiting = threading.Semaphore(0)

    def note_wait(deadline: float | None) -> float | None:
        waiting.release()
        return None

    monkeypatch.setattr(peer_values, "_left_until", note_wait)
    with ThreadPoolExecutor(3) as threads, silent(tmp_path / "mute") as (mute, listener):
        fetching = [threads.submit(values.fetch, mute, None, "$") for _ in range(3)]
        for _ in fetching[1:]:  # those that wait for the one that connects
            assert waiting.acquire(timeout=LONGEST_WAIT)
        accept(listener).close()
        for each in fetching:
            with pytest.raises(RemoteValueGoneError, match="from interpreter mute"):
                each.result(LONGEST_WAIT)


@pytest.mark.usefixtures("patient")
def test_a_connection_that_is_ready_after_the_end_is_closed(tmp_path: Path):
    values = PeerValues(LIMIT)
    with silent(tmp_path / "lane") as (message, listener), ThreadPoolExecutor(2) as threads:
        peer = Peer(listener)
        fetching = threads.submit(values.fetch, message, None, "$")
        wait_for_connection(listener)
        values.close()
        peer.accept()
        with pytest.raises(RemoteValueGoneError, match="this interpreter is stopping"):
            fetching.result(LONGEST_WAIT)
        assert peer.connection is not None
        with peer.connection:
            assert peer.connection.recv(1) == b""
    with pytest.raises(RemoteValueGoneError, match="this interpreter is stopping"):
        values.fetch(message, 10, "$")
