"""Tensors of a call on several devices: the error of PyTorch, and numbers that go with any."""

import numpy as np
import pytest

from opdispatch import DeviceError, MetaArray, Tensor
from opdispatch import array_api as xp
from opdispatch.arrays import common_device

META, HOST, NUMBER = MetaArray((2,), "float64"), np.ones(2), np.float64(1)


def test_common_device_is_the_device_of_all_tensors():
    assert common_device("t::f", HOST, 1, [HOST]) == "cpu"
    assert common_device("t::f", META, None, META) == "meta"
    assert common_device("t::f", 1, "text") is None


def test_numbers_of_the_host_go_with_any_device():
    assert common_device("t::f", NUMBER, META) == common_device("t::f", META, [NUMBER]) == "meta"
    assert common_device("t::f", NUMBER, NUMBER) == "cpu"


@pytest.mark.parametrize("values", [(META, HOST), ([META], HOST), (NUMBER, [META, HOST])])
def test_two_devices_are_refused_as_pytorch_refuses_them(values):
    expected = (
        "Expected all tensors to be on the same device, but found at least two devices, meta and "
        r"cpu! \(when checking the arguments of t::f\) \(move one of them with Tensor.to\)"
    )
    with pytest.raises(DeviceError, match=expected):
        common_device("t::f", *values)


def test_a_number_of_a_device_does_not_go_with_the_host():
    with pytest.raises(DeviceError, match="at least two devices, meta and cpu!"):
        common_device("t::f", MetaArray((), "float64"), HOST)


@pytest.mark.parametrize(
    "call",
    [
        lambda x, y: x + y,
        lambda x, y: y @ x,
        lambda x, y: xp.concat([x, y]),
        lambda x, y: xp.where(y > 0, x, 0.0),
        lambda x, y: xp.clip(x, min=y),
        lambda x, y: x.__setitem__(0, y[:1]),
    ],
)
def test_operators_of_the_library_array_refuse_them(call):
    with pytest.raises(DeviceError, match="same device, but found at least two devices"):
        call(Tensor(META), Tensor(HOST))


def test_operators_of_the_library_array_take_numbers_and_indices_of_the_host():
    meta = xp.zeros((3, 2), device="meta")
    assert (meta + xp.asarray(2.0)).device == "meta"
    assert xp.where(xp.asarray(True), meta, 0.0).shape == (3, 2)
    assert meta[np.array([0, 1]), 0].shape == (2,)
