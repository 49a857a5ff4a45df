"""CuPy's arrays as tensors, in one process."""

from __future__ import annotations

import multiprocessing
from typing import Any

import numpy as np
import pytest

from opdispatch import DeviceMemory, DeviceTransfers, Tensor, device_transfers
from opdispatch.arrays import CupyBackend, pinned_copies
from opdispatch.arrays.kernel_block import run_on_device
from opdispatch.errors import DeviceError, DeviceMemoryError
from tests.waits import LONGEST_WAIT

pytestmark = pytest.mark.gpu

X = np.arange(6.0).reshape(2, 3)
HERE = "cuda:0"


def test_arrays_are_moved_copied_and_written_to(backend: CupyBackend, cupy: Any):
    assert backend.device_count() >= 1
    array = backend.from_host(X, HERE)
    assert (type(array), backend.device_of(array)) == (cupy.ndarray, HERE)
    copy = backend.copy(array[:, ::-1])
    assert backend.is_its_own(copy)
    backend.assign(copy, array + 1)
    np.testing.assert_array_equal(backend.to_host(copy), X + 1)
    backend.assign(copy, X)
    backend.synchronize(HERE)
    np.testing.assert_array_equal(backend.to_host(copy), X)
    np.testing.assert_array_equal(backend.to_host(backend.adopt(array)), X)
    assert Tensor(array).to("cpu").device == "cpu"


@pytest.mark.parametrize("extent", [4, 1 << 18])
def test_every_view_is_written_to(backend: CupyBackend, cupy: Any, extent: int):
    source = np.arange(3.0 * extent).reshape(extent, 3)
    for view in (
        cupy.zeros((2 * extent, 3))[::2],
        cupy.zeros((3, extent)).T,
        cupy.zeros((extent, 6))[:, ::-2],
    ):
        backend.assign(view, source.astype(np.float32))
        np.testing.assert_array_equal(backend.to_host(view), source)
        assert float(view.base.sum()) == source.sum()


def test_negative_strides_go_by_dlpack_as_a_copy(cupy: Any):
    backwards = cupy.arange(4.0)[::-1]
    for each in (backwards, backwards.reshape(2, 2), backwards[:2]):
        found = cupy.from_dlpack(Tensor(each))
        np.testing.assert_array_equal(found.get(), each.get())
        assert min(found.strides) > 0
        with pytest.raises(BufferError, match=r"negative strides, of shape .* ask for a copy"):
            cupy.from_dlpack(Tensor(each), copy=False)
    one = cupy.from_dlpack(Tensor(backwards[:1]))
    assert one.data.ptr == backwards[:1].data.ptr


def test_memory_of_others_is_not_its_own(backend: CupyBackend, cupy: Any):
    array = cupy.zeros(3)
    memory = cupy.cuda.UnownedMemory(array.data.ptr, array.nbytes, array)
    alias = cupy.ndarray(3, float, cupy.cuda.MemoryPointer(memory, 0))
    found = [backend.is_its_own(each) for each in (array, alias, backend.adopt(array))]
    assert found == [True, False, False]


@pytest.mark.parametrize("size", [0, 1, 1 << 18, 20 * pinned_copies.PIECE_BYTES // 8 + 3])
@pytest.mark.parametrize("dtype", [np.float64, np.bool_, np.complex64, np.int8])
def test_every_element_arrives_and_comes_back(backend: CupyBackend, size: int, dtype: Any):
    source = (np.arange(size) % 113).astype(dtype)
    for view in (source, source[::-1], source[::3]):
        np.testing.assert_array_equal(backend.to_host(backend.from_host(view, HERE)), view)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.complex64, ">f8"])
@pytest.mark.parametrize("shape", [(), (1,)])
def test_a_zero_keeps_its_sign(backend: CupyBackend, dtype: Any, shape: tuple[int, ...]):
    source = np.full(shape, -0.0).astype(dtype)
    array = backend.from_host(source, HERE)
    assert np.signbit(backend.to_host(array).real).all()
    assert backend.is_its_own(array)


