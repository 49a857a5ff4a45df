"""Copies of large arrays to a GPU, through a little memory that the GPU can read by itself.

Note [Pinned memory]
    A GPU reads pinned memory at the speed of the bus, while the host does something else. Other
    memory it reads at a fraction of that, and the host waits. Pinning takes longer than copying,
    and what is pinned is lost to everybody else: so there are a few pieces for each GPU, made once.

    One thread copies within the host's memory at a fraction of the speed of the bus, too. So
    several do, each to two pieces of its own: while the GPU reads one, it fills the other one. They
    do not wait for each other, since it does not matter in which order the parts arrive.

    The copies have a stream of their own, which begins after the caller's, and which that waits
    for: a stream that is another one in each thread, as the default one may be, would not do.
"""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any

import numpy as np

LEAST_BYTES = 1 << 20
"""What is smaller is copied by CuPy itself, through pinned memory of its own."""
PIECE_BYTES = 4 << 20
COPIERS = min(8, os.cpu_count() or 1)

Bytes = np.ndarray[Any, np.dtype[np.uint8]]


class PinnedUploads:
    """The way to one GPU, which is the current one when it is made. Any thread may use it."""

    def __init__(self, cupy: Any) -> None:
        """Raises what CuPy raises where no memory can be pinned."""
        self._cuda = cupy.cuda
        self._lock = threading.Lock()
        self._stream = cupy.cuda.Stream(non_blocking=True)
        # The first one is for whoever calls.
        self._copiers = [_Copier(cupy.cuda, self._stream) for _ in range(COPIERS)]
        runtime = cupy.cuda.runtime
        self._threads = ThreadPoolExecutor(
            COPIERS, "upload", initializer=runtime.setDevice, initargs=(runtime.getDevice(),)
        )

    def copy(self, source: np.ndarray[Any, Any], target: Any) -> None:
        """Copies to an array of the same bytes, both C-contiguous, in the order of the stream.

        When it returns, ``source`` has been read, and all that comes after it on the current
        stream finds the elements in ``target``. Raises what CuPy raises.
        """
        contents, address = source.reshape(-1).view(np.uint8), target.data.ptr
        with self._lock:
            current = self._cuda.get_current_stream()
            self._stream.wait_event(current.record(self._event()))
            begins = range(0, contents.size, PIECE_BYTES)
            count = min(len(self._copiers), len(begins))
            others = [
                self._threads.submit(copier.copy, contents, address, begins[n::count])
                for n, copier in enumerate(self._copiers[1:count], start=1)
            ]
            try:
                self._copiers[0].copy(contents, address, begins[::count])
            finally:
                wait(others)  # what comes of them or not: they read `source`
                current.wait_event(self._stream.record(self._event()))
            for each in others:
                each.result()

    def _event(self) -> Any:
        return self._cuda.Event(disable_timing=True)


class _Copier:
    """Two pieces of pinned memory, for one thread at a time."""

    def __init__(self, cuda: Any, stream: Any) -> None:
        self._runtime, self._stream = cuda.runtime, stream
        self._pieces = [_Piece(cuda), _Piece(cuda)]

    def copy(self, contents: Bytes, address: int, begins: range) -> None:
        """Copies the pieces of ``contents`` that begin there to the same places of an address."""
        for number, begin in enumerate(begins):
            part = contents[begin : begin + PIECE_BYTES]
            piece = self._pieces[number % 2]
            piece.read.synchronize()  # what was in it before is on the GPU
            np.copyto(piece.memory[: part.size], part)  # meanwhile other threads run
            self._runtime.memcpyAsync(
                address + begin,
                piece.address,
                part.size,
                self._runtime.memcpyHostToDevice,
                self._stream.ptr,
            )
            piece.read.record(self._stream)


class _Piece:
    """Some pinned memory, and the event after which the GPU has read what is in it."""

    def __init__(self, cuda: Any) -> None:
        self._pinned = cuda.alloc_pinned_memory(PIECE_BYTES)  # as long as `memory` is used
        self.address = self._pinned.ptr
        self.memory: Bytes = np.frombuffer(self._pinned, np.uint8, PIECE_BYTES)
        self.read = cuda.Event(block=True, disable_timing=True)
