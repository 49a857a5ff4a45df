"""Direct calls on every way leave an interpreter whose lock a kernel of another operator keeps."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import opdispatch_client as oc
from tests.service.conftest import StartDaemon, WriteLibrary
from tests.service.openings import Openings
from tests.service.running_daemon import Background, wait_for
from tests.waits import LONGEST_WAIT

X = np.zeros(2)

# It keeps the lock until something is written to the pipe.
KEEPER = """
import ctypes, os
from opdispatch import Library

max_concurrency = 8
lib = Library("keeper", "DEF")
lib.define("keep(Tensor x, str pipe) -> int")

def keep(x, pipe):
    file = os.open(pipe, os.O_RDWR)
    open(pipe + "-open", "x").close()
    ctypes.PyDLL(None).read(file, ctypes.create_string_buffer(1), 1)
    return os.getpid()

lib.impl("keep", keep, "CPU")
"""

BESIDE = """
import os
from opdispatch import Library

max_concurrency = 8
lib = Library("beside", "DEF")

def note(x, path):
    with open(path, "a") as file:
        file.write("x")
    return os.getpid()

for name, x in (("note", "Tensor x"), ("fill", "Tensor(a!) x")):
    lib.define(f"{name}({x}, str path) -> int")
    lib.impl(name, note, "CPU")
"""


class Notes:
    """Paths where each call notes that it has run."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self._folder = folder
        self._paths: list[Path] = []

    def new(self) -> str:
        self._paths.append(self._folder / str(len(self._paths)))
        return str(self._paths[-1])

    def runs(self) -> set[int]:
        return {len(path.read_text()) for path in self._paths}


@pytest.fixture
def pipe(tmp_path: Path) -> Iterator[Path]:
    """Yield the pipe that the keeper waits on, and end the wait afterwards."""
    path = tmp_path / "pipe"
    os.mkfifo(path)
    yield path
    let_go(path)


def let_go(pipe: Path) -> None:
    file = os.open(pipe, os.O_RDWR)  # waits for no reader
    os.write(file, b"x")
    os.close(file)


@pytest.mark.parametrize("lane", ["local", "stream"])
async def test_direct_calls_run_elsewhere_while_another_kernel_keeps_the_lock(
    start_daemon: StartDaemon,
    write_library: WriteLibrary,
    openings: Openings,
    pipe: Path,
    lane: str,
):
    listen = ["127.0.0.1:0"] if lane == "stream" else None
    daemon = start_daemon("--lock-timeout", "60", listen=listen)
    notes, writes = Notes(pipe.parent / "note"), Notes(pipe.parent / "write")
    with daemon.connect() as control, daemon.connect(lane=lane, timeout=LONGEST_WAIT) as session:
        control.load(write_library("keeper", KEEPER))
        [keeper] = [each for each in control.interpreters() if "keeper v1" in each.libraries]
        control.load(write_library("beside", BESIDE), interpreter=keeper.name)
        note = session.ops.beside.note
        async with oc.aio.connect(daemon.address, lane=lane, timeout=LONGEST_WAIT) as tasks_session:
            # Both know the way.
            assert note(X, notes.new()) == keeper.pid
            session.ops.beside.fill(X, writes.new())
            for _ in range(2):
                assert await tasks_session.ops.beside.note(X, notes.new()) == keeper.pid
            if lane == "stream":
                for _ in range(2):
                    assert (await asyncio.to_thread(openings.next)).endswith(
                        f"calls go to interpreter {keeper.name} directly"
                    )
            assert note(X, notes.new()) == keeper.pid
            with Background(control.ops.keeper.keep, X, str(pipe)) as kept:
                assert wait_for(pipe.with_name("pipe-open").exists)
                # They are under way before anybody knows that the interpreter is busy.
                with Background(note, X, notes.new()) as call:
                    write = session.submit("beside::fill", X, writes.new())
                    submitted = [session.submit("beside::note", X, notes.new()) for _ in range(10)]
                    mapped = session.map("beside::note", [(X, notes.new()) for _ in range(10)])
                    awaited = asyncio.gather(
                        *(tasks_session.ops.beside.note(X, notes.new()) for _ in range(10))
                    )
                    pids = {
                        *await awaited,
                        *await asyncio.to_thread(list, mapped),
                        *[await asyncio.to_thread(each.result) for each in submitted],
                        await asyncio.to_thread(call.result),
                    }
                    [now] = [i for i in control.interpreters() if i.name == keeper.name]
                    assert (now.state, now.pid) == ("busy", keeper.pid)
                    assert now.busy_operators == ("keeper::keep",)
                    assert keeper.pid not in pids
                    assert not write.done()
                    let_go(pipe)
                assert kept.result() == keeper.pid
            await asyncio.to_thread(write.result)
        assert writes.runs() == {1}
        assert notes.runs() <= {1, 2}
        assert control.check_invariants() == []


def test_calls_that_are_queued_for_an_interpreter_leave_it_while_a_kernel_keeps_the_lock(
    start_daemon: StartDaemon, write_library: WriteLibrary, pipe: Path
):
    daemon = start_daemon("--lock-timeout", "60")
    notes = Notes(pipe.parent / "note")
    with daemon.connect() as control, daemon.connect(direct=False, timeout=LONGEST_WAIT) as session:
        control.load(write_library("keeper", KEEPER))
        [keeper] = [each for each in control.interpreters() if "keeper v1" in each.libraries]
        control.load(write_library("beside", BESIDE), interpreter=keeper.name)
        assert session.ops.beside.note(X, notes.new()) == keeper.pid
        with Background(control.ops.keeper.keep, X, str(pipe)) as kept:
            assert wait_for(pipe.with_name("pipe-open").exists)
            futures = [session.submit("beside::note", X, notes.new()) for _ in range(50)]
            assert wait_for(lambda: sum(each.calls_queued for each in control.interpreters()))
            assert keeper.pid not in {each.result() for each in futures}
            [now] = [each for each in control.interpreters() if each.name == keeper.name]
            assert (now.state, now.calls_queued) == ("busy", 0)
            let_go(pipe)
            assert kept.result() == keeper.pid
        assert notes.runs() <= {1, 2}
        assert control.check_invariants() == []
