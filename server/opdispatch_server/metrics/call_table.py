"""Tables of the counters of interpreters, as the daemon reads them, and sums of tables.

A table has a row for each series and a column for each number, named in ``Counts``. With ten
thousand operators, rows are read, added and compared as arrays.
"""

from __future__ import annotations

import functools
import mmap
import os
import struct
import threading
from collections.abc import Mapping, Sequence
from itertools import repeat
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

import numpy as np

from opdispatch_server.metrics.call_counts import (
    BUCKETS,
    NUMBERS,
    OTHER_TEXT,
    QUEUE_AT,
    ROW_WORDS,
    ROWS,
    RUN_AT,
    SIZE,
    TEXT_BYTES,
    Series,
    read_texts,
)
from opdispatch_server.shared_page import open_memory

if TYPE_CHECKING:
    from numpy.typing import NDArray

Numbers: TypeAlias = "NDArray[np.uint64]"
"""The numbers of series, one row each: as in memory, followed by the calls that died."""

OK, FAILED, RUN_NS, QUEUE_NS, ARGUMENT_BYTES, RESULT_BYTES = range(6)
DIED: Final = NUMBERS
COLUMNS: Final = NUMBERS + 1
RUN_COLUMNS: Final = slice(RUN_AT, RUN_AT + BUCKETS)
QUEUE_COLUMNS: Final = slice(QUEUE_AT, QUEUE_AT + BUCKETS)

_ROW = struct.Struct(f"<{NUMBERS}Q")


class Counts(NamedTuple):
    """The counts of one series."""

    ok: int = 0
    """Calls whose kernel returned."""
    failed: int = 0
    run_ns: int = 0
    queue_ns: int = 0
    argument_bytes: int = 0
    """The bytes of the tensors that kernels were given."""
    result_bytes: int = 0
    """The bytes of the tensors that they returned."""
    run_buckets: Sequence[int] = (0,) * BUCKETS
    """Calls by bucket of running time, not cumulative."""
    queue_buckets: Sequence[int] = (0,) * BUCKETS
    """Calls by bucket of queue time, not cumulative."""
    died: int = 0
    """Calls that were running when their interpreter ended."""

    @classmethod
    def of(cls, row: Numbers) -> Counts:
        """Return the counts in a row of a table."""
        numbers = row.tolist()
        buckets = numbers[RUN_COLUMNS], numbers[QUEUE_COLUMNS]
        return cls._make([*numbers[:RUN_AT], *buckets, numbers[DIED]])


class CallTable(NamedTuple):
    """The counts of many series, one row each."""

    texts: Sequence[bytes]
    """The texts of the series, as in memory. They are compared without being decoded."""
    numbers: Numbers

    def series(self, row: int) -> Series:
        """Return the series of a row."""
        return Series.decode(self.texts[row])

    def counts(self) -> dict[Series, Counts]:
        """Return all counts; of equal series, the last one's."""
        series = map(Series.decode, self.texts)
        return dict(zip(series, map(Counts.of, self.numbers), strict=True))


@functools.cache
def no_calls() -> CallTable:
    """Return the table without rows."""
    return CallTable([], np.zeros((0, COLUMNS), np.uint64))


