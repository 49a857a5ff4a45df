"""Values on a device move between interpreters without a way through the host."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import grpc
import numpy as np
import pytest

import opdispatch_client as oc
from opdispatch import DeviceTransfers
from opdispatch_server.worker.values.peers import TRANSFER
from opdispatch_wire.addresses import grpc_target
from opdispatch_wire.v1 import execution_pb2, execution_pb2_grpc, remote_pb2
from opdispatch_wire.values import fill_value
from tests import simulated_accelerator
from tests.service.conftest import WriteLibrary
from tests.service.running_daemon import RunningDaemon, wait_for
from tests.simulated_accelerator import Accelerator

X = np.arange(6.0).reshape(2, 3)
DEVICE = "privateuseone:1"

_PROGRAM = remote_pb2.Program()
_PROGRAM.outputs.add(keep=True).what.input = 0
KEPT = _PROGRAM.SerializeToString()
"""A program without steps that keeps its input."""

ACCELERATOR = (
    Path(simulated_accelerator.__file__).read_text()
    + """

from dataclasses import replace
from opdispatch import Library, device_transfers, register_backend

accelerator = Accelerator()
register_backend(accelerator)


def totals():
    each = device_transfers().get("privateuseone:1")
    return (each.to_device, each.from_device, each.from_peers) if each else (0, 0, 0)


before = totals()


def counted(x):
    return tuple(now - then for now, then in zip(totals(), before))

"""
)
LEFT = """
share = accelerator.share
forged = {
    "nothing": lambda memory: memory,
    "the handle": lambda memory: replace(memory, handle=b"/nowhere"),
    "the place": lambda memory: replace(memory, offset=1 << 40),
    "the size": lambda memory: replace(memory, length=1 << 40),
    "all": lambda memory: None,
}


def forge(x, what):
    accelerator.share = lambda array: forged[what](share(array))


lib = Library("left", "DEF")
lib.define("make(Tensor x) -> Tensor")
lib.impl("make", lambda x: accelerator.copy(x), "PrivateUse1")
lib.define("counted(Tensor x) -> (int, int, int)")
lib.impl("counted", counted, "CPU")
lib.define("forge(Tensor x, str what) -> ()")
lib.impl("forge", forge, "CPU")
"""
RIGHT = """
import signal

read_shared = accelerator.read_shared


def read_and_kill(memory, *args):
    found = read_shared(memory, *args)
    os.kill(int(memory.handle.split(b"/")[2]), signal.SIGKILL)
    return found


def kill(x):
    accelerator.read_shared = read_and_kill


