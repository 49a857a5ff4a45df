"""Which instructions of the daemon run code of a library, and so are entered in the record."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from opdispatch import default_dispatcher
from opdispatch_server.blame.flight_record import IMPORT, UNLOAD, Subject
from opdispatch_server.daemon.libraries.kernel_route import KernelRoute
from opdispatch_server.library_code.unpacked_libraries import UnpackedLibraries
from opdispatch_server.worker.libraries.instructions import InterpreterLibraries
from opdispatch_wire.v1 import interpreter_pb2 as pb

CODE = """\
from opdispatch import Library

lib = Library("recorded", "DEF")
lib.define("f() -> int")
lib.impl("f", lambda: 1, "CompositeImplicitAutograd")
"""
HERE, ELSEWHERE = 1, 2
STAGE = pb.DaemonMessage(stage=pb.Stage(load_id=HERE, name="recorded", module="recorded_library"))
COMMIT = pb.DaemonMessage(commit=pb.Commit(load_id=HERE))
ABORT = pb.DaemonMessage(abort=pb.Abort(load_id=HERE))


def retire(load_id: int, *, keep: bool) -> pb.DaemonMessage:
    return pb.DaemonMessage(retire=pb.Retire(load_id=load_id, keep=keep))


@pytest.fixture
def libraries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[InterpreterLibraries]:
    (tmp_path / "recorded_library.py").write_text(CODE)
    monkeypatch.syspath_prepend(str(tmp_path))
    unpacked = UnpackedLibraries(tmp_path / "unpacked")
    libraries = InterpreterLibraries(default_dispatcher(), KernelRoute.kernel, unpacked)
    yield libraries
    libraries.drop_all()
    sys.modules.pop("recorded_library", None)


def test_stage_runs_the_import(libraries: InterpreterLibraries):
    assert libraries.subject_of(STAGE) == Subject(IMPORT, "recorded")


def test_abort_runs_the_hooks_of_what_is_staged(libraries: InterpreterLibraries):
    assert libraries.subject_of(ABORT) is None
    libraries.obey(STAGE)
    assert libraries.subject_of(ABORT) == Subject(UNLOAD, "recorded")


def test_retire_runs_hooks_unless_the_code_is_kept(libraries: InterpreterLibraries):
    libraries.obey(STAGE)
    libraries.obey(COMMIT)
    assert libraries.subject_of(COMMIT) is None
    assert libraries.subject_of(retire(HERE, keep=True)) is None
    assert libraries.subject_of(retire(HERE, keep=False)) == Subject(UNLOAD, "recorded")


def test_retire_of_a_mirror_runs_nothing(libraries: InterpreterLibraries):
    batch = libraries.obey(STAGE).staged
    libraries.obey(ABORT)
    mirror = pb.Mirror(load_id=ELSEWHERE, name="recorded", batch=batch)
    libraries.obey(pb.DaemonMessage(mirror=mirror))
    assert libraries.subject_of(retire(ELSEWHERE, keep=False)) is None
