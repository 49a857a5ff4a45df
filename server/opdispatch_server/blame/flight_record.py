"""The record of what an interpreter runs, in memory shared with the daemon that outlives it.

Note [Flight record]
    Clients call interpreters directly, so the daemon does not know what one was running when it
    died. Each interpreter records that in a memfd: a few plain stores when a kernel, an import or
    an unload begins and ends. The daemon maps the same memory, and reads it when the process has
    ended or is silent: nothing has to be sent, and no lock of the process is needed.

    A record has ``SLOTS`` slots, one for each run in progress, and ``ROWS`` rows, one for each
    subject: code that can run. All numbers are unsigned 64-bit integers in the machine's byte
    order:

        slot    row + 1, or 0 if it is free; when it began, in ns; native thread id; ``call_key``;
                its row in ``call_counts`` + 1, or 0 if it is counted in none
        row     when one of its runs ended last, in ns; how many have ended; then its text

    The very last number is the time, in ns, of the last heartbeat with nothing new to report.

    A slot's first number is written last when a run begins and first when it ends, so that a
    concurrent reader sees either a free slot or a complete one.
"""

from __future__ import annotations

import functools
import itertools
import mmap
import os
import threading
import weakref
from time import monotonic_ns
from typing import NamedTuple

from opdispatch_server.shared_page import make_memory, open_memory

SLOTS = 512
ROWS = 8192
SLOT_WORDS = 5
ROW_WORDS = 32
_TEXT_WORDS = ROW_WORDS - 2
_TEXT_BYTES = 8 * _TEXT_WORDS
FIRST_ROW = SLOTS * SLOT_WORDS
_BEAT = FIRST_ROW + ROWS * ROW_WORDS
SIZE = 8 * (_BEAT + 1)
# Runs that begin when no slot is free are not recorded.
SPARE_SLOT = (SLOTS - 1) * SLOT_WORDS
# The last row counts everything that has no row of its own.
_MORE = ROWS - 1

KERNEL = "kernel"
IMPORT = "import"
UNLOAD = "unload"


class Thread(threading.local):
    """The native id of the calling thread, cached; queried again in a forked child."""

    def __init__(self) -> None:
        self.native_id = threading.get_native_id()


THREAD = Thread()


class Subject(NamedTuple):
    """Code that can run, and so be to blame: a kernel of a library, its import or its unload."""

    kind: str
    library: str
    operator: str = ""
    """For a kernel; otherwise empty."""

    def __str__(self) -> str:
        if self.kind == KERNEL:
            return f"the kernel of {self.operator}"
        return f"the {self.kind} of {self.library}"


class Flight(NamedTuple):
    """One run in progress. ``began`` is a time of ``time.monotonic``."""

    subject: Subject
    began: float
    thread: int = 0
    """As from ``threading.get_native_id``."""
    call: int = 0
    """The ``call_key`` of a kernel's call; 0 if there is none."""
    counts_row: int = -1
    """The row in ``call_counts``; -1 if it is not counted."""


class Landing(NamedTuple):
    """The completed runs of one subject: when the last one ended, and how many."""

    subject: Subject
    ended: float
    runs: int


def call_key(lane: int, number: int) -> int:
    """Return the key of a call, by its id on a client's lane, or on the daemon's, which is 0."""
    return (lane & 0xFFFFFFFF) << 32 | number & 0xFFFFFFFF


def end_word(row: int) -> int:
    """Return the index of a row's time of the last end; the count of ends follows it."""
    return FIRST_ROW + row * ROW_WORDS