def test_a_large_upload_has_read_its_source_when_it_returns(backend: CupyBackend):
    source = np.ones(20 * pinned_copies.PIECE_BYTES // 8)
    arrays = []
    for number in range(4):
        source[:] = number
        arrays.append(backend.from_host(source, HERE))
    for number, array in enumerate(arrays):
        assert (backend.to_host(array) == number).all()


def test_a_large_array_is_read_as_the_stream_has_made_it(backend: CupyBackend, cupy: Any):
    array = cupy.zeros(20 * pinned_copies.PIECE_BYTES // 8)
    for number in range(1, 4):
        array += 1
        read = backend.to_host(array)
        array += 1  # in the order of the stream
        array -= 1
        assert (read == number).all()
    np.testing.assert_array_equal(backend.to_host(array[::2]), read[::2])


def test_device_copies_are_counted(backend: CupyBackend):
    before = device_transfers().get(HERE, DeviceTransfers())
    array = backend.from_host(X, HERE)
    backend.copy(array)
    backend.to_host(array)
    after = device_transfers()[HERE]
    assert after.to_device - before.to_device == X.nbytes
    assert after.from_device - before.from_device == X.nbytes


def test_allocation_error_has_the_memory_figures(backend: CupyBackend, cupy: Any):
    with pytest.raises(DeviceMemoryError, match="bytes are free, and CuPy's pool") as caught:
        backend.copy(cupy.broadcast_to(backend.from_host(X, HERE)[0, 0], (1 << 45,)))
    facts = caught.value.facts
    assert int(facts["asked"]) == 8 << 45
    assert 0 < int(facts["free"]) <= int(facts["total"])
    assert int(facts["used"]) <= int(facts["held"])
    assert backend.lost is None


def test_error_names_the_limit_of_the_pool(backend: CupyBackend, cupy: Any):
    pool = cupy.get_default_memory_pool()
    pool.free_all_blocks()
    pool.set_limit(size=pool.total_bytes() + (1 << 20))
    try:
        with pytest.raises(DeviceMemoryError, match="CUPY_GPU_MEMORY_LIMIT") as caught:
            backend.from_host(np.zeros(1 << 28, np.uint8), HERE)
        assert caught.value.facts["limit"] == str(pool.get_limit())
    finally:
        pool.set_limit(size=0)
    assert backend.from_host(np.zeros(1 << 28, np.uint8), HERE).nbytes == 1 << 28


def test_a_gpu_that_is_not_there_is_an_error_and_no_loss(backend: CupyBackend):
    with pytest.raises(DeviceError, match="cuda:99"):
        backend.from_host(X, "cuda:99")
    assert backend.lost is None
    np.testing.assert_array_equal(backend.to_host(backend.from_host(X, HERE)), X)


def test_a_kernel_finds_the_default_stream_and_its_gpu_whatever_the_last_one_left(cupy: Any):
    def leave() -> None:
        cupy.cuda.Stream(non_blocking=True).use()
        cupy.cuda.Device(cupy.cuda.runtime.getDeviceCount() - 1).use()

    for _ in range(2):
        run_on_device([], leave)
        assert cupy.cuda.get_current_stream() == cupy.cuda.Stream.null
        assert cupy.cuda.runtime.getDevice() == 0


# -- other processes --------------------------------------------------------------------------


def share(pipe: Any, number: int) -> None:
    """Share part of an allocation, until it is to end; in a process of its own."""
    import cupy

    own = CupyBackend()
    whole = cupy.empty(1 << 20, np.uint8)
    del whole  # the pool takes what follows from it, piece by piece
    first = cupy.zeros(1000)
    array = cupy.full(1000, float(number))
    pipe.send(own.share(array))
    pipe.recv()
    del first, array


@pytest.fixture
def shared() -> Any:
    """Yield the values that two other processes share."""
    context = multiprocessing.get_context("spawn")
    pipes, processes = [], []
    for number in range(2):
        ours, theirs = context.Pipe()
        processes.append(context.Process(target=share, args=(theirs, number), daemon=True))
        processes[-1].start()
        pipes.append(ours)
    yield [pipe.recv() for pipe in pipes]
    for pipe, process in zip(pipes, processes, strict=True):
        pipe.send(None)
        process.join(LONGEST_WAIT)


def test_an_array_of_another_process_is_read_on_the_gpu(
    backend: CupyBackend, shared: list[DeviceMemory]
):
    before = device_transfers().get(HERE, DeviceTransfers())
    for _ in range(3):  # opened and closed again
        for number, memory in enumerate(shared):
            assert (len(memory.handle), memory.offset) == (64, 8192)
            copy = backend.read_shared(memory, (10, 100), np.dtype(float), HERE)
            assert copy.shape == (10, 100)
            assert bool((copy == number).all())
    after = device_transfers()[HERE]
    assert after.from_peers - before.from_peers == 6 * 8000
    assert after.to_device == before.to_device


def test_forged_memory_handle_raises_and_leaves_the_device_usable(
    backend: CupyBackend, shared: list[DeviceMemory]
):
    there = shared[1]
    for wrong in (
        DeviceMemory(there.device_id, bytes(64), 0, 8000),
        DeviceMemory(there.device_id, b"\xff" * 64, 0, 8000),
        DeviceMemory(there.device_id, there.handle[:-8] + b"stranger", 0, 8000),
        DeviceMemory(there.device_id, b"short", 0, 8000),
        DeviceMemory(there.device_id, there.handle, 1 << 40, 8000),
        DeviceMemory(there.device_id, there.handle, 2**64 - 8000, 8000),
        DeviceMemory(there.device_id, there.handle, 0, 8008),
        DeviceMemory(bytes(16), there.handle, 0, 8000),
    ):
        try:
            backend.read_shared(wrong, (1000,), np.dtype(float), HERE)
        except DeviceError:
            continue
        # What the driver does not look at in a handle does no harm.
        assert wrong.handle.startswith(there.handle[:-8])
    assert backend.lost is None
    copy = backend.read_shared(there, (1000,), np.dtype(float), HERE)
    assert bool((copy == 1).all())


def test_an_array_of_the_same_process_is_no_crash(backend: CupyBackend):
    array = backend.from_host(np.ones(1000), HERE)
    memory = backend.share(array)
    assert memory is not None
    try:  # CUDA has refused it so far
        copy = backend.read_shared(memory, (1000,), np.dtype(float), HERE)
    except DeviceError:
        pass
    else:
        assert bool((copy == 1).all())
    assert backend.lost is None
