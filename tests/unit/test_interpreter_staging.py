"""An import in an interpreter registers nothing until its version is published."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from opdispatch import default_dispatcher
from opdispatch.errors import InternalError, RegistrationError
from opdispatch_server.library_code.unpacked_libraries import UnpackedLibraries
from opdispatch_server.worker.libraries.staging import InterpreterStaging
from opdispatch_server.worker.libraries.unloaded_code import UnloadedCode
from opdispatch_wire.errors import LibraryLoadError
from opdispatch_wire.v1 import interpreter_pb2 as pb

CODE = """\
from opdispatch import Library

lib = Library("staged", "DEF")
lib.define("f() -> int")
lib.impl("f", lambda: 1, "CompositeImplicitAutograd")
"""
LOAD_ID = 1
STAGE = pb.Stage(load_id=LOAD_ID, name="staged", module="staged_library")


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path / "staged_library.py"


@pytest.fixture
def staging(tmp_path: Path) -> Iterator[InterpreterStaging]:
    unpacked = UnpackedLibraries(tmp_path / "unpacked")
    staging = InterpreterStaging(default_dispatcher(), unpacked, UnloadedCode())
    yield staging
    staging.abandon()


def is_registered() -> bool:
    return default_dispatcher().find_op("staged::f") is not None


def test_stage_returns_registrations_that_are_rolled_back(
    staging: InterpreterStaging, module: Path
):
    module.write_text(CODE)
    batch = staging.stage(STAGE, (), None)
    assert len(batch.registrations) == 3  # the namespace, the schema and the kernel
    assert not is_registered()
    assert staging.get(LOAD_ID).registrations


def test_failed_import_leaves_nothing(staging: InterpreterStaging, module: Path):
    module.write_text(f"{CODE}\n1 / 0\n")
    with pytest.raises(LibraryLoadError, match="ZeroDivisionError"):
        staging.stage(STAGE, (), None)
    assert not is_registered()
    assert staging.find(LOAD_ID) is None
    assert STAGE.module not in sys.modules


def test_refused_registration_rolls_back_those_before_it(staging: InterpreterStaging, module: Path):
    module.write_text(f"{CODE}\nlib.define('f() -> int')\n")
    with pytest.raises(RegistrationError):
        staging.stage(STAGE, (), None)
    assert not is_registered()


def test_invalid_max_concurrency_abandons_the_import(staging: InterpreterStaging, module: Path):
    module.write_text(f"{CODE}\nmax_concurrency = 0\n")
    with pytest.raises(LibraryLoadError, match="max_concurrency is 0"):
        staging.stage(STAGE, (), None)
    assert staging.find(LOAD_ID) is None
    assert STAGE.module not in sys.modules


def test_abandon_removes_the_module(staging: InterpreterStaging, module: Path):
    module.write_text(CODE)
    staging.stage(STAGE, (), None)
    staging.abandon()
    assert STAGE.module not in sys.modules
    with pytest.raises(InternalError, match="load 1 was not staged"):
        staging.get(LOAD_ID)


def test_get_rejects_another_load_id(staging: InterpreterStaging, module: Path):
    module.write_text(CODE)
    staging.stage(STAGE, (), None)
    with pytest.raises(InternalError, match="load 2 was not staged"):
        staging.get(LOAD_ID + 1)
