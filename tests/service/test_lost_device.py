"""Devices that are full, or fail: the errors of callers, and the fate of the interpreter."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import opdispatch_client as oc
from tests import simulated_accelerator
from tests.service.conftest import StartDaemon, WriteLibrary
from tests.service.running_daemon import RunningDaemon, wait_for
from tests.service.test_interpreters import worker
from tests.waits import LONGEST_WAIT

X = np.arange(6.0)
LIBRARY = (
    Path(simulated_accelerator.__file__).read_text()
    + """

from opdispatch import Library, register_backend

accelerator = Accelerator()
register_backend(accelerator)

def fill(x):
    raise AcceleratorFullError("48 bytes")

def hoard(x):
    return np.zeros((2**30, 2**25))

def fail(x):
    raise AcceleratorFaultError("an illegal address")

def fall_off(x):
    accelerator.has_failed = True
    return accelerator.from_host(x, "privateuseone:0")

lib = Library("dev", "DEF")
for kernel in (fill, hoard, fail, fall_off):
    lib.define(f"{kernel.__name__}(Tensor x) -> Tensor")
    lib.impl(kernel.__name__, kernel, "CPU")
lib.define("calm(Tensor x) -> Tensor")
lib.impl("calm", lambda x: x + 1, "CPU")
"""
)


@pytest.fixture
def dev(start_daemon: StartDaemon, write_library: WriteLibrary) -> RunningDaemon:
    """A daemon with one interpreter, which has a device and kernels that overtax it."""
    daemon = start_daemon(workers=1)
    daemon.expects_errors = True
    with daemon.connect() as session:
        session.load(write_library("dev", LIBRARY))
    return daemon


def restarts(session: oc.Session) -> int:
    return sum(each.restarts for each in session.interpreters())


def is_back(session: oc.Session, restarted: int) -> bool:
    return restarts(session) == restarted and session.libraries()[0].state == "active"


def test_a_kernel_for_which_there_is_no_room_is_the_devices_error_and_changes_nothing(
    dev: RunningDaemon,
):
    with dev.connect() as session:
        with pytest.raises(
            oc.DeviceMemoryError, match=r"the kernel of dev::fill in .* failed: the acc"
        ):
            session.ops.dev.fill(X)
        with pytest.raises(oc.DeviceMemoryError) as caught, session.program() as p:
            p.output(p.ops.dev.fill(p.ops.dev.calm(X)))
        facts = caught.value.facts
        assert (facts["step"], facts["asked"], facts["free"]) == ("1", "48", "7")
        assert "AcceleratorFullError" in facts["traceback"]
        np.testing.assert_array_equal(session.ops.dev.calm(X), X + 1)
        assert restarts(session) == 0


def test_kernel_out_of_host_memory_raises_device_memory_error(dev: RunningDaemon):
    with dev.connect() as session:
        with pytest.raises(
            oc.DeviceMemoryError,
            match=r"dev::hoard in .* failed: there is no room on 'cpu' \(Unable",
        ) as caught:
            session.ops.dev.hoard(X)
        assert (caught.value.facts["device"], caught.value.facts["asked"]) == ("cpu", str(2**58))
        np.testing.assert_array_equal(session.ops.dev.calm(X), X + 1)


@pytest.mark.parametrize("lane", ["local", "stream", "grpc"])
def test_an_interpreter_that_has_lost_its_device_tells_its_caller_and_is_replaced(
    dev: RunningDaemon, lane: str
):
    with dev.connect(lane=lane) as session:
        with pytest.raises(oc.DeviceLostError, match="the accelerator has failed: an illegal addr"):
            session.ops.dev.fail(X)
        assert wait_for(lambda: is_back(session, 1))
        np.testing.assert_array_equal(session.ops.dev.calm(X), X + 1)
        with pytest.raises(oc.DeviceLostError, match="has fallen off"), session.program() as p:
            p.output(p.ops.dev.fall_off(X))
        assert wait_for(lambda: is_back(session, 2))
        np.testing.assert_array_equal(session.ops.dev.calm(X), X + 1)
    assert "the accelerator has failed: an illegal address" in dev.log()


def test_starter_of_such_an_interpreter_learns_why_it_ends(
    start_daemon: StartDaemon, write_library: WriteLibrary
):
    daemon = start_daemon(workers=0)
    with daemon.connect() as session, worker(daemon) as process:
        assert wait_for(session.interpreters)
        session.load(write_library("dev", LIBRARY))
        with pytest.raises(oc.DeviceLostError):
            session.ops.dev.fail(X)
        _, errors = process.communicate(timeout=LONGEST_WAIT)
    assert process.returncode == 1
    assert b"the accelerator has failed" in errors


def test_no_room_in_another_interpreter_is_that_of_the_kernel_that_called_it(
    start_daemon: StartDaemon, write_library: WriteLibrary
):
    daemon = start_daemon(workers=2)
    daemon.expects_errors = True
    outer = """\
from opdispatch import Library, ops

lib = Library("outer", "DEF")
lib.define("fill(Tensor x) -> Tensor")
lib.impl("fill", lambda x: ops.dev.fill(x), "CPU")
"""
    with daemon.connect() as session:
        session.load(write_library("dev", LIBRARY), on="worker-1")
        session.load(write_library("outer", outer), on="worker-2")
        with pytest.raises(oc.DeviceMemoryError, match=r"outer::fill in .* failed: .*dev::fill"):
            session.ops.outer.fill(X)
