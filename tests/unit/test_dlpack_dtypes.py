"""bfloat16 and float8 by DLPack, which NumPy has no word for."""

from __future__ import annotations

import weakref
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from opdispatch import Tensor
from opdispatch.arrays import give_by_dlpack, view_by_dlpack

OF_WHOLE_BYTES = [
    *("bfloat16", "float8_e3m4", "float8_e4m3", "float8_e4m3b11fnuz", "float8_e4m3fn"),
    *("float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu"),
]


class Other:
    """Another library's array; it may know of versions of DLPack, or not."""

    def __init__(self, array: Any, *, knows_versions: bool = True) -> None:
        self.array, self.knows_versions = array, knows_versions

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)

    def __dlpack__(self, **options: Any) -> Any:
        if not self.knows_versions and options:
            raise TypeError("unexpected keyword argument")
        return give_by_dlpack(self.array, **options)


@pytest.mark.parametrize("knows_versions", [True, False])
@pytest.mark.parametrize("name", OF_WHOLE_BYTES)
def test_elements_arrive_as_what_they_are_and_are_shared(name: str, knows_versions: bool):
    x = np.arange(1, 9).reshape(2, 4).astype(getattr(ml_dtypes, name))[:, ::2]
    view = view_by_dlpack(Other(x, knows_versions=knows_versions))
    assert (view.dtype, view.shape, view.strides) == (x.dtype, x.shape, x.strides)
    assert view.tobytes() == x.tobytes()
    assert np.shares_memory(view, x)


@pytest.mark.parametrize("dtype", [np.int8, np.float16, np.complex64, np.bool_])
def test_dtypes_known_to_numpy_use_its_dlpack(dtype: Any):
    x = np.ones(3, dtype)
    assert view_by_dlpack(Other(x)).dtype == dtype


@pytest.mark.parametrize("shape", [(), (0,), (2, 0)])
def test_shapes_without_dimensions_or_elements(shape: tuple[int, ...]):
    view = view_by_dlpack(Other(np.ones(shape, ml_dtypes.bfloat16)))
    assert (view.shape, view.dtype) == (shape, ml_dtypes.bfloat16)


def test_a_tensor_gives_them_and_takes_them():
    tensor = Tensor(np.ones(3, ml_dtypes.bfloat16))
    taken = Tensor(Other(tensor.array))
    assert taken.dtype == ml_dtypes.bfloat16
    tensor.array[1] = 5
    assert taken.tolist() == view_by_dlpack(tensor).tolist() == [1, 5, 1]


def test_the_memory_lives_as_long_as_a_view_of_it():
    class Owner(np.ndarray[Any, Any]):
        """An array that can be watched."""

    owner = np.ones(3, ml_dtypes.bfloat16).view(Owner)
    gone = weakref.ref(owner)
    view = view_by_dlpack(Other(owner))
    unused = give_by_dlpack(owner)
    del owner
    assert gone() is not None
    assert view.tolist() == [1, 1, 1]
    del view
    assert gone() is not None
    del unused
    assert gone() is None


@pytest.mark.parametrize("dtype", [ml_dtypes.int4, ml_dtypes.float4_e2m1fn])
def test_elements_that_fill_no_byte_are_refused(dtype: Any):
    with pytest.raises(BufferError, match="DLPack only supports"):
        Tensor(np.zeros(3, dtype)).__dlpack__()


def test_dlpack_export_of_read_only_array_raises_buffer_error():
    x = np.ones(3, ml_dtypes.bfloat16)
    x.flags.writeable = False
    with pytest.raises(BufferError, match="readonly"):
        give_by_dlpack(x)
    assert not view_by_dlpack(Other(x)).flags.writeable


@pytest.mark.parametrize("capsule", ["dltensor", None, 3])
def test_invalid_capsule_raises(capsule: Any):
    class Hostile(Other):
        def __dlpack__(self, **options: Any) -> Any:
            return capsule

    with pytest.raises((TypeError, ValueError, BufferError)):
        view_by_dlpack(Hostile(None))


def test_a_capsule_is_used_once():
    capsule = give_by_dlpack(np.ones(3, ml_dtypes.bfloat16), max_version=(1, 0))

    class Keeper(Other):
        def __dlpack__(self, **options: Any) -> Any:
            return capsule

    assert view_by_dlpack(Keeper(None)).dtype == ml_dtypes.bfloat16
    with pytest.raises(ValueError, match="PyCapsule"):
        view_by_dlpack(Keeper(None))


def test_errors_of_the_other_library_are_its_own():
    class Failing(Other):
        def __dlpack__(self, **options: Any) -> Any:
            raise RuntimeError("the stream is closed")

    with pytest.raises(RuntimeError, match="the stream is closed"):
        view_by_dlpack(Failing(None))