class FlightRecorder:
    """An interpreter's own record. Any thread may write; ``_lock`` protects the rows' texts.

    Kernels are recorded by inlined code (see ``RecordedRuns``), which uses ``words`` and ``free``.
    """

    def __init__(self) -> None:
        self.descriptor = make_memory("opdispatch-flight", SIZE)
        memory = mmap.mmap(self.descriptor or -1, SIZE)
        self.words = memoryview(memory).cast("Q")
        self._bytes = memoryview(memory)
        self.free = list(range(0, SPARE_SLOT, SLOT_WORDS))
        self.free.reverse()
        self._rows: dict[Subject, int] = {}
        self._lock = threading.Lock()
        if self.descriptor:
            weakref.finalize(self, os.close, self.descriptor).atexit = False
        _recorders.add(self)

    def row_of(self, subject: Subject) -> int:
        """Return the row of a subject; the first call for a subject writes its text."""
        row = self._rows.get(subject)
        if row is not None:
            return row
        with self._lock:
            row = self._rows.get(subject)
            if row is None:
                row = self._rows[subject] = min(len(self._rows), _MORE)
                self._write_text(row, "\n".join(subject) if row < _MORE else "\n\n")
        return row

    def begin(self, row: int, call: int = 0, counts_row: int = -1) -> int:
        """Record the beginning of a call's run in this thread; return its slot, for ``end``."""
        try:
            slot = self.free.pop()
        except IndexError:
            slot = SPARE_SLOT
        words = self.words
        words[slot + 1] = monotonic_ns()
        words[slot + 2] = THREAD.native_id
        words[slot + 3] = call
        words[slot + 4] = counts_row + 1
        words[slot] = row + 1
        return slot

    def end(self, slot: int, row: int) -> None:
        """Record the end of a run."""
        words = self.words
        words[slot] = 0
        at = end_word(row)
        words[at] = monotonic_ns()
        words[at + 1] += 1
        if slot != SPARE_SLOT:
            self.free.append(slot)

    def beat(self) -> None:
        """Record a heartbeat."""
        self.words[_BEAT] = monotonic_ns()

    def find_running(self) -> Flight | None:
        """Return the most recently begun run in this thread; None if there is none.

        Also None if its subject has no row of its own.
        """
        threads = self.words[2:FIRST_ROW:SLOT_WORDS].tolist()
        mine, latest = THREAD.native_id, (0, 0, 0, 0)
        for index in [index for index, thread in enumerate(threads) if thread == mine]:
            row, began, thread, call, _ = self.words[SLOT_WORDS * index : SLOT_WORDS * (index + 1)]
            if 0 < row <= _MORE:
                latest = max(latest, (began, row, thread, call))
        began, row, thread, call = latest
        if not row:
            return None
        with self._lock:  # rows are numbered in the order of creation
            subject = next(itertools.islice(self._rows, row - 1, None))
        return Flight(subject, began / 1e9, thread, call)

    def _write_text(self, row: int, text: str) -> None:
        data = text.encode(errors="replace")[: _TEXT_BYTES - 1]
        at = 8 * (end_word(row) + 2)
        self._bytes[at : at + len(data)] = data

    def part(self) -> None:
        """Write into private memory from now on: a fork must not write its parent's record."""
        self._bytes = memoryview(bytearray(SIZE))
        self.words = self._bytes.cast("Q")


# Weak, so that a recorder that is dropped frees its memory; its own fork hook would keep it alive.
_recorders: weakref.WeakSet[FlightRecorder] = weakref.WeakSet()


def _part_from_parent() -> None:
    THREAD.native_id = threading.get_native_id()
    for recorder in list(_recorders):
        recorder.part()


os.register_at_fork(after_in_child=_part_from_parent)


@functools.cache
def process_recorder() -> FlightRecorder:
    """Return this process's recorder, created on first use.

    Not to be used before the process is forked.
    """
    return FlightRecorder()


class FlightRecord:
    """The record of an interpreter on this machine, as the daemon reads it."""

    def __init__(self, memory: mmap.mmap) -> None:
        self._bytes = memoryview(memory)
        self._words = self._bytes.cast("Q")

    @classmethod
    def open(cls, pid: int, descriptor: int) -> FlightRecord | None:
        """Open the record of a process under that descriptor.

        Return None if it is not accessible.
        """
        memory = open_memory(pid, descriptor, SIZE)
        return cls(memory) if memory is not None else None

    @property
    def beat(self) -> float:
        """The time of the last recorded heartbeat, by ``time.monotonic``; 0: none."""
        return self._words[_BEAT] / 1e9

    def running(self) -> list[Flight]:
        """Return the runs in progress, or those when the process ended, in order of beginning."""
        words = self._words
        found = []
        for slot in range(0, SPARE_SLOT, SLOT_WORDS):
            row, began, thread, call, counted = words[slot : slot + SLOT_WORDS]
            if row and (subject := self._subject(row - 1)) is not None:
                found.append(Flight(subject, began / 1e9, thread, call, counted - 1))
        return sorted(found, key=lambda flight: flight.began)

    def ended(self) -> list[Landing]:
        """Return every subject with a completed run, the most recent first."""
        words = self._words
        found = []
        for row in range(ROWS):
            at = end_word(row)
            if not self._bytes[8 * (at + 2)]:
                break  # rows are assigned in order, so the rest are unused
            if words[at] and (subject := self._subject(row)) is not None:
                found.append(Landing(subject, words[at] / 1e9, words[at + 1]))
        return sorted(found, key=lambda landing: landing.ended, reverse=True)

    def _subject(self, row: int) -> Subject | None:
        at = 8 * (end_word(row) + 2) if row < ROWS else 0
        text = bytes(self._bytes[at : at + _TEXT_BYTES]).partition(b"\0")[0]
        parts = text.decode(errors="replace").split("\n")
        return Subject(*parts) if len(parts) == len(Subject._fields) and parts[0] else None
