"""Remote tensors are moved to other devices, wherever these are, and not by way of the client."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import array_api_compat
import grpc
import numpy as np
import pytest

import opdispatch_client as oc
from opdispatch import Tensor, nested_tensor, no_grad, quantize_per_tensor, trace
from opdispatch import array_api as xp
from opdispatch.errors import ArgumentError, DeviceError
from opdispatch_server.worker.values.peers import TRANSFER
from opdispatch_wire.addresses import grpc_target
from opdispatch_wire.v1 import execution_pb2, execution_pb2_grpc, remote_pb2
from opdispatch_wire.values import fill_value
from tests import simulated_accelerator
from tests.service.conftest import StartDaemon, WriteLibrary
from tests.service.remote import kept
from tests.service.running_daemon import RunningDaemon, wait_for
from tests.service.test_remote_lifetimes import FAR, pid_of

X = np.arange(6.0).reshape(2, 3)
WITHOUT_GPU = "cpu:2"  # be there one or not
_ACCELERATOR = Path(simulated_accelerator.__file__).read_text()


def accelerator_library(namespace: str, device_type: str, key: str) -> str:
    """A library with the accelerator, as the devices of that type."""
    text = _ACCELERATOR.replace('"privateuseone"', repr(device_type)).replace("PrivateUse1", key)
    return f"""{text}
from opdispatch import Library, register_backend

