"""Copies of large arrays to a GPU, through a little memory that the GPU can read by itself.

Note [Pinned memory]
    A GPU reads pinned memory at the speed of the bus, while the host does something else. Other
    memory it reads at a fraction of that, and the host waits. Pinning takes longer than copying,
    and what is pinned is lost to everybody else: so there are two pieces for each GPU, made once.
    While the GPU reads one, the host fills the other one, in several threads: one alone is slower
    than the bus.
"""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

LEAST_BYTES = 1 << 20
"""What is smaller is copied by CuPy itself, through pinned memory of its own."""
PIECE_BYTES = 16 << 20
COPIERS = min(4, os.cpu_count() or 1)

Bytes = np.ndarray[Any, np.dtype[np.uint8]]


class PinnedUploads:
    """The way to one GPU. Any thread may use it, with that GPU as its current one.

    ``_lock`` protects the pieces: one upload at a time, which has the bus to itself.
    """

    def __init__(self, cupy: Any) -> None:
        """Raises what CuPy raises where no memory can be pinned."""
        self._cuda = cupy.cuda
        self._lock = threading.Lock()
        self._pieces = [_Piece(cupy.cuda), _Piece(cupy.cuda)]
        self._copiers = ThreadPoolExecutor(COPIERS, thread_name_prefix="upload")

    def copy(self, source: np.ndarray[Any, Any], target: Any) -> None:
        """Copies to an array of the same bytes, both C-contiguous, in the order of the stream.

        When it returns, ``source`` has been read, and all that comes after it on the current
        stream finds the elements in ``target``. Raises what CuPy raises.
        """
        contents = source.reshape(-1).view(np.uint8)
        stream, address = self._cuda.get_current_stream(), target.data.ptr
        with self._lock:
            for number, begin in enumerate(range(0, contents.size, PIECE_BYTES)):
                part = contents[begin : begin + PIECE_BYTES]
                piece = self._pieces[number % 2]
                piece.read.synchronize()  # what was in it before is on the GPU
                self._fill(piece.memory, part)
                self._cuda.runtime.memcpyAsync(
                    address + begin,
                    piece.address,
                    part.size,
                    self._cuda.runtime.memcpyHostToDevice,
                    stream.ptr,
                )
                piece.read.record(stream)

    def _fill(self, memory: Bytes, part: Bytes) -> None:
        share = -(-part.size // COPIERS)
        places = [slice(begin, begin + share) for begin in range(0, part.size, share)]
        # NumPy lets other threads run while it copies.
        filled = [
            self._copiers.submit(np.copyto, memory[: part.size][place], part[place])
            for place in places[1:]
        ]
        np.copyto(memory[: part.size][places[0]], part[places[0]])
        for each in filled:
            each.result()


class _Piece:
    """Some pinned memory, and the event after which the GPU has read what is in it."""

    def __init__(self, cuda: Any) -> None:
        self._pinned = cuda.alloc_pinned_memory(PIECE_BYTES)  # as long as `memory` is used
        self.address = self._pinned.ptr
        self.memory: Bytes = np.frombuffer(self._pinned, np.uint8, PIECE_BYTES)
        self.read = cuda.Event(block=True, disable_timing=True)
