"""Leases of values that another interpreter copies from device memory to device memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from opdispatch import DeviceMemory, Tensor
from opdispatch.errors import DeviceError, DeviceLostError
from opdispatch_server.worker.values import device_exports
from opdispatch_server.worker.values.device_exports import PATIENCE, DeviceExports, find_device_id
from opdispatch_wire.errors import RemoteValueGoneError
from opdispatch_wire.v1 import values_pb2
from tests.simulated_accelerator import Accelerator, AcceleratorArray

X = np.arange(6.0)
HERE = b"accelerator 1"


@pytest.fixture
def now() -> list[float]:
    """The time, which a test may change."""
    return [0.0]


@pytest.fixture
def exports(now: list[float], accelerator: Accelerator) -> DeviceExports:
    return DeviceExports(lambda: now[0])


def offer(exports: DeviceExports, value: object) -> values_pb2.Tensor:
    message = values_pb2.Tensor()
    assert exports.offer(message, value, HERE) == message.HasField("device_memory")
    return message


@pytest.mark.parametrize("wrap", [lambda x: x, Tensor])
def test_offered_memory_is_readable_until_its_lease_ends(
    exports: DeviceExports, accelerator: Accelerator, wrap: Callable[[Any], Any]
):
    there = offer(exports, wrap(AcceleratorArray(X, 1))).device_memory
    memory = DeviceMemory(there.device_id, there.handle, there.offset, there.length)
    copy = accelerator.read_shared(memory, X.shape, X.dtype, "privateuseone:1")
    np.testing.assert_array_equal(accelerator.to_host(copy), X)
    exports.end(there.lease)
    with pytest.raises(DeviceError, match="there is no memory"):
        accelerator.read_shared(memory, X.shape, X.dtype, "privateuseone:1")


def test_late_reader_gets_an_error(exports: DeviceExports, now: list[float]):
    early, late = (offer(exports, AcceleratorArray(X, 1)).device_memory.lease for _ in range(2))
    now[0] = PATIENCE / 2
    exports.end(early)
    with pytest.raises(RemoteValueGoneError):
        exports.end(early)
    now[0] = PATIENCE
    with pytest.raises(RemoteValueGoneError, match="no longer kept: its lease ended after 60"):
        exports.end(late)


def test_readers_that_are_gone_hold_nothing_for_ever(exports: DeviceExports, now: list[float]):
    offer(exports, AcceleratorArray(X, 1))
    now[0] = PATIENCE - 1
    exports.drop_expired()
    assert len(exports) == 1
    now[0] = PATIENCE
    exports.drop_expired()
    assert len(exports) == 0


def test_there_are_so_many_leases_and_no_more(
    exports: DeviceExports, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(device_exports, "MOST_LEASES", 2)
    offered = [offer(exports, AcceleratorArray(X, 1)) for _ in range(3)]
    assert [each.HasField("device_memory") for each in offered] == [True, True, False]
    exports.end(offered[0].device_memory.lease)
    assert offer(exports, AcceleratorArray(X, 1)).HasField("device_memory")


def test_unreachable_memory_is_not_offered(
    exports: DeviceExports, accelerator: Accelerator, monkeypatch: pytest.MonkeyPatch
):
    for value in (AcceleratorArray(X, 0), X, 3):
        assert not offer(exports, value).HasField("device_memory")
    monkeypatch.setattr(accelerator, "share", lambda array: None)
    assert not offer(exports, AcceleratorArray(X, 1)).HasField("device_memory")

    def refuse(array: object) -> None:
        raise DeviceError("not that memory")

    monkeypatch.setattr(accelerator, "share", refuse)
    assert not offer(exports, AcceleratorArray(X, 1)).HasField("device_memory")
    assert len(exports) == 0


def test_a_device_that_is_lost_is_no_reason_to_go_another_way(
    exports: DeviceExports, accelerator: Accelerator, monkeypatch: pytest.MonkeyPatch
):
    def fail(array: object) -> None:
        raise DeviceLostError("it has fallen off")

    monkeypatch.setattr(accelerator, "share", fail)
    with pytest.raises(DeviceLostError):
        offer(exports, AcceleratorArray(X, 1))


def test_devices_that_are_not_shared_have_no_identity(accelerator: Accelerator):
    names = ("", "cpu", "xpu:0", "privateuseone:7", "toaster")
    assert {find_device_id(name) for name in names} == {b""}
    assert find_device_id("privateuseone:0") == b"accelerator 0"