accelerator = Accelerator()
register_backend(accelerator)
lib = Library({namespace!r}, "DEF")
lib.define("add_(Tensor(a!) x, Tensor y) -> Tensor(a!)")
lib.define("transfers(Tensor x) -> (int, int)")
lib.impl("add_", lambda x, y: x.__iadd__(y), {key!r})
lib.impl("transfers", lambda x: (accelerator.uploads, accelerator.downloads), "CPU")
"""


ACC = accelerator_library("acc", "privateuseone", "PrivateUse1")
OTHER = accelerator_library("other", "xpu", "XPU")


@pytest.fixture(scope="module")
def shared_daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningDaemon]:
    """Of its two interpreters, the first has one kind of accelerator, the second another one."""
    daemon = RunningDaemon(tmp_path_factory.mktemp("moves"), workers=WITHOUT_GPU)
    try:
        daemon.wait_until_ready()
        load_both(daemon)
        yield daemon
    finally:
        daemon.clean_up()


def load_both(daemon: RunningDaemon) -> None:
    with daemon.connect() as session:
        for name, text, worker in (("acc", ACC, "worker-1"), ("other", OTHER, "worker-2")):
            path = daemon.folder / f"{name}.py"
            path.write_text(text)
            session.load(path, on=worker)


def test_tensor_moves_to_a_device_of_its_interpreter_and_back(shared: oc.Session):
    """This client knows of no such device: it could not even get the elements."""
    x = shared.put(X, on="worker-1")
    before = shared.ops.acc.transfers(X)
    there = x.to_device("privateuseone:1")
    assert isinstance(there, oc.RemoteTensor)
    assert (there.device, there.interpreter) == ("privateuseone:1", "worker-1")
    assert (there.shape, there.dtype, there.nbytes) == (x.shape, x.dtype, x.nbytes)
    uploads, downloads = before
    assert shared.ops.acc.transfers(X) == (uploads + 1, downloads)
    shared.call("acc::add_", there, there)
    back = there.to("cpu")
    assert (back.device, back.interpreter) == ("cpu", "worker-1")
    assert shared.ops.acc.transfers(X) == (uploads + 1, downloads + 1)
    np.testing.assert_array_equal(back.numpy(), 2 * X)
    np.testing.assert_array_equal(x.numpy(), X)
    assert there.to_device("privateuseone:0").device == "privateuseone:0"
    assert there.to_device("privateuseone").device == "privateuseone:1"


def test_move_to_the_same_device_returns_the_tensor_itself(shared: oc.Session):
    x = shared.put(X, on="worker-1")
    there = x.to("privateuseone")
    assert x.to_device("cpu") is x
    assert x.to("cpu:0") is x
    assert x.cpu() is x
    assert there.cpu().device == "cpu"
    assert there.device == "privateuseone:0"
    for device in ("privateuseone", "privateuseone:0"):
        assert there.to_device(device) is there
    x.close()
    assert there.to("privateuseone") is there


def test_move_to_a_device_of_another_interpreter_keeps_the_original(shared: oc.Session):
    x = shared.put(X, on="worker-2")
    there = x.to_device("privateuseone:1")
    assert (there.device, there.interpreter) == ("privateuseone:1", "worker-1")
    assert (x.device, x.interpreter) == ("cpu", "worker-2")
    assert kept(shared) == {"worker-1": (1, 48), "worker-2": (1, 48)}
    shared.call("acc::add_", there, there)
    np.testing.assert_array_equal(there.numpy(), 2 * X)
    np.testing.assert_array_equal(x.numpy(), X)
    assert shared.check_invariants() == []


def test_neither_interpreter_need_know_the_other_ones_device(shared: oc.Session):
    there = shared.put(X, on="worker-1").to("privateuseone:1")
    beyond = there.to("xpu:1")
    assert (beyond.device, beyond.interpreter) == ("xpu:1", "worker-2")
    shared.call("other::add_", beyond, beyond)
    again = beyond.to("privateuseone:0")
    assert (again.device, again.interpreter) == ("privateuseone:0", "worker-1")
    np.testing.assert_array_equal(again.numpy(), 2 * X)
    assert beyond.to("cpu").interpreter == "worker-2"


@pytest.mark.parametrize("home", ["worker-1", "worker-2"])
def test_other_layouts_and_types_go_as_well(shared: oc.Session, home: str):
    quantized = quantize_per_tensor(X, 0.5, 1, "qint8")
    there = shared.put(quantized, on=home).to("privateuseone:1")
    assert (there.device, there.layout, there.nbytes) == ("privateuseone:1", "strided", 6)
    back = Tensor(there.to("cpu").numpy())
    np.testing.assert_array_equal(back.int_repr(), quantized.int_repr())
    nested = shared.put(nested_tensor([X, X[:1]]), on=home).to("privateuseone:0").to("cpu")
    np.testing.assert_array_equal(Tensor(nested.numpy()).unbind()[1], X[:1])
    for array in (np.array(True), np.zeros((0, 3), np.complex64), np.array(-0.0, "f2")):
        result = shared.put(array, on=home).to("privateuseone:1").numpy()
        assert (result.dtype, result.shape) == (array.dtype, array.shape)
        assert result.tobytes() == array.tobytes()


@pytest.mark.parametrize("home", ["worker-1", "worker-2"])
def test_the_keys_of_a_tensor_are_those_of_the_device(shared: oc.Session, home: str):
    x = shared.put(Tensor(X, requires_grad=True), on=home)
    there = x.to("privateuseone:0")
    assert there.requires_grad
    with no_grad():
        assert not x.to("privateuseone:0").requires_grad
    assert not shared.put(X, on=home).to("privateuseone:0").requires_grad


def test_gradients_go_back_to_where_it_was(shared: oc.Session):
    shared.load("opdispatch.array_library", on="worker-1")
    x = shared.put(Tensor(X, requires_grad=True), on="worker-1")
    y = x.to_device("privateuseone:1")
    z = y.to("cpu")
    gradient, there = shared.grad(xp.sum(z * z), [x, y])
    assert (gradient.device, there.device) == ("cpu", "privateuseone:1")
    np.testing.assert_array_equal(gradient.numpy(), 2 * X)
    np.testing.assert_array_equal(there.numpy(), 2 * X)


def test_from_another_interpreter_it_comes_without_its_history(shared: oc.Session):
    shared.load("opdispatch.array_library", on="worker-1")
    x = shared.put(Tensor(X, requires_grad=True), on="worker-2")
    y = x.to_device("privateuseone:1")
    z = y.to("cpu")
    loss = xp.sum(z * z)
    [there] = shared.grad(loss, y, retain_graph=True)
    np.testing.assert_array_equal(there.numpy(), 2 * X)
    with pytest.raises(oc.KernelError, match="AutogradError"):
        shared.grad(loss, x)


def test_arrays_of_two_interpreters_devices_do_not_meet(shared: oc.Session):
    here, there = shared.put(X, device="privateuseone:0"), shared.put(X, device="xpu:1")
    with pytest.raises(oc.WireError) as caught:
        shared.call("acc::add_", here, there)
    said = str(caught.value)
    assert said.startswith("interpreter worker-1 could not be given what the call uses: ")
    assert (
        f"the remote tensor {there.id}: this process has no backend for arrays on 'xpu:1'" in said
    )
    np.testing.assert_array_equal(here.numpy() + there.numpy(), 2 * X)


def test_the_namespace_of_the_standard_moves_it(shared: oc.Session):
    x = shared.put(X, on="worker-2")
    there = xp.asarray(x, device="privateuseone:1")
    assert (there.device, there.interpreter) == ("privateuseone:1", "worker-1")
    assert xp.asarray(x, device="privateuseone:1", copy=True).device == "privateuseone:1"
    assert xp.asarray(there, device="privateuseone:1", copy=False) is there
    with pytest.raises(ValueError, match="must copy the elements, since the device or the dtype"):
        xp.asarray(there, device="cpu", copy=False)
    assert array_api_compat.to_device(there, "privateuseone:1") is there
    back = array_api_compat.to_device(there, "cpu")
    assert array_api_compat.device(back) == "cpu"
    np.testing.assert_array_equal(back.numpy(), X)


@pytest.mark.parametrize(
    "device", ["cuda:0", "cuda", "privateuseone2", "gpu", "meta", "privateuseone:-1"]
)
def test_unknown_device_is_an_error_that_lists_the_known_ones(shared: oc.Session, device: str):
    x = shared.put(X)
    with pytest.raises(DeviceError) as caught:
        x.to_device(device)
    message = caught.value.message
    assert repr(device) in message
    assert message.endswith("connected: worker-1 (cpu, privateuseone), worker-2 (cpu, xpu)"), (
        message
    )
    np.testing.assert_array_equal(x.numpy(), X)
    assert kept(shared) == {x.interpreter: (1, 48)}


def test_a_number_that_the_device_has_not_is_an_error_that_says_how_many(shared: oc.Session):
    for home in ("worker-1", "worker-2"):
        x = shared.put(X, on=home)
        with pytest.raises(DeviceError, match="no 'privateuseone:7': this machine has 2 of them"):
            x.to_device("privateuseone:7")
        np.testing.assert_array_equal(x.numpy(), X)
        x.close()
    assert wait_for(lambda: not kept(shared))


def test_an_array_is_put_on_a_device_at_once(shared: oc.Session):
    x = shared.put(X, device="privateuseone:1")
    assert (x.device, x.interpreter) == ("privateuseone:1", "worker-1")
    np.testing.assert_array_equal(x.to("cpu").numpy(), X)
    assert shared.put(X, "worker-2", device="xpu").device == "xpu:0"
    assert shared.put(X, device="cpu").device == "cpu"
    with pytest.raises(DeviceError, match="no interpreter has the device 'cuda:0'"):
        shared.put(X, device="cuda:0")
    with pytest.raises(DeviceError, match="xpu"):
        shared.put(X, "worker-1", device="xpu")


def test_leaf_put_on_a_device_gets_its_gradient_there(shared: oc.Session):
    shared.load("opdispatch.array_library", on="worker-1")
    x = shared.put(Tensor(X, requires_grad=True), "worker-1", device="privateuseone:1")
    assert x.requires_grad
    z = x.to("cpu")
    [gradient] = shared.grad(xp.sum(z * z), [x])
    assert gradient.device == "privateuseone:1"
    np.testing.assert_array_equal(gradient.numpy(), 2 * X)


def test_unknown_devices_and_streams_are_refused(shared: oc.Session):
    x = shared.put(X)
    with pytest.raises(ArgumentError, match="to_device takes no stream"):
        x.to_device("privateuseone:1", stream=3)
    for device in (7, None, ""):
        with pytest.raises(DeviceError, match=f"there is no device {device!r}; expected one such"):
            x.to_device(device)  # type: ignore[arg-type]
    x.close()
    with pytest.raises(oc.RemoteValueGoneError, match="it was closed"):
        x.to_device("privateuseone:1")


def test_a_program_refuses_it_of_what_is_not_there_yet(shared: oc.Session):
    @shared.as_program
    def moved(x: Any) -> Any:
        return x.to_device("privateuseone:1")

    with pytest.raises(ArgumentError, match=r"cannot be moved to 'privateuseone:1' within a pro"):
        moved(X)
    with (
        pytest.raises(ArgumentError, match="cannot be moved to 'cpu' within a program"),
        shared.program() as p,
    ):
        p.ops.acc.add_(X, X).to("cpu")


def test_a_trace_records_it(shared: oc.Session):
    shared.load("opdispatch.array_library", on="worker-1")
    x = shared.put(X, on="worker-1")
    graph = trace(lambda x: x.to_device("privateuseone:1"), x)
    assert "array::astype(%x, " in str(graph)
    assert "device='privateuseone:1'" in str(graph)
    there = shared.as_program(graph, remote=True)(x)
    assert there.device == "privateuseone:1"
    np.testing.assert_array_equal(there.numpy(), X)


async def test_an_asyncio_session_puts_on_a_device(lent_daemon: RunningDaemon):
    async with oc.aio.connect(lent_daemon.address) as session:
        x = await session.put(X, device="xpu")
        assert (x.device, x.interpreter) == ("xpu:0", "worker-2")


async def test_an_asyncio_session_moves_it(lent_daemon: RunningDaemon):
    async with oc.aio.connect(lent_daemon.address) as session:
        x = await session.put(X, on="worker-2")
        there = await x.to_device("privateuseone:1")
        assert (there.device, there.interpreter) == ("privateuseone:1", "worker-1")
        back = await there.to("cpu")
        np.testing.assert_array_equal(await back.numpy(), X)
        assert await x.to("cpu") is x
        with pytest.raises(DeviceError, match="no interpreter has the device 'cuda:0'"):
            await x.to("cuda:0")
        with pytest.raises(ArgumentError, match="takes no stream"):
            await x.to_device("cpu", stream=1)


def test_the_limits_of_a_session_hold(start_daemon: StartDaemon, write_library: WriteLibrary):
    with start_daemon("--remote-bytes", "80", workers=1).connect() as session:
        session.load(write_library("acc", ACC))
        x = session.put(X)
        with pytest.raises(oc.RemoteLimitError, match="has 48 bytes in remote values"):
            x.to("privateuseone:1")
        assert session.ops.acc.transfers(X) == (0, 0), "it was refused before it was moved"


def test_one_that_is_gone_meanwhile_is_named(daemon: RunningDaemon):
    daemon.expects_errors = True
    load_both(daemon)
    with daemon.connect() as session:
        x = session.put(X, on="worker-2")
        pid = pid_of(session, "worker-2")
        os.kill(pid, signal.SIGSTOP)
        try:
            with pytest.raises(oc.RemoteValueGoneError, match="worker-2"):
                x.to("privateuseone:1")
        finally:
            if pid in daemon.processes():
                os.kill(pid, signal.SIGKILL)
        assert wait_for(lambda: not kept(session))
        assert session.put(X, on="worker-1").to("privateuseone:1").device == "privateuseone:1"
        assert wait_for(lambda: session.check_invariants() == [])


def test_drained_interpreter_receives_no_moved_tensors(start_daemon: StartDaemon):
    daemon = start_daemon(workers=WITHOUT_GPU)
    load_both(daemon)
    with daemon.connect() as session:
        x = session.put(X, on="worker-2")
        session.drain("worker-1")  # its library goes to the other one
        there = x.to("privateuseone:1")
        assert (there.device, there.interpreter) == ("privateuseone:1", "worker-2")
        session.unload("acc")
        with pytest.raises(DeviceError, match=r"worker-1 \(cpu; draining\), worker-2 \(cpu, xpu\)"):
            x.to("privateuseone:0")


def test_move_goes_over_grpc_without_a_local_lane(
    start_daemon: StartDaemon, write_library: WriteLibrary, tmp_path: Path
):
    daemon = start_daemon("--max-message-bytes", str(1 << 20), workers=1)
    command = (sys.executable, "-c", FAR, daemon.address, f"unix:{tmp_path}/far.sock")
    with daemon.connect() as session, subprocess.Popen(command) as far:
        try:
            assert wait_for(lambda: len(session.interpreters()) == 2)
            session.load(write_library("acc", ACC), on="far")
            large = np.arange(400_000.0)
            x = session.put(large, on="worker-1")
            there = x.to("privateuseone:1")
            assert (there.device, there.interpreter) == ("privateuseone:1", "far")
            np.testing.assert_array_equal(there.numpy(), large)
            assert x.interpreter == "worker-1"
        finally:
            far.terminate()


def _sources(request: execution_pb2.CallRequest) -> None:
    source = request.args[0].remote.source
    source.lane = source.address = "unix:/nowhere"
    source.place = 3


def _steps(request: execution_pb2.CallRequest) -> None:
    program = remote_pb2.Program()
    program.steps.add(operator="acc::transfers").args.add().reference.input = 0
    request.program = program.SerializeToString()
    request.keep.device = "cpu"


@pytest.mark.parametrize(
    ("say", "problem"),
    [(_sources, None), (_steps, r"\$\.keep\.device is set for a program with steps")],
)
def test_daemon_ignores_or_refuses_internal_fields_set_by_clients(
    shared: oc.Session, say: Callable[[execution_pb2.CallRequest], None], problem: str | None
):
    with grpc.insecure_channel(grpc_target(shared.address)) as channel:
        x = shared.put(X, on="worker-1")
        stub = execution_pb2_grpc.ExecutionServiceStub(channel)
        request = execution_pb2.CallRequest(program=TRANSFER)
        fill_value(request.args.add(), x, at="$")
        say(request)
        if problem is None:
            assert stub.Call(request).returns[0].tensor.data == X.tobytes()
            return
        request.keep.session, request.keep.prefix = request.args[0].remote.session, bytes(12)
        with pytest.raises(grpc.RpcError, match=problem) as caught:
            stub.Call(request)
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
