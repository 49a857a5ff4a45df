"""Which silent interpreters are busy, and which are lost."""

from __future__ import annotations

import os
import sys

import pytest

from opdispatch_server.blame.flight_record import IMPORT, KERNEL, FlightRecorder, Subject
from opdispatch_server.blame.suspicion import Cause
from opdispatch_server.daemon.interpreters.session import InterpreterSession
from opdispatch_server.daemon.interpreters.silence import SilentInterpreters
from opdispatch_wire.message_size import MAX_MESSAGE_BYTES_DEFAULT
from opdispatch_wire.v1 import interpreter_pb2
from tests.unit.test_flight_record import record_of

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has memfds")

HEARTBEAT = 10.0
LOCK_TIMEOUT = 100.0
# Since before the tests began, whatever they have run by then.
SILENT = 3600.0
KERNEL_F = Subject(KERNEL, "lib", "lib::f")


class Watched:
    """The sessions that were stopped, and why; the session is this process's own."""

    def __init__(self) -> None:
        self.stopped: list[Cause] = []
        self.recorder = FlightRecorder()
        hello = interpreter_pb2.Hello(pid=os.getpid(), address="127.0.0.1:1")
        self.session = InterpreterSession(
            hello, "worker-1", supervised=False, max_message_bytes=MAX_MESSAGE_BYTES_DEFAULT
        )
        self.session.flight_record = record_of(self.recorder)
        self.silent = SilentInterpreters(
            HEARTBEAT,
            LOCK_TIMEOUT,
            lambda session, why, cause, subject: self.stopped.append(cause),
            lambda: None,
            lambda session: None,
        )

    def look(self, silence: float) -> list[Cause]:
        self.silent.look(self.session, silence)
        return self.stopped

    def run(self, subject: Subject) -> None:
        row = self.recorder.row_of(subject)
        self.recorder.end(self.recorder.begin(row), row)


@pytest.fixture
async def watched() -> Watched:
    return Watched()


async def test_silence_in_which_nothing_ran_is_the_end(watched: Watched):
    assert watched.look(SILENT) == [Cause.SILENT]


async def test_import_that_has_just_ended_leaves_time_for_a_heartbeat(watched: Watched):
    watched.run(Subject(IMPORT, "lib"))
    assert watched.look(SILENT) == []
    assert watched.look(SILENT + HEARTBEAT / 2) == []
    watched.silent.note_heard(watched.session)
    assert watched.look(SILENT) == []


async def test_kernels_that_go_on_ending_excuse_no_further_silence(watched: Watched):
    for silence in (SILENT, SILENT + HEARTBEAT / 2):
        watched.run(KERNEL_F)
        assert watched.look(silence) == []
    watched.run(KERNEL_F)
    assert watched.look(SILENT + HEARTBEAT) == [Cause.SILENT]


async def test_kernel_makes_its_interpreter_busy_until_the_lock_timeout(watched: Watched):
    watched.recorder.begin(watched.recorder.row_of(KERNEL_F))
    assert watched.look(LOCK_TIMEOUT / 2) == []
    assert watched.session.busy == "the kernel of lib::f keeps the interpreter lock"
    assert watched.session.busy_with == {"lib"}
    assert watched.look(LOCK_TIMEOUT * 2) == [Cause.LOCKED]
    watched.silent.note_heard(watched.session)
    assert watched.session.busy == ""
