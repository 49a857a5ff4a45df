"""Kernels on a GPU, in interpreters of a real daemon."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import opdispatch_client as oc
from opdispatch import DeviceTransfers
from tests.gpu.kernels import CONTEXTS, FAULTS, SLOW, VECTORS
from tests.service.conftest import StartDaemon, WriteLibrary
from tests.service.running_daemon import wait_for

pytestmark = pytest.mark.gpu

X = np.arange(1000, dtype=np.float32)
HERE = "cuda:0"


def moved(session: oc.Session, interpreter: str) -> DeviceTransfers:
    """Return an interpreter's copies to and from its first GPU, as of its last heartbeat."""
    found = next(each for each in session.interpreters() if each.name == interpreter)
    return found.transfers.get(HERE, DeviceTransfers())


def test_libraries_go_to_the_interpreter_with_the_gpu(
    start_daemon: StartDaemon, write_library: WriteLibrary
):
    with start_daemon(workers="cpu:1,cuda:0").connect() as session:
        devices = {each.name: each.devices for each in session.interpreters()}
        assert devices == {"worker-1": ("cpu",), "worker-2": ("cpu", HERE)}
        session.load(write_library("vectors", VECTORS), on="cuda")
        x = session.call("vectors::up", X, remote=True)
        assert (x.device, x.interpreter) == (HERE, "worker-2")
        np.testing.assert_array_equal(
            session.call("vectors::add", x, x, remote=True).numpy(), 2 * X
        )


@pytest.mark.parametrize(("workers", "has_one"), [("1", False), ("cpu:1", False), (HERE, True)])
def test_only_interpreters_that_use_a_gpu_take_memory_of_it(
    start_daemon: StartDaemon, write_library: WriteLibrary, workers: str, has_one: bool
):
    with start_daemon(workers=workers).connect() as session:
        session.load(write_library("contexts", CONTEXTS))
        for _ in range(3):
            assert session.call("contexts::has_context", X) is has_one
        if workers == "1":  # which may use it
            session.load(write_library("vectors", VECTORS))
            assert session.call("vectors::up", X, remote=True).device == HERE
            assert session.call("contexts::has_context", X)


def test_kernels_of_cupy_and_of_cuda_calculate(
    start_daemon: StartDaemon, write_library: WriteLibrary, cupy: Any
):
    with start_daemon(workers=HERE).connect() as session:
        session.load(write_library("vectors", VECTORS))
        x = session.call("vectors::up", X, remote=True)
        y = session.call("vectors::saxpy", 2.0, x, x, remote=True)
        np.testing.assert_array_equal(y.numpy(), 3 * X)
        session.call("vectors::scale_", y, 2.0)
        np.testing.assert_array_equal(y.numpy(), 6 * X)
        with session.program() as p:
            p.output(p.ops.vectors.add(p.ops.vectors.saxpy(0.5, x, y), x), remote=True)
        np.testing.assert_array_equal(p.result.numpy(), 0.5 * X + 6 * X + X)
        ours = cupy.asarray(X)  # a client that has CuPy sends and gets its arrays
        result = session.call("vectors::add", ours, ours)
        assert isinstance(result, cupy.ndarray)
        np.testing.assert_array_equal(result.get(), 2 * X)


def test_a_call_on_tensors_that_are_on_the_gpu_moves_nothing_to_the_host_and_back(
    start_daemon: StartDaemon, write_library: WriteLibrary
):
    with start_daemon(workers=HERE).connect() as session:
        session.load(write_library("vectors", VECTORS))
        x = session.call("vectors::up", X, remote=True)
        y = x
        for _ in range(10):
            y = session.call("vectors::add", y, x, remote=True)
            session.call("vectors::scale_", y, 0.5)
        y.numpy()
        # Reading is the last that it has done, and all that there is.
        assert wait_for(lambda: moved(session, "worker-1").from_device)
        assert moved(session, "worker-1") == DeviceTransfers(0, X.nbytes)


@pytest.mark.parametrize("kernel", ["slow", "on_a_stream", "left_behind", "waited_for"])
def test_results_are_complete_when_they_are_read(
    start_daemon: StartDaemon, write_library: WriteLibrary, kernel: str
):
    with start_daemon(workers=HERE).connect() as session:
        session.load(write_library("vectors", VECTORS))
        session.load(write_library("slow", SLOW))
        x = session.call("vectors::up", X[:10], remote=True)
        y = session.call(f"slow::{kernel}", x, remote=True)
        np.testing.assert_array_equal(y.numpy(), X[:10] + 1)
        # Used by the next kernel, in whichever thread that runs.
        chain = session.call(f"slow::{kernel}", y, remote=True)
        total = session.call("vectors::add", chain, y, remote=True)
        np.testing.assert_array_equal(total.numpy(), 2 * X[:10] + 3)

        def call(number: int) -> bool:
            z = session.call(f"slow::{kernel}", x, remote=True)
            sent = session.call("vectors::add", z, z, remote=True)
            return bool((sent.numpy() == 2 * X[:10] + 2).all())

        with ThreadPoolExecutor(4) as threads:
            assert all(threads.map(call, range(8)))


