"""Where kernels run, and in what order their work is done; see Note [The order of a GPU's work]."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest

from opdispatch import Tensor
from opdispatch.arrays import CupyBackend, backend_of_device, use_device
from opdispatch.arrays.kernel_block import run_on_device
from opdispatch.errors import DeviceLostError
from tests.unit.cupy_stand_in import CUDARuntimeError, Stream, contexts

X = np.arange(3.0)


@pytest.fixture
def cuda(cupy_stand_in: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """``cupy.cuda``, in use."""
    backend = backend_of_device("cuda:0")
    monkeypatch.setattr(backend, "_finds_gpu", True)
    monkeypatch.setattr(backend, "home", "")
    monkeypatch.setattr(backend, "lost", None)
    return cupy_stand_in.cuda


def test_without_cupy_there_is_no_block(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delitem(sys.modules, "cupy", raising=False)  # another test may have imported it
    assert not CupyBackend().is_in_use()


@pytest.mark.parametrize("wrap", [lambda x: x, Tensor, lambda x: [X, [Tensor(x)]]])
def test_the_gpu_of_the_first_argument_that_has_one_is_the_current_one(cuda: Any, wrap: Any):
    array = CupyBackend().from_host(X, "cuda:1")
    device = run_on_device([3, X, wrap(array)], cuda.runtime.getDevice)
    assert (device, cuda.runtime.getDevice()) == (1, 0)


def test_else_it_is_the_one_that_the_interpreter_was_given(cuda: Any):
    assert run_on_device([X], cuda.runtime.getDevice) == 0
    use_device("cuda:1")
    assert run_on_device([X], cuda.runtime.getDevice) == 1


def test_a_stream_and_a_gpu_that_a_kernel_leaves_behind_are_not_found_by_the_next_one(cuda: Any):
    stream = Stream(non_blocking=True)

    def kernel() -> None:
        assert cuda.get_current_stream() is Stream.null
        stream.use()
        cuda.Device(1).use()

    for _ in range(2):
        run_on_device([], kernel)
        assert cuda.runtime.getDevice() == 0
        assert cuda.get_current_stream() is Stream.null


def test_a_kernel_that_uses_no_gpu_makes_no_context(cuda: Any):
    run_on_device([X], lambda: None)
    assert contexts == set()
    use_device("cuda:0")  # as it is, without choosing it
    run_on_device([X], lambda: None)
    assert contexts == set()
    use_device("cuda:1")
    run_on_device([X], lambda: None)
    assert contexts == {1}


def test_device_id_creates_no_context(cuda: Any):
    assert CupyBackend().device_id("cuda:0") != CupyBackend().device_id("cuda:1")
    assert contexts == set()


def test_arrays_for_another_gpu_make_no_context_on_the_first_one(cuda: Any):
    use_device("cuda:1")
    backend = backend_of_device("cuda:1")
    backend.to_host(backend.from_host(X, "cuda:1"))
    assert contexts == {1}
    assert cuda.runtime.getDevice() == 1


def test_work_on_a_stream_that_a_kernel_leaves_behind_is_waited_for_by_the_stream_and_not_the_host(
    cuda: Any,
):
    stream = Stream(non_blocking=True)
    run_on_device([], stream.use)
    assert Stream.null.waited_for == [stream]
    assert stream.waits == Stream.null.waits == 0
    run_on_device([], lambda: None)
    assert Stream.null.waited_for == [stream]


def test_the_error_of_a_kernel_says_more_than_that_of_its_stream(cuda: Any):
    def fail() -> None:
        cuda.runtime.sticky = CUDARuntimeError(700, "cudaErrorIllegalAddress")
        Stream(non_blocking=True).use()
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run_on_device([], fail)
    assert cuda.get_current_stream() is Stream.null


def test_a_gpu_that_is_lost_is_an_error_on_the_way_out(cuda: Any, monkeypatch: pytest.MonkeyPatch):
    error = CUDARuntimeError(719, "cudaErrorLaunchFailure")

    class Failing(Stream):
        def record(self, event: Any = None) -> Any:
            raise error

    with pytest.raises(DeviceLostError, match="LaunchFailure"):
        run_on_device([], Failing().use)
    assert backend_of_device("cuda:0").lost is not None
