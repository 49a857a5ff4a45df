"""Arrays of other libraries, which arrive by DLPack."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import numpy as np
import pytest

from opdispatch import Tensor
from opdispatch.arrays import adopt, find_backend
from opdispatch.errors import DeviceError
from opdispatch_wire.errors import WireError
from opdispatch_wire.tensors import tensor_from_proto, tensor_to_proto

X = np.arange(6.0).reshape(2, 3)


class Foreign:
    """Another library's array, that says where it is."""

    def __init__(self, device: tuple[int, int], array: np.ndarray | None = None) -> None:
        self._device, self._array = device, array
        self.is_used = False

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._device

    def __dlpack__(self, **kwargs: object) -> object:
        if self._array is None or self.is_used:
            raise BufferError("the capsule was used already")
        self.is_used = True
        return self._array.__dlpack__(**kwargs)  # type: ignore[arg-type]


def test_a_foreign_array_is_adopted_where_it_is():
    x = np.arange(4.0)
    tensor = Tensor(Foreign((1, 0), x))
    assert np.shares_memory(tensor.array, x)
    assert tensor.device == "cpu"
    assert find_backend(Foreign) is None


def test_a_foreign_array_that_does_not_give_its_elements_is_an_error(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setitem(sys.modules, "cupy", None)
    used = Foreign((1, 0), X)
    adopt(used)
    with pytest.raises(DeviceError, match=r"Foreign cannot .* the capsule was used already"):
        adopt(used)
    with pytest.raises(DeviceError, match=r"is on DLPack device 9:1, which no backend"):
        adopt(Foreign((9, 1)))
    with pytest.raises(DeviceError, match="this process has no CuPy"):
        adopt(Foreign((2, 0)))
    with pytest.raises(DeviceError, match="cannot be imported by __dlpack__"):
        adopt(SimpleNamespace())
    for nowhere in (("cpu", 0), (None, 0), (1,)):
        with pytest.raises(DeviceError, match="cannot be imported by __dlpack__"):
            adopt(Foreign(nowhere, X))  # type: ignore[arg-type]
    with pytest.raises(WireError, match=r"\$: .* the capsule was used already"):
        tensor_to_proto(used)


@pytest.mark.parametrize("given", ["a capsule that was used", "no capsule"])
def test_a_capsule_can_be_used_once(given: str):
    capsule: object = X.__dlpack__()
    if given == "no capsule":
        capsule = "dltensor"

    class Keeper:
        def __dlpack_device__(self) -> tuple[int, int]:
            return (1, 0)

        def __dlpack__(self, **kwargs: object) -> object:
            return capsule

    if given == "a capsule that was used":
        np.testing.assert_array_equal(Tensor(Keeper()).array, X)
    with pytest.raises(DeviceError, match=r"Keeper .* returned no DLPack capsule, or one"):
        Tensor(Keeper())


def test_a_foreign_array_of_negatives_that_are_not_computed_is_refused():
    """PyTorch's has the elements as they are stored, and DLPack no word for it."""
    array = Foreign((1, 0), X)
    array.is_neg = lambda: True  # type: ignore[attr-defined]
    with pytest.raises(DeviceError, match=r"has the negative bit set.*resolve_neg\(\)"):
        Tensor(array)


def test_arrays_of_pytorch_arrive_by_dlpack():
    torch = pytest.importorskip("torch")
    x = torch.arange(4.0)
    tensor = Tensor(x)
    tensor.array[0] = 7.0
    assert x[0] == 7.0
    np.testing.assert_array_equal(tensor_from_proto(tensor_to_proto(x)), x.numpy())


@pytest.mark.parametrize("name", ["bfloat16", "float8_e4m3fn", "float8_e5m2"])
def test_short_numbers_of_pytorch_arrive_and_go_by_dlpack(name: str):
    torch = pytest.importorskip("torch")
    x = torch.arange(6.0).reshape(2, 3).to(getattr(torch, name)).T
    tensor = Tensor(x)
    assert (tensor.dtype.name, tensor.shape) == (name, (3, 2))
    assert tensor.array.astype(np.float32).tolist() == x.float().tolist()
    assert tensor_from_proto(tensor_to_proto(x)).tobytes() == tensor.array.tobytes()
    back = torch.from_dlpack(tensor)
    assert (back.dtype, back.data_ptr()) == (x.dtype, x.data_ptr())


def test_arrays_of_jax_arrive_by_dlpack():
    jnp = pytest.importorskip("jax.numpy")
    x = jnp.arange(4.0)
    tensor = Tensor(x)
    assert not tensor.array.flags.writeable
    np.testing.assert_array_equal(tensor.array, x)
    np.testing.assert_array_equal(tensor_from_proto(tensor_to_proto(x)), np.arange(4.0))


@pytest.mark.parametrize("name", ["bfloat16", "float8_e4m3fn", "float8_e5m2"])
def test_short_numbers_of_jax_arrive_and_go_by_dlpack(name: str):
    jnp = pytest.importorskip("jax.numpy")
    x = jnp.arange(4.0).astype(getattr(jnp, name))
    tensor = Tensor(x)
    assert tensor.dtype.name == name
    assert tensor.tolist() == [0, 1, 2, 3]
    assert jnp.from_dlpack(Tensor(tensor.array.copy())).dtype == x.dtype
