"""The calls that an interpreter has run, counted in memory shared with the daemon.

Note [Call counts]
    Clients call interpreters directly, so only interpreters know of all calls. Each counts its own
    in a memfd (``shared_page``), one row for each series: an operator, the dispatch key whose
    kernel ran, and the library and version of the kernel. The daemon maps the same memory and reads
    it for metrics, and once more when the process has ended. So a kill loses no call whose kernel
    had ended, and nothing is sent for each call. The calls running at that time are in the flight
    record, whose slots refer to the row.

    A row has these numbers, unsigned, of 64 bits, in the machine's order; then its text:

        calls whose kernel returned; calls that failed; ns that kernels ran; ns that calls waited
        bytes of the tensors that kernels were given; of those that they returned
        for each bucket of RUN_BOUNDS, calls whose kernel ran that long
        for each bucket of QUEUE_BOUNDS, calls that waited that long, of those that waited at all

    There are at most ROWS rows; the last counts all series without a row of their own. When all are
    taken, rows of unloaded versions are reused, and their counts are added to the last row. An
    interpreter whose memory the daemon cannot access sends the rows that change with its
    heartbeats.

What is read of them is in ``call_table``.
"""

from __future__ import annotations

import functools
import mmap
import os
import struct
import threading
import weakref
from bisect import bisect_left
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from opdispatch_server.metrics.label_limits import LABEL_BYTES, MOST_SERIES, OTHER, cut_label
from opdispatch_server.shared_page import make_memory

if TYPE_CHECKING:
    from numpy.typing import NDArray

RUN_BOUNDS = (5e-5, 1e-4, 2.5e-4, 1e-3, 2.5e-3, 0.01, 0.025, 0.1, 0.25, 1.0, 2.5, 10.0)
"""Upper bounds of the buckets of running times, in seconds; one more bucket is unbounded."""
QUEUE_BOUNDS = RUN_BOUNDS

ROWS = MOST_SERIES
ROW_WORDS = 64
SIZE = 8 * ROWS * ROW_WORDS
BUCKETS = len(RUN_BOUNDS) + 1
RUN_AT, QUEUE_AT = 6, 6 + BUCKETS
NUMBERS = QUEUE_AT + BUCKETS
TEXT_BYTES = 8 * (ROW_WORDS - NUMBERS)
_NUMBERS = struct.Struct(f"<{NUMBERS}Q")
_WORD = 0xFFFFFFFFFFFFFFFF
_BOUNDS_NS = tuple(round(bound * 1e9) for bound in RUN_BOUNDS)
assert sum(LABEL_BYTES) + len(LABEL_BYTES) <= TEXT_BYTES, "the text of a series has its room"


class Series(NamedTuple):
    """The labels of calls that are counted together."""

    operator: str
    key: str = ""
    """The dispatch key whose kernel ran; empty for programs."""
    library: str = ""
    version: str = ""

    def encode(self) -> bytes:
        """Return the text of its row: a line of limited length for each part."""
        parts = zip(self, LABEL_BYTES, strict=True)
        return b"\n".join([cut_label(part.replace("\n", " "), size) for part, size in parts])

    @classmethod
    def decode(cls, text: bytes) -> Series:
        """Return the series of a row's text, which may be any bytes."""
        return cls._make(text.decode(errors="replace").split("\n"))


OTHER_SERIES = Series(OTHER)
"""The series of all calls without a row of their own."""
OTHER_TEXT = OTHER_SERIES.encode()
_LINE_ENDS = len(Series._fields) - 1


