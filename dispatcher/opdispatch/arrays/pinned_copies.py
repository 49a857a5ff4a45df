"""Copies of large arrays to and from a GPU, staged through a small amount of pinned memory.

Note [Pinned memory]
    A GPU reads and writes pinned memory at bus bandwidth while the host does other work. Copies
    from pageable memory reach a fraction of that bandwidth and block the host. Pinning takes longer
    than copying and takes memory from all other processes, so each GPU gets a few pinned pieces,
    allocated once.

    A single thread copies within host memory at only a fraction of bus bandwidth. Several threads
    therefore copy, each with two pieces: it fills or drains one while the GPU uses the other.
    Threads do not wait for each other, since parts may arrive in any order. The calling thread
    copies its own part, then every part that no other thread has started.

    The copies run on a separate stream. It waits for the caller's stream, which then waits for it.
    The default stream would not do, since each thread may have its own.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import partial
from typing import Any, TypeAlias

import numpy as np

LEAST_BYTES = 1 << 20
"""Size in bytes from which copies are staged; CuPy copies anything smaller."""
PIECE_BYTES = 4 << 20
COPIERS = min(8, os.cpu_count() or 1)

Bytes: TypeAlias = "np.ndarray[Any, np.dtype[np.uint8]]"


class PinnedCopies:
    """Copies between the host and one GPU, the current one at construction. Thread-safe."""

    def __init__(self, cupy: Any) -> None:
        """Allocate the pinned memory. Raises CUDARuntimeError if none can be pinned."""
        self._cuda = cupy.cuda
        self._lock = threading.Lock()
        self._stream = cupy.cuda.Stream(non_blocking=True)
        # The calling thread uses the first one.
        self._copiers = [_Copier(cupy.cuda, self._stream) for _ in range(COPIERS)]
        runtime = cupy.cuda.runtime
        self._threads = ThreadPoolExecutor(
            COPIERS, "copy", initializer=runtime.setDevice, initargs=(runtime.getDevice(),)
        )

    def upload(self, source: np.ndarray[Any, Any], target: Any) -> None:
        """Copy a host array to a GPU array of the same byte size, ordered on the current stream.

        Both are C-contiguous. On return, ``source`` has been read, and later work on the stream
        sees the elements in ``target``. Propagates errors of CuPy.
        """
        self._copy(_Copier.upload, source, target)

    def download(self, source: Any, target: np.ndarray[Any, Any]) -> None:
        """Copy a GPU array to a host array, after the work pending on the current stream.

        Both are C-contiguous. Returns once ``target`` is complete. Propagates errors of CuPy.
        """
        self._copy(_Copier.download, target, source)

    def _copy(self, way: Callable[[_Copier, Bytes, int, range], None], host: Any, gpu: Any) -> None:
        contents, address = host.reshape(-1).view(np.uint8), gpu.data.ptr
        with self._lock:
            current = self._cuda.get_current_stream()
            self._stream.wait_event(current.record(self._event()))
            begins = range(0, contents.size, PIECE_BYTES)
            count = min(len(self._copiers), len(begins))
            parts = [
                _Part(partial(way, copier, contents, address, begins[n::count]))
                for n, copier in enumerate(self._copiers[:count])
            ]
            self._offer(parts[1:])
            for part in parts:
                part.run()
            # Wait even if a part has failed: the others still read or write `host`.
            wait(part.done for part in parts)
            current.wait_event(self._stream.record(self._event()))
            for part in parts:
                part.done.result()

    def _offer(self, parts: Iterable[_Part]) -> None:
        """Submit parts to the pool, as far as the system can start threads for them."""
        for part in parts:
            try:
                self._threads.submit(part.run)
            except RuntimeError:
                break  # no thread could be started; the part may be queued for a later one

    def _event(self) -> Any:
        return self._cuda.Event(disable_timing=True)


class _Part:
    """Part of a copy, done by the first thread that claims it."""

    def __init__(self, copy: Callable[[], None]) -> None:
        self._unclaimed = [copy]
        self.done: Future[None] = Future()

    def run(self) -> None:
        """Copy the part, or return at once if another thread has claimed it."""
        try:
            copy = self._unclaimed.pop()  # atomic: only one thread gets it
        except IndexError:
            return
        try:
            copy()
        except BaseException as error:
            self.done.set_exception(error)
        else:
            self.done.set_result(None)


class _Copier:
    """Two pieces of pinned memory, for one thread at a time.

    ``contents`` is the host array as bytes, ``address`` that of the GPU array, and ``begins`` the
    byte offsets of the pieces to copy. NumPy releases the GIL while it copies.
    """

    def __init__(self, cuda: Any, stream: Any) -> None:
        self._runtime, self._stream = cuda.runtime, stream
        self._pieces = [_Piece(cuda), _Piece(cuda)]

    def upload(self, contents: Bytes, address: int, begins: range) -> None:
        """Copy host to GPU; return once the host's bytes have been read."""
        for number, begin in enumerate(begins):
            part, piece = contents[begin : begin + PIECE_BYTES], self._pieces[number % 2]
            piece.done.synchronize()  # the GPU has read its previous contents
            np.copyto(piece.memory[: part.size], part)
            self._start(address + begin, piece.address, part.size, "memcpyHostToDevice", piece)

    def download(self, contents: Bytes, address: int, begins: range) -> None:
        """Copy GPU to host; return once the host's bytes have been written."""
        before: tuple[Bytes, _Piece] | None = None
        for number, begin in enumerate(begins):
            part, piece = contents[begin : begin + PIECE_BYTES], self._pieces[number % 2]
            piece.done.synchronize()  # an upload may have been the last to use it
            self._start(piece.address, address + begin, part.size, "memcpyDeviceToHost", piece)
            if before is not None:
                _finish(*before)
            before = part, piece
        if before is not None:
            _finish(*before)

    def _start(self, to: int, from_: int, size: int, way: str, piece: _Piece) -> None:
        self._runtime.memcpyAsync(to, from_, size, getattr(self._runtime, way), self._stream.ptr)
        piece.done.record(self._stream)


class _Piece:
    """``PIECE_BYTES`` of pinned memory, and the event after which the GPU no longer uses them."""

    def __init__(self, cuda: Any) -> None:
        self._pinned = cuda.alloc_pinned_memory(PIECE_BYTES)  # keeps `memory` allocated
        self.address = self._pinned.ptr
        self.memory: Bytes = np.frombuffer(self._pinned, np.uint8, PIECE_BYTES)
        self.done = cuda.Event(block=True, disable_timing=True)


def _finish(part: Bytes, piece: _Piece) -> None:
    piece.done.synchronize()
    np.copyto(part, piece.memory[: part.size])