def test_a_value_moves_to_another_interpreter_on_the_gpu_itself(
    start_daemon: StartDaemon, write_library: WriteLibrary
):
    daemon = start_daemon(workers=f"{HERE},{HERE}")
    with daemon.connect() as session:
        session.load(write_library("vectors", VECTORS), interpreter="worker-1")
        session.load(write_library("slow", SLOW), interpreter="worker-2")
        x = session.call("vectors::up", X, remote=True)
        many = [session.call("vectors::add", x, x, remote=True) for _ in range(5)]
        there = [session.call("slow::slow", each, remote=True) for each in many]
        assert {each.interpreter for each in there} == {"worker-2"}
        for each in there:
            np.testing.assert_array_equal(each.numpy(), 2 * X + 1)
        expected = DeviceTransfers(0, 5 * X.nbytes, 5 * X.nbytes)
        assert wait_for(lambda: moved(session, "worker-2") == expected)
        assert moved(session, "worker-1") == DeviceTransfers()


def test_a_value_moves_to_the_gpu_and_back(start_daemon: StartDaemon):
    """From an interpreter without one, and then within the one that has it; not by the client."""
    with start_daemon(workers="cpu:1,cuda:0").connect() as session:
        session.load("opdispatch.array_library", interpreters=2)
        x = session.put(X, on="worker-1")
        there = x.to(HERE)
        assert (there.device, there.interpreter) == (HERE, "worker-2")
        assert (x.device, x.interpreter) == ("cpu", "worker-1")
        back = (there + 1.0).to_device("cpu")
        assert (back.device, back.interpreter) == ("cpu", "worker-2")
        np.testing.assert_array_equal(back.numpy(), X + 1)
        with pytest.raises(oc.DeviceError, match="cuda:9"):
            x.to("cuda:9")


def test_kernel_out_of_device_memory_changes_nothing(
    start_daemon: StartDaemon, write_library: WriteLibrary
):
    with start_daemon(workers=HERE).connect() as session:
        session.load(write_library("vectors", VECTORS))
        session.load(write_library("faults", FAULTS))
        x = session.call("vectors::up", X, remote=True)
        with pytest.raises(oc.DeviceMemoryError, match="the kernel of faults::huge") as caught:
            session.call("faults::huge", x)
        facts = caught.value.facts
        assert int(facts["asked"]) >= 1 << 48
        assert int(facts["total"]) > int(facts["free"]) > 0
        np.testing.assert_array_equal(x.numpy(), X)


def test_a_kernel_that_does_not_compile_is_the_kernels_error(
    start_daemon: StartDaemon, write_library: WriteLibrary
):
    with start_daemon(workers=HERE).connect() as session:
        session.load(write_library("vectors", VECTORS))
        session.load(write_library("faults", FAULTS))
        x = session.call("vectors::up", X, remote=True)
        with pytest.raises(oc.KernelError, match="CompileException"):
            session.call("faults::wrong", x)
        np.testing.assert_array_equal(x.numpy(), X)


@pytest.mark.parametrize("waits", [True, False])
def test_an_interpreter_whose_gpu_is_lost_is_replaced(
    start_daemon: StartDaemon, write_library: WriteLibrary, waits: bool
):
    daemon = start_daemon(workers=HERE)
    daemon.expects_errors = True
    with daemon.connect() as session:
        session.load(write_library("vectors", VECTORS))
        session.load(write_library("faults", FAULTS))
        x = session.call("vectors::up", X, remote=True)
        with pytest.raises(oc.DeviceLostError, match=f"{HERE} has failed"):
            # Not waited for, it is found when the result is read.
            session.call("faults::wild", x, waits, remote=True).numpy()
        assert wait_for(lambda: [each.restarts for each in session.interpreters()] == [1])
        assert wait_for(lambda: all(each.active for each in session.libraries()))
        y = session.call("vectors::up", X, remote=True)
        np.testing.assert_array_equal(
            session.call("vectors::add", y, y, remote=True).numpy(), 2 * X
        )


def test_the_library_array_calculates_there(start_daemon: StartDaemon, write_library: WriteLibrary):
    """All of its functions are compared in `tests/unit/test_array_api.py`."""
    with start_daemon(workers=HERE).connect() as session:
        session.load(write_library("vectors", VECTORS))
        session.load("opdispatch.array_library")
        x = session.call("vectors::up", X.reshape(10, 100), remote=True)
        mean = session.call("array::mean", x, axis=0, remote=True)
        np.testing.assert_allclose(mean.numpy(), X.reshape(10, 100).mean(0), rtol=1e-6)
        made = session.call("array::zeros", [3], device=HERE, remote=True)
        assert made.device == HERE
