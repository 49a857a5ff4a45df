"""The stand-in for CuPy has no name that CuPy itself has not. No GPU is needed for that."""

from __future__ import annotations

import operator

import pytest

from tests.unit import cupy_stand_in as stand_in

# What tests look at, in the place of a GPU.
OURS = {
    *("driver", "version", "devices", "free", "total", "sticky", "copies", "opened", "handles"),
    *("failure", "waited_for", "waits", "stream", "frees", "host"),
}


@pytest.mark.parametrize(
    "place",
    [
        *("cuda", "cuda.memory", "cuda.runtime", "cuda.Device", "cuda.Event", "cuda.Stream"),
        *("ndarray", ""),
    ],
)
def test_cupy_has_every_name_that_the_stand_in_has(place: str):
    cupy = pytest.importorskip("cupy")
    module = stand_in.make_module()
    real, ours = (operator.attrgetter(place)(each) if place else each for each in (cupy, module))
    names = {name for name in dir(ours) if not name.startswith("_")} - OURS
    assert names
    assert names <= set(dir(real))


def test_cupys_errors_are_as_the_stand_in_has_them():
    cupy = pytest.importorskip("cupy")
    text = str(cupy.cuda.memory.OutOfMemoryError(1234, 5))
    assert "allocating 1,234 bytes" in text
    assert "allocating 1,234 bytes" in str(stand_in.OutOfMemoryError(1234, 5))
    for real, ours in (
        (cupy.cuda.memory.OutOfMemoryError, stand_in.OutOfMemoryError),
        (cupy.cuda.runtime.CUDARuntimeError, stand_in.CUDARuntimeError),
    ):
        assert real.__module__ == ours.__module__
        assert real.__mro__[1:] == ours.__mro__[1:]
    assert cupy.cuda.runtime.CUDARuntimeError(700).status == 700
    assert cupy.cuda.Stream.null.ptr == stand_in.make_module().cuda.Stream.null.ptr == 0