lib = Library("right", "DEF")
lib.define("add(Tensor x, Tensor y) -> Tensor")
lib.impl("add", lambda x, y: x + y, "PrivateUse1")
lib.define("counted(Tensor x) -> (int, int, int)")
lib.impl("counted", counted, "CPU")
lib.define("kill(Tensor x) -> ()")
lib.impl("kill", kill, "CPU")
"""


@pytest.fixture(scope="module")
def shared_daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningDaemon]:
    daemon = RunningDaemon(tmp_path_factory.mktemp("devices"), "--heartbeat", "0.1")
    try:
        daemon.wait_until_ready()
        yield daemon
    finally:
        daemon.clean_up()


def load_both(daemon: RunningDaemon, write_library: WriteLibrary) -> RunningDaemon:
    """Its two interpreters have a library each then, and the device."""
    with daemon.connect() as session:
        session.load(write_library("left", ACCELERATOR + LEFT), interpreter="worker-1")
        session.load(write_library("right", ACCELERATOR + RIGHT), interpreter="worker-2")
    return daemon


@pytest.fixture
def two(lent_daemon: RunningDaemon, write_library: WriteLibrary) -> RunningDaemon:
    return load_both(lent_daemon, write_library)


def shown(session: oc.Session) -> DeviceTransfers:
    """Return the copies that worker-2 reported with its last heartbeat."""
    found = {each.name: each.transfers for each in session.interpreters()}
    return found["worker-2"].get(DEVICE, DeviceTransfers(0, 0))


def test_a_value_is_copied_from_device_memory_to_device_memory(
    two: RunningDaemon, accelerator: Accelerator
):
    with two.connect() as session:
        before = shown(session)
        kept = session.put(accelerator.from_host(X, DEVICE), on="worker-1")
        made = session.call("left::make", kept, remote=True)
        assert session.ops.left.counted(X) == (48, 0, 0)
        total = session.call("right::add", made, made, remote=True)
        assert session.ops.left.counted(X) == (48, 0, 0)
        assert session.ops.right.counted(X) == (0, 0, 48)
        np.testing.assert_array_equal(total.numpy(), 2 * X)
        assert total.device == DEVICE

        expected = DeviceTransfers(
            before.to_device, before.from_device + 48, before.from_peers + 48
        )
        assert wait_for(lambda: shown(session) == expected)


@pytest.mark.parametrize("what", ["nothing", "all"])
def test_a_copy_for_another_device_of_the_kind_is_read_where_it_is(
    two: RunningDaemon, accelerator: Accelerator, what: str
):
    """As from one GPU to another one, where each interpreter has one of its own."""
    with (
        two.connect() as session,
        grpc.insecure_channel(grpc_target(two.address)) as channel,
    ):
        session.ops.left.forge(X, what)
        kept = session.put(accelerator.from_host(X, DEVICE), on="worker-1")
        request = execution_pb2.CallRequest(program=KEPT)
        fill_value(request.args.add(), kept, at="$")
        keep = request.keep
        keep.session, keep.prefix = request.args[0].remote.session, bytes(12)
        keep.on, keep.device = "worker-2", "privateuseone:0"
        stub = execution_pb2_grpc.ExecutionServiceStub(channel)
        made = stub.Call(request).returns[0].remote
        assert (made.device, made.interpreter) == ("privateuseone:0", "worker-2")
        there = (0, 48, 48) if what == "nothing" else (48, 48, 0)
        assert session.ops.right.counted(X) == there
        made.session = keep.session
        fetched = execution_pb2.CallRequest(program=TRANSFER)
        fetched.args.add().remote.CopyFrom(made)
        assert stub.Call(fetched).returns[0].tensor.data == X.tobytes()
        np.testing.assert_array_equal(kept.numpy(), X)


@pytest.mark.parametrize("what", ["the handle", "the place", "all"])
def test_unreadable_device_memory_is_copied_through_the_host(
    two: RunningDaemon, accelerator: Accelerator, what: str
):
    with two.connect() as session:
        session.ops.left.forge(X, what)
        kept = session.put(accelerator.from_host(X, DEVICE), on="worker-1")
        total = session.call("right::add", kept, kept, remote=True)
        assert session.ops.right.counted(X) == (48, 0, 0)
        np.testing.assert_array_equal(total.numpy(), 2 * X)


def test_a_size_that_is_made_up_is_an_error_and_the_value_stays(
    two: RunningDaemon, accelerator: Accelerator
):
    with two.connect() as session:
        session.ops.left.forge(X, "the size")
        kept = session.put(accelerator.from_host(X, DEVICE), on="worker-1")
        with pytest.raises(oc.WireError, match=r"shares 1099511627776 bytes on .*; expected 48"):
            session.call("right::add", kept, kept)
        np.testing.assert_array_equal(kept.numpy(), X)
        session.ops.left.forge(X, "nothing")
        total = session.call("right::add", kept, kept, remote=True)
        assert session.ops.right.counted(X) == (0, 0, 48)
        np.testing.assert_array_equal(total.numpy(), 2 * X)


def test_a_copy_whose_owner_died_before_it_was_said_to_be_right_is_not_used(
    daemon: RunningDaemon, write_library: WriteLibrary, accelerator: Accelerator
):
    daemon.expects_errors = True
    with load_both(daemon, write_library).connect() as session:
        kept = session.put(accelerator.from_host(X, DEVICE), on="worker-1")
        session.ops.right.kill(X)
        with pytest.raises(oc.RemoteValueGoneError):
            session.call("right::add", kept, kept)
        other = session.put(accelerator.from_host(X, DEVICE), on="worker-2")
        total = session.call("right::add", other, other, remote=True)
        np.testing.assert_array_equal(total.numpy(), 2 * X)


def test_clients_never_receive_device_memory_handles(two: RunningDaemon, accelerator: Accelerator):
    with (
        two.connect() as session,
        grpc.insecure_channel(grpc_target(two.address)) as channel,
    ):
        kept = session.put(accelerator.from_host(X, DEVICE), on="worker-1")
        stub = execution_pb2_grpc.ExecutionServiceStub(channel)
        request = execution_pb2.CallRequest(program=TRANSFER, device_memory=b"accelerator 1")
        fill_value(request.args.add(), kept, at="$")
        tensor = stub.Call(request).returns[0].tensor
        assert not tensor.HasField("device_memory")
        assert tensor.data == X.tobytes()
        with pytest.raises(grpc.RpcError) as caught:
            stub.Call(execution_pb2.CallRequest(adopt=True, device_lease=bytes(16)))
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
