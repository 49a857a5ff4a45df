"""Types that count as tensors: plain arrays, and types that carry their keys."""

import numpy as np
import pytest

from opdispatch import DispatchKey, DispatchKeySet, Tensor, arrays
from opdispatch.arrays import (
    CPU_BITS,
    CUDA_BITS,
    convert_tensor,
    describe_type,
    find_key_bits,
    key_bits_of,
    register_tensor_type,
    tensor_types,
)

pytestmark = pytest.mark.smoke


@pytest.mark.parametrize(
    "value",
    [np.ones(2), np.float64(1), np.int8(3), np.bool_(True), np.ma.masked_array([1])],
    ids=lambda value: type(value).__name__,
)
def test_numpy_arrays_and_scalars_have_the_cpu_alone(value):
    assert key_bits_of(value) == CPU_BITS
    assert list(DispatchKeySet(CPU_BITS)) == [DispatchKey.CPU]


def test_cupy_array_is_recognized_by_its_class_and_has_cuda_alone():
    # CuPy is not a dependency: its class is recognised by module and name.
    cls = type("ndarray", (), {"__module__": "cupy._core.core"})
    derived = type("Derived", (cls,), {"__module__": "somewhere"})
    assert key_bits_of(cls()) == key_bits_of(derived()) == CUDA_BITS
    assert list(DispatchKeySet(CUDA_BITS)) == [DispatchKey.CUDA]


@pytest.mark.parametrize("value", [1, 1.5, True, None, "array", [1, 2], b"", object()])
def test_other_values_are_no_tensors(value):
    assert find_key_bits(value) is None
    with pytest.raises(TypeError, match=r"expected Tensor .* got"):
        key_bits_of(value)
    with pytest.raises(TypeError):
        convert_tensor(value)


def test_a_tensor_is_passed_on_as_it_is():
    array, tensor = np.ones(2), Tensor(np.ones(2))
    assert convert_tensor(array) is array
    assert convert_tensor(tensor) is tensor


def test_a_registered_type_and_its_subclasses_say_their_keys_themselves(monkeypatch):
    monkeypatch.setattr(tensor_types, "_types_with_keys", tensor_types._types_with_keys)

    class Remote:
        key_bits = CUDA_BITS

    class MoreRemote(Remote):
        key_bits = CPU_BITS

    assert find_key_bits(Remote()) is None
    register_tensor_type(Remote)
    register_tensor_type(Remote)  # again does no harm
    assert key_bits_of(Remote()) == CUDA_BITS
    assert key_bits_of(MoreRemote()) == CPU_BITS
    assert describe_type(MoreRemote()).endswith("MoreRemote")
    register_tensor_type(MoreRemote, described_as="a tensor elsewhere")
    assert describe_type(MoreRemote()) == "a tensor elsewhere"


def test_a_subclass_of_an_array_is_remembered_when_first_seen():
    class Picture(np.ndarray):
        pass

    assert Picture not in arrays.PLAIN_KEY_BITS
    assert key_bits_of(np.ones(2).view(Picture)) == CPU_BITS
    assert arrays.PLAIN_KEY_BITS[Picture] == CPU_BITS


def test_a_type_is_described_with_its_module_unless_it_is_built_in():
    assert describe_type(1) == "int"
    assert describe_type(None) == "NoneType"
    assert describe_type(np.ones(1)) == "numpy.ndarray"
