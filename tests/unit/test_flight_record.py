"""The flight record of an interpreter's runs, as the daemon reads it."""

from __future__ import annotations

import gc
import os
import sys
import threading
from pathlib import Path

import pytest

from opdispatch_server.blame.flight_record import (
    IMPORT,
    KERNEL,
    ROWS,
    SLOTS,
    FlightRecord,
    FlightRecorder,
    Subject,
    call_key,
)

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has memfds")

F = Subject(KERNEL, "lib", "lib::f")


def record_of(recorder: FlightRecorder) -> FlightRecord:
    record = FlightRecord.open(os.getpid(), recorder.descriptor)
    assert record is not None
    return record


def test_record_names_what_runs_and_what_has_ended():
    recorder = FlightRecorder()
    record = record_of(recorder)
    row = recorder.row_of(F)
    slot = recorder.begin(row, call_key(3, 7))
    [flight] = record.running()
    assert (flight.subject, flight.call) == (F, 3 << 32 | 7)
    assert flight.thread == threading.get_native_id()
    assert record.ended() == []
    recorder.end(slot, row)
    assert record.running() == []
    [landing] = record.ended()
    assert (landing.subject, landing.runs) == (F, 1)
    assert landing.ended >= flight.began


def test_several_of_one_subject_run_at_once():
    recorder = FlightRecorder()
    row, imports = recorder.row_of(F), recorder.row_of(Subject(IMPORT, "other"))
    slots = [recorder.begin(row), recorder.begin(imports), recorder.begin(row)]
    subjects = [flight.subject for flight in record_of(recorder).running()]
    assert subjects.count(F) == 2
    assert Subject(IMPORT, "other") in subjects
    recorder.end(slots[0], row)
    assert len(record_of(recorder).running()) == 2


def test_more_than_there_is_room_for_are_not_seen_and_do_no_harm():
    recorder = FlightRecorder()
    row = recorder.row_of(F)
    slots = [recorder.begin(row) for _ in range(SLOTS + 5)]
    assert len(record_of(recorder).running()) == SLOTS - 1
    for slot in slots:
        recorder.end(slot, row)
    assert record_of(recorder).running() == []
    assert recorder.begin(row) != recorder.begin(row)


def test_subjects_without_a_row_of_their_own_are_nameless():
    recorder = FlightRecorder()
    rows = {recorder.row_of(Subject(KERNEL, "lib", f"lib::f{n}")) for n in range(ROWS + 10)}
    assert len(rows) == ROWS
    recorder.begin(recorder.row_of(Subject(KERNEL, "lib", f"lib::f{ROWS + 5}")))
    assert record_of(recorder).running() == []


def test_a_run_names_its_thread_also_in_the_child_of_a_fork():
    recorder = FlightRecorder()
    row = recorder.row_of(F)
    recorder.begin(row)
    child = os.fork()
    if not child:
        recorder.begin(row)
        flight = recorder.find_running()
        is_named = flight is not None and flight.thread == threading.get_native_id()
        os._exit(0 if is_named else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_child_of_a_fork_changes_nothing_in_the_record():
    recorder = FlightRecorder()
    row = recorder.row_of(F)
    slot = recorder.begin(row)
    child = os.fork()
    if child == 0:
        recorder.end(slot, row)
        os._exit(0)
    os.waitpid(child, 0)
    assert [flight.subject for flight in record_of(recorder).running()] == [F]


def test_records_that_are_dropped_leave_neither_descriptors_nor_mappings():
    def held() -> tuple[int, int]:
        paths = Path("/proc/self/maps"), Path("/proc/self/fd")
        links = [link.readlink() for link in paths[1].iterdir() if link.is_symlink()]
        return (
            sum("opdispatch-flight" in str(link) for link in links),
            paths[0].read_text().count("opdispatch-flight"),
        )

    gc.collect()
    descriptors, mappings = held()
    recorder = FlightRecorder()
    record = record_of(recorder)
    assert held() > (descriptors, mappings)
    assert record.running() == []
    del recorder, record
    assert held() == (descriptors, mappings)


def test_memory_that_could_shrink_is_not_opened():
    descriptor = os.memfd_create("loose")
    os.ftruncate(descriptor, 1 << 24)
    assert FlightRecord.open(os.getpid(), descriptor) is None
    assert FlightRecord.open(os.getpid(), 0) is None
    assert FlightRecord.open(2**40, 5) is None
    os.close(descriptor)


def test_find_running_returns_what_began_last_in_this_thread():
    recorder = FlightRecorder()
    assert recorder.find_running() is None
    outer, inner = recorder.row_of(F), recorder.row_of(Subject(KERNEL, "lib", "lib::g"))
    first = recorder.begin(outer, call_key(3, 7))
    second = recorder.begin(inner)
    found = recorder.find_running()
    assert found is not None
    assert found.subject.operator == "lib::g"
    elsewhere = []
    thread = threading.Thread(target=lambda: elsewhere.append(recorder.find_running()))
    thread.start()
    thread.join(60)
    assert elsewhere == [None]
    recorder.end(second, inner)
    found = recorder.find_running()
    assert found is not None
    assert (found.subject, found.call) == (F, call_key(3, 7))
    recorder.end(first, outer)
    assert recorder.find_running() is None