class CallCounts:
    """An interpreter's own counters. Any thread may count: ``_lock`` guards numbers and rows."""

    def __init__(self) -> None:
        self.descriptor = make_memory("opdispatch-calls", SIZE)
        self._take(memoryview(mmap.mmap(self.descriptor or -1, SIZE)))
        self._rows: dict[Series, int] = {}
        # The rows of unloaded versions, in order.
        self._retired: dict[Series, None] = {}
        if self.descriptor:
            weakref.finalize(self, os.close, self.descriptor).atexit = False
        _instances.add(self)

    def _take(self, memory: memoryview) -> None:
        self._lock = threading.Lock()
        self._bytes, self._words = memory, memory.cast("Q")

    def row_of(self, series: Series) -> int:
        """Return the row of a series; the first call for a series writes its text."""
        with self._lock:
            row = self._rows.get(series)
            if row is None:
                row = min(len(self._rows), ROWS - 1)
                if row == ROWS - 1:
                    row = self._take_retired_row()
                if row < ROWS - 1:  # no more series are remembered than there are rows
                    self._rows[series] = row
                else:
                    series = OTHER_SERIES
                self._write_text(row, series)
            else:
                self._retired.pop(series, None)
        return row

    def retire(self, library: str, version: str) -> None:
        """Release the rows of an unloaded version, to be reused when no others are left."""
        with self._lock:
            gone = (
                each for each in self._rows if (each.library, each.version) == (library, version)
            )
            self._retired.update(dict.fromkeys(gone))

    def _take_retired_row(self) -> int:
        """Return a free row, or the last one if there is none. The caller holds ``_lock``."""
        if not self._retired:
            return ROWS - 1
        series = next(iter(self._retired))
        del self._retired[series]
        row = self._rows.pop(series)
        at, other = row * ROW_WORDS, (ROWS - 1) * ROW_WORDS
        counted = self._words[at : at + NUMBERS].tolist()
        # The sum first: a reader may miss calls for a moment, but sees none twice.
        self._words[at : at + NUMBERS] = memoryview(bytes(8 * NUMBERS)).cast("Q")
        for place, number in enumerate(counted):
            self._words[other + place] = self._words[other + place] + number & _WORD
        self._write_text(ROWS - 1, OTHER_SERIES)
        return row

    def _write_text(self, row: int, series: Series) -> None:
        at = 8 * (row * ROW_WORDS + NUMBERS)
        self._bytes[at : at + TEXT_BYTES] = series.encode().ljust(TEXT_BYTES, b"\0")

    def note(
        self,
        row: int,
        run_ns: int,
        queue_ns: int,
        argument_bytes: int = 0,
        result_bytes: int = 0,
        *,
        failed: bool,
    ) -> None:
        """Count a call that has ended."""
        words, at = self._words, row * ROW_WORDS
        with self._lock:
            words[at + failed] += 1
            words[at + 2] += run_ns
            words[at + RUN_AT + bisect_left(_BOUNDS_NS, run_ns)] += 1
            if queue_ns:
                words[at + 3] += queue_ns
                words[at + QUEUE_AT + bisect_left(_BOUNDS_NS, queue_ns)] += 1
            # Views may have any number of elements; the sum wraps around, as counters do.
            if argument_bytes:
                words[at + 4] = words[at + 4] + argument_bytes & _WORD
            if result_bytes:
                words[at + 5] = words[at + 5] + result_bytes & _WORD

    def rows(self) -> Iterable[tuple[int, bytes]]:
        """Return the rows in use, each with its bytes as ``CountedRows.put`` takes them."""
        with self._lock:
            used = min(len(self._rows) + 1, ROWS)
            words = self._words[: used * ROW_WORDS].tolist()
            texts = [
                bytes(self._bytes[8 * (row * ROW_WORDS + NUMBERS) : 8 * (row + 1) * ROW_WORDS])
                for row in range(used)
            ]
        return [
            (row, _NUMBERS.pack(*words[row * ROW_WORDS : row * ROW_WORDS + NUMBERS]) + text)
            for row, text in enumerate(texts)
            if text[0]
        ]

    def part(self) -> None:
        """Switch to private memory, in a forked child: it must not change its parent's counts."""
        self._take(memoryview(bytearray(SIZE)))


# Weak, so that an instance that is dropped frees its memory; its own fork hook would keep it alive.
_instances: weakref.WeakSet[CallCounts] = weakref.WeakSet()


def _part_from_parent() -> None:
    for instance in list(_instances):
        instance.part()


os.register_at_fork(after_in_child=_part_from_parent)


@functools.cache
def process_call_counts() -> CallCounts:
    """Return this process's counters, created on first use: not before the process is forked."""
    return CallCounts()


def read_texts(rows: NDArray[np.uint64]) -> list[bytes]:
    """Return the texts of rows without padding; OTHER_TEXT for invalid bytes."""
    found = np.ascontiguousarray(rows).view(f"S{TEXT_BYTES}")[:, 0].tolist()
    return [text if text.count(b"\n") == _LINE_ENDS else OTHER_TEXT for text in found]
