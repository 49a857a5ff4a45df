"""The calls that an interpreter counts, as the daemon reads them."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opdispatch_server.metrics.call_counts import (
    OTHER_SERIES,
    ROWS,
    RUN_BOUNDS,
    CallCounts,
    Series,
)
from opdispatch_server.metrics.call_table import (
    FAILED,
    OK,
    CallTable,
    CountedRows,
    Counts,
    SharedCounts,
)

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has memfds")

F = Series("lib::f", "CPU", "lib", "1")
SECOND = 10**9


def shared(counts: CallCounts) -> SharedCounts:
    found = SharedCounts.open(os.getpid(), counts.descriptor)
    assert found is not None
    return found


def row_of(table: CallTable, row: int) -> tuple[Series, int, int]:
    """Return the series of a row, and how many of its calls went well and failed."""
    return table.series(row), int(table.numbers[row, OK]), int(table.numbers[row, FAILED])


def read(counts: CallCounts) -> dict[Series, Counts]:
    return shared(counts).read().counts()


def test_counts_of_a_series_are_read_from_shared_memory():
    counts = CallCounts()
    row = counts.row_of(F)
    counts.note(row, 2 * SECOND, 0, failed=False)
    counts.note(row, 60_000, 3 * SECOND, 70, 8, failed=True)
    counts.note(row, 60_000, 0, 2**64 - 1, failed=True)
    found = read(counts)[F]
    assert (found.argument_bytes, found.result_bytes) == (69, 8), "what is too much begins anew"
    assert (found.ok, found.failed) == (1, 2)
    assert found.run_ns == 2 * SECOND + 120_000
    assert found.queue_ns == 3 * SECOND
    assert found.run_buckets[RUN_BOUNDS.index(2.5)] == 1
    assert found.run_buckets[RUN_BOUNDS.index(1e-4)] == 2
    assert found.queue_buckets[0] == 2, "the calls that did not wait"
    assert found.queue_buckets[RUN_BOUNDS.index(10.0)] == 1


@given(st.lists(st.floats(0, 100), max_size=20))
def test_each_call_is_in_the_first_bucket_that_holds_it(seconds: list[float]):
    counts = CallCounts()
    row = counts.row_of(F)
    for each in seconds:
        counts.note(row, round(each * 1e9), 0, failed=False)
    cumulated = list(accumulate(read(counts)[F].run_buckets))
    expected = [
        sum(round(each * 1e9) <= round(bound * 1e9) for each in seconds) for bound in RUN_BOUNDS
    ]
    assert cumulated == [*expected, len(seconds)]


def test_no_call_is_lost_between_threads():
    counts = CallCounts()
    row = counts.row_of(F)

    def note(_: int) -> None:
        for _ in range(2000):
            counts.note(row, 1000, 1000, failed=False)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(note, range(4)))
    found = read(counts)[F]
    assert (found.ok, found.run_ns, sum(found.queue_buckets)) == (8000, 8_000_000, 8000)


def test_series_beyond_the_last_row_are_counted_together():
    counts = CallCounts()
    rows = [counts.row_of(F._replace(operator=f"lib::f{n}")) for n in range(ROWS + 10)]
    assert len(set(rows)) == ROWS
    for row in rows[-11:]:
        counts.note(row, 1, 0, failed=False)
    found = shared(counts).read()
    assert len(found.texts) == ROWS
    assert row_of(found, ROWS - 1) == (OTHER_SERIES, 11, 0)


def test_rows_that_are_not_in_use_take_no_memory():
    counts = CallCounts()
    assert counts.descriptor
    for n in range(100):
        counts.row_of(F._replace(operator=f"lib::f{n}"))
    used = os.fstat(counts.descriptor).st_blocks
    daemon = shared(counts)
    assert len(daemon.read().texts) == len(daemon.read().texts) == 100
    assert os.fstat(counts.descriptor).st_blocks < 4 * used


def test_rows_of_versions_that_were_unloaded_are_used_again():
    counts = CallCounts()
    old, new = F._replace(version="1"), F._replace(version="2")
    for n in range(ROWS - 1):
        series = (old if n < 2 else new)._replace(operator=f"lib::f{n}")
        counts.note(counts.row_of(series), 1000, 0, failed=False)
    counts.retire("lib", "1")
    daemon = shared(counts)
    assert daemon.read().series(0).version == "1", "there is room, and they stay"
    counts.row_of(old._replace(operator="lib::f1"))  # it was loaded once more
    later = F._replace(operator="lib::later_with_a_long_name", version="3")
    row = counts.row_of(later)
    counts.note(row, 1000, 0, failed=True)
    found = daemon.read()
    assert row == 0
    assert row_of(found, 0) == (later, 0, 1)
    assert found.series(1).version == "1"
    assert row_of(found, ROWS - 1) == (OTHER_SERIES, 1, 0), "what the row had counted"
    assert found.numbers[:, [OK, FAILED]].sum() == ROWS
    assert counts.row_of(later._replace(operator="lib::last")) == ROWS - 1, "none is left"


@given(st.lists(st.text(max_size=300), min_size=4, max_size=4))
def test_names_of_any_kind_are_cut_and_do_not_mix(names: list[str]):
    counts = CallCounts()
    counts.note(counts.row_of(Series(*names)), 1, 0, failed=False)
    after = counts.row_of(F)
    counts.note(after, 1, 0, failed=False)
    found = shared(counts).read()
    assert found.series(after) == F
    for name, told in zip(names, found.series(0), strict=True):
        plain = name.replace("\n", " ").replace("\0", " ").encode(errors="replace").decode()
        assert plain.startswith(told)
        assert told == plain or len(told.encode()) > len(plain.encode()) / 100


def test_counts_outlive_the_process_that_made_them():
    source = (
        "import os, sys\n"
        "from opdispatch_server.metrics.call_counts import CallCounts, Series\n"
        "counts = CallCounts()\n"
        "counts.note(counts.row_of(Series('a::b', 'CPU', 'a', '1')), 5, 0, failed=False)\n"
        "print(counts.descriptor, flush=True)\n"
        "sys.stdin.read()\n"
        "os._exit(9)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", source], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        found = SharedCounts.open(process.pid, int(process.stdout.readline()))
        assert found is not None
        process.kill()
    assert found.read().counts()[Series("a::b", "CPU", "a", "1")].ok == 1
    assert SharedCounts.open(process.pid, 3) is None


def test_a_fork_counts_for_itself():
    counts = CallCounts()
    row = counts.row_of(F)
    child = os.fork()
    if not child:
        counts.note(row, 1, 0, failed=False)
        os._exit(0)
    os.waitpid(child, 0)
    assert read(counts)[F].ok == 0


def test_rows_of_far_interpreters_are_the_same():
    counts, far = CallCounts(), CountedRows()
    counts.note(counts.row_of(F), 7, 9, failed=True)
    for row, words in counts.rows():
        far.put(row, words)
    assert far.read().counts() == shared(counts).read().counts()


@given(st.integers(0, 2**32 - 1), st.binary(max_size=600))
def test_malformed_row_is_left_out(row: int, words: bytes):
    far = CountedRows()
    far.put(row, words)
    assert len(far.read().texts) <= 1