class CallSums:
    """Sums of tables: of at most ``most`` series, and of all further ones as ``OTHER_SERIES``."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._places: dict[bytes, int] = {}
        self._added: Numbers | None = None

    def copy(self) -> CallSums:
        """Return independent sums with the same values."""
        sums = CallSums(self._most)
        sums._places, sums._added = self._places.copy(), self._numbers.copy()
        return sums

    def add(self, table: CallTable) -> None:
        """Add the counts of a table."""
        places, texts = self._places, table.texts
        room = self._most + (OTHER_TEXT in places) - len(places)
        if len(texts) > room:
            new = [each for each in dict.fromkeys(texts) if each not in places]
            new[room:] = [OTHER_TEXT] if len(new) > room else []
            for each in new:
                places.setdefault(each, len(places))
            at = [*map(places.get, texts, repeat(places.get(OTHER_TEXT)))]
        else:
            at = [places.setdefault(each, len(places)) for each in texts]
            if not len(self._numbers) and len(places) == len(texts):
                self._added = table.numbers  # nothing writes to it: later sums are added to a copy
                return
        more = len(places) - len(self._numbers)
        self._added = np.pad(self._numbers, ((0, more), (0, 0)))
        add_at(self._numbers, np.array(at, np.intp), table.numbers)

    @property
    def _numbers(self) -> Numbers:
        return no_calls().numbers if self._added is None else self._added

    @property
    def table(self) -> CallTable:
        """Return the sums."""
        return CallTable([*self._places], self._numbers)


def add_at(sums: Numbers, places: NDArray[np.intp], numbers: Numbers) -> None:
    """Add each row of ``numbers`` to the row of ``sums`` at its place; places may repeat."""
    if len(places) == np.count_nonzero(np.bincount(places)):
        sums[places] += numbers
    else:
        np.add.at(sums, places, numbers)


def _complete(words: Numbers) -> Numbers:
    """Convert rows of memory to rows of a table."""
    numbers = np.zeros((len(words), COLUMNS), np.uint64)
    numbers[:, :NUMBERS] = words
    ended = numbers[:, OK] + numbers[:, FAILED]
    waited = numbers[:, QUEUE_COLUMNS].sum(axis=1)
    # Calls that did not wait are not counted in memory.
    numbers[:, QUEUE_AT] += np.where(ended > waited, ended - waited, 0).astype(np.uint64)
    return numbers


class SharedCounts:
    """The counters of an interpreter on this machine.

    Any thread may read: ``_lock`` guards texts.
    """

    def __init__(self, memory: mmap.mmap, inode: int) -> None:
        self.inode = inode
        """Identifies the memory; no other process has this inode while it is mapped."""
        self._memory = memory
        self._lock = threading.Lock()
        # The words of the texts, as of the last read.
        self._known: Numbers | None = None  # an array would load NumPy in the daemon
        self._texts: list[bytes] = []

    @classmethod
    def open(cls, pid: int, descriptor: int) -> SharedCounts | None:
        """Return the counters that a process has under a descriptor; None if inaccessible."""
        memory = open_memory(pid, descriptor, SIZE)
        if memory is None:
            return None
        try:
            return cls(memory, os.stat(f"/proc/{pid}/fd/{descriptor}").st_ino)
        except OSError:  # the process has just ended
            return None

    @functools.cached_property
    def _words(self) -> Numbers:
        return np.frombuffer(self._memory, np.uint64).reshape(ROWS, ROW_WORDS)

    def read(self) -> CallTable:
        """Return the rows in use, in their order."""
        with self._lock:
            before = len(self._texts)
            used = self._find_end(before)
            words = self._words[:used, NUMBERS:]
            known = words[:0] if self._known is None else self._known
            if before < used or (words != known).any():
                # A copy, since the interpreter may be writing a text.
                self._known = words = words.copy()
                texts = [*self._texts, *read_texts(words[before:])]
                for row in np.flatnonzero((words[:before] != known).any(axis=1)).tolist():
                    [texts[row]] = read_texts(words[row : row + 1])
                self._texts = texts
            return CallTable(self._texts, _complete(self._words[:used, :NUMBERS]))

    def _find_end(self, row: int) -> int:
        """Return the first row from this one on without a text; no later row has one.

        Reads few of the rows beyond it, since rows take memory only once they are written or read.
        """
        rows = 8
        while row < ROWS:
            named = self._words[row : row + rows, NUMBERS] != 0
            if not named.all():
                return row + int(named.argmin())
            row += len(named)
            rows *= 2
        return row


class CountedRows:
    """The counters of an interpreter whose memory is not accessible, from its heartbeats."""

    def __init__(self) -> None:
        self._rows: dict[int, tuple[bytes, bytes]] = {}

    def put(self, row: int, data: bytes) -> None:
        """Store the current state of a row; ignore an invalid one."""
        if row < ROWS and _ROW.size < len(data) <= 8 * ROW_WORDS:
            words = np.frombuffer(data[_ROW.size :].ljust(TEXT_BYTES, b"\0"), np.uint64)
            [text] = read_texts(words.reshape(1, -1))
            self._rows[row] = text, data[: _ROW.size]

    def read(self) -> CallTable:
        """Return the rows received so far."""
        rows = list(self._rows.values())
        words = np.frombuffer(b"".join(data for _, data in rows), "<u8").reshape(-1, NUMBERS)
        return CallTable([text for text, _ in rows], _complete(words))


def table_of(counts: Mapping[Series, Counts]) -> CallTable:
    """Return a table of these counts."""
    rows = [[*e[:RUN_AT], *e.run_buckets, *e.queue_buckets, e.died] for e in counts.values()]
    return CallTable(
        [each.encode() for each in counts], np.array(rows, np.uint64).reshape(-1, COLUMNS)
    )
