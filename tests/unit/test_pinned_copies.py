"""Large copies go through pieces of pinned memory, two for each thread, in turn."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from opdispatch.arrays import CupyBackend, cupy_backend, pinned_copies
from opdispatch.arrays.pinned_copies import PinnedCopies
from tests.unit.cupy_stand_in import CUDARuntimeError, Stream, ndarray
from tests.unit.scarce_threads import ScarceThreads
from tests.waits import LONGEST_WAIT

PIECE = 1000


@pytest.fixture
def cupy(cupy_stand_in: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The stand-in, and pieces and arrays that are large but small."""
    monkeypatch.setattr(pinned_copies, "PIECE_BYTES", PIECE)
    monkeypatch.setattr(cupy_backend, "LEAST_BYTES", 100)
    return cupy_stand_in


@pytest.mark.parametrize("size", [1, 125, 126, 250, 251, 999])
@pytest.mark.parametrize("copiers", [1, 3, 4])
def test_every_element_arrives(cupy: Any, size: int, copiers: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(pinned_copies, "COPIERS", copiers)
    source = np.random.default_rng(size).random(size)
    target = cupy.empty((size,), float)
    PinnedCopies(cupy).upload(source, target)
    np.testing.assert_array_equal(target.host, source)
    pieces = [PIECE] * (source.nbytes // PIECE) + [source.nbytes % PIECE] * bool(
        source.nbytes % PIECE
    )
    assert sorted(cupy.cuda.runtime.copies) == sorted((piece, 1) for piece in pieces)


def test_a_piece_is_filled_again_only_when_the_gpu_has_read_it(
    cupy: Any, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(pinned_copies, "COPIERS", 1)
    copies = PinnedCopies(cupy)
    first, second = (piece.done for piece in copies._copiers[0]._pieces)
    order: list[str] = []
    for name, event in (("first", first), ("second", second)):
        event.synchronize = lambda name=name: order.append(f"{name} was read")
        event.record = lambda stream, name=name: order.append(f"{name} is read")
    copies.upload(np.zeros(3 * PIECE, np.uint8), cupy.empty((3 * PIECE,), np.uint8))
    assert order == [
        *("first was read", "first is read"),
        *("second was read", "second is read"),
        *("first was read", "first is read"),
    ]


@pytest.mark.parametrize("size", [125, 126, 251, 999, 3000])
@pytest.mark.parametrize("copiers", [1, 3])
def test_every_element_comes_back(
    cupy: Any, size: int, copiers: int, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(pinned_copies, "COPIERS", copiers)
    source = np.random.default_rng(size).random(size)
    there, target = ndarray(source), np.empty_like(source)
    copies = PinnedCopies(cupy)
    for _ in range(2):  # with what an upload has left in the pieces
        copies.upload(np.zeros_like(source), cupy.empty((size,), float))
        copies.download(there, target)
        np.testing.assert_array_equal(target, source)
    downloaded = [piece for piece, way in cupy.cuda.runtime.copies if way == 2]
    assert sum(downloaded) == 2 * source.nbytes
    assert max(downloaded) == PIECE


def test_a_piece_is_read_when_the_gpu_has_written_it_and_meanwhile_it_writes_the_other(
    cupy: Any, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(pinned_copies, "COPIERS", 1)
    copies = PinnedCopies(cupy)
    order: list[str] = []
    for name, piece in zip(("first", "second"), copies._copiers[0]._pieces, strict=True):
        piece.done.synchronize = lambda name=name: order.append(f"{name} is done")
        piece.done.record = lambda stream, name=name: order.append(f"{name} begins")
    copies.download(ndarray(np.zeros(3 * PIECE, np.uint8)), np.empty(3 * PIECE, np.uint8))
    assert order == [
        *("first is done", "first begins"),
        *("second is done", "second begins", "first is done"),
        *("first is done", "first begins", "second is done", "first is done"),
    ]


def test_the_copies_come_after_what_was_before_and_before_what_follows(cupy: Any):
    copies = PinnedCopies(cupy)
    with Stream() as stream:
        copies.upload(np.zeros(3 * PIECE, np.uint8), cupy.empty((3 * PIECE,), np.uint8))
    assert copies._stream.waited_for == [stream]
    assert stream.waited_for == [copies._stream]


def test_the_threads_use_the_gpu_of_the_target(cupy: Any, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(pinned_copies, "COPIERS", 4)
    found: set[int] = set()
    copy = cupy.cuda.runtime.memcpyAsync

    def note(*args: Any) -> None:
        found.add(cupy.cuda.runtime.getDevice())
        copy(*args)

    monkeypatch.setattr(cupy.cuda.runtime, "memcpyAsync", note)
    CupyBackend().from_host(np.zeros(20 * PIECE, np.uint8), "cuda:1")
    assert found == {1}


def test_source_is_not_read_after_a_copy_has_failed(cupy: Any, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(pinned_copies, "COPIERS", 4)
    begun, reading = threading.Semaphore(0), threading.Semaphore(0)
    copied: list[int] = []

    def fail(dst: int, src: int, size: int, kind: int, stream: int) -> None:
        if threading.current_thread() is threading.main_thread():
            for _ in range(3):
                assert begun.acquire(timeout=LONGEST_WAIT)
                reading.release()
            raise CUDARuntimeError(999)
        begun.release()
        assert reading.acquire(timeout=LONGEST_WAIT)
        copied.append(size)

    monkeypatch.setattr(cupy.cuda.runtime, "memcpyAsync", fail)
    copies = PinnedCopies(cupy)
    with pytest.raises(CUDARuntimeError):
        copies.upload(np.zeros(4 * PIECE, np.uint8), cupy.empty((4 * PIECE,), np.uint8))
    assert copied == [PIECE] * 3


@pytest.mark.parametrize("started", [0, 1])
def test_copy_without_threads_runs_once_before_the_call_returns(
    cupy: Any, monkeypatch: pytest.MonkeyPatch, started: int
):
    """The pool has it in its queue nevertheless, for a thread that is started later."""
    monkeypatch.setattr(pinned_copies, "COPIERS", 4)
    copies, source = PinnedCopies(cupy), np.arange(4 * PIECE).astype(np.uint8)
    threads = ScarceThreads(monkeypatch, f"copy_{started}")
    target = cupy.empty((4 * PIECE,), np.uint8)
    copies.upload(source, target)
    np.testing.assert_array_equal(target.host, source)
    assert len(cupy.cuda.runtime.copies) == 4

    threads.are_lacking = False
    copies._threads.submit(lambda: None).result(timeout=LONGEST_WAIT)
    copies._threads.shutdown()  # with all that was in the queue
    assert len(cupy.cuda.runtime.copies) == 4
    copies.download(target, np.empty_like(source))  # without any other thread
    assert len(cupy.cuda.runtime.copies) == 8


def test_call_waits_for_parts_copied_by_other_threads(cupy: Any, monkeypatch: pytest.MonkeyPatch):
    """The first thread takes it out of the queue when no second one could be started."""
    monkeypatch.setattr(pinned_copies, "COPIERS", 3)
    ScarceThreads(monkeypatch, "copy_1")
    mine, theirs = threading.Semaphore(0), threading.Semaphore(0)
    by_others: list[int] = []
    copy = cupy.cuda.runtime.memcpyAsync

    def take_turns(*args: Any) -> None:
        if threading.current_thread() is threading.main_thread():
            theirs.release(2)  # the first part, until the other thread has begun the last
            assert mine.acquire(timeout=LONGEST_WAIT)
        else:
            assert theirs.acquire(timeout=LONGEST_WAIT)
            by_others.append(args[2])
            if len(by_others) == 2:
                mine.release()
        copy(*args)

    monkeypatch.setattr(cupy.cuda.runtime, "memcpyAsync", take_turns)
    source, target = np.arange(3 * PIECE).astype(np.uint8), cupy.empty((3 * PIECE,), np.uint8)
    PinnedCopies(cupy).upload(source, target)
    np.testing.assert_array_equal(target.host, source)
    assert by_others == [PIECE] * 2


def test_the_host_waits_for_no_stream(cupy: Any):
    with Stream() as stream:
        array = CupyBackend().from_host(np.arange(1000.0), "cuda:0")
    np.testing.assert_array_equal(array.host, np.arange(1000.0))
    assert stream.waits == Stream.null.waits == 0


def test_any_number_of_threads_may_upload(cupy: Any):
    backend = CupyBackend()
    arrays = [np.full(500, number, float) for number in range(8)]

    def there_and_back(array: np.ndarray) -> bool:
        there = [backend.from_host(array, f"cuda:{number % 2}") for number in range(20)]
        return all((backend.to_host(each) == array).all() for each in there)

    with ThreadPoolExecutor(8) as threads:
        assert all(threads.map(there_and_back, arrays))
    assert len(backend._pinned) == 2


@pytest.mark.parametrize("dtype", [np.int8, bool, np.complex64, ml_dtypes.bfloat16])
def test_large_arrays_of_any_layout_and_dtype_go_to_their_gpu(cupy: Any, dtype: Any):
    backend = CupyBackend()
    source = np.arange(3000).reshape(30, 100).astype(dtype)[::-1, ::3]
    there = backend.from_host(source, "cuda:1")
    assert (backend.device_of(there), there.dtype) == ("cuda:1", source.dtype)
    np.testing.assert_array_equal(backend.to_host(there), source)
    backend.assign(there, source[::-1])
    np.testing.assert_array_equal(backend.to_host(there), source[::-1])
    assert cupy.cuda.runtime.copies


def test_arrays_are_copied_unpinned_if_pinning_fails(
    cupy: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    def refuse(size: int) -> object:
        raise CUDARuntimeError(2, "cudaErrorMemoryAllocation")

    monkeypatch.setattr(cupy.cuda, "alloc_pinned_memory", refuse)
    backend = CupyBackend()
    for _ in range(2):
        array = backend.from_host(np.arange(1000.0), "cuda:0")
        np.testing.assert_array_equal(backend.to_host(array), np.arange(1000.0))
    assert cupy.cuda.runtime.copies == []
    assert [record.message for record in caplog.records] == [
        "large copies to cuda:0 will be slow: cudaErrorMemoryAllocation"
    ]
