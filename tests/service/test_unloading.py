"""Unloaded versions leave no memory, no open files, no part of themselves."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import opdispatch_client as oc
from tests.service.conftest import StartDaemon
from tests.service.running_daemon import wait_for
from tests.service.test_interpreters import worker

WORKERS = 1
MIB = 2**20
UNLOAD_SECONDS = [
    "opdispatch_server.worker.libraries.loaded.UNLOAD_SECONDS",
    "opdispatch_server.worker.libraries.staging.UNLOAD_SECONDS",
]


HEAVY = """\
import copyreg, functools, os, sys, weakref
from dataclasses import dataclass
import numpy as np
from opdispatch import Library

weights = np.ones(25 * 2**17)  # {number}
alive = sys.__dict__.setdefault("kept_by_the_test", [])  # where no library's code refers to it


@dataclass
class Model:
    weights: object


model = Model(weights)
model.itself = model
copyreg.pickle(Model, lambda model: (Model, (weights,)))


@functools.lru_cache
def part(size):
    return weights[:size]


lib = Library("heavy", "DEF")
lib.define("first(Tensor x) -> Tensor")
lib.define("boom(Tensor x) -> Tensor")
lib.define("alive() -> int")


def first(x):
    return x + part(1)


def boom(x):
    mine = weights
    raise ValueError("no")


alive += [weakref.ref(Model), weakref.ref(boom)]
lib.impl("first", first, "CPU")
lib.impl("boom", boom, "CPU")
lib.impl("alive", lambda: sum(ref() is not None for ref in alive), "CompositeImplicitAutograd")
"""


def anonymous_memory(pid: int) -> int:
    """Return the bytes of a process that are in no file.

    Whether it shares them with the process it was forked from makes no difference, and changes
    with every object that is merely looked at.
    """
    status = Path(f"/proc/{pid}/status").read_text()
    found = re.search(r"^RssAnon:\s+(\d+) kB$", status, re.MULTILINE)
    assert found, status
    return int(found[1]) * 1024


def test_memory_of_versions_goes_with_them(session: oc.Session, tmp_path: Path):
    pid = session.interpreters()[0].pid
    library, x = tmp_path / "heavy.py", np.ones(3)
    before = anonymous_memory(pid)
    for number in range(15):
        library.write_text(HEAVY.format(number=number))
        session.load(library)
        session.ops.heavy.first(x)
        with pytest.raises(oc.KernelError):
            session.ops.heavy.boom(x)
    # The one in force, and the one before it, which a rollback brings back.
    assert wait_for(lambda: session.ops.heavy.alive() == 4)
    assert wait_for(lambda: anonymous_memory(pid) - before < 75 * MIB)
    session.unload("heavy")
    assert wait_for(lambda: anonymous_memory(pid) - before < 12 * MIB)


HOOKED = """\
from pathlib import Path
from opdispatch import Library
import time

gate = Path({folder!r})
lib = Library("hooked", "DEF")
lib.define("version() -> int")
lib.define("hold() -> int")
file = open(__file__)


@lib.on_unload
def unloaded():
    file.close()
    with open(gate / "unloaded", "a") as log:
        log.write("{number}\\n")
    {more}


def hold():
    (gate / "reached").touch()
    deadline = time.monotonic() + 60
    while not (gate / "go").exists():
        assert time.monotonic() < deadline
        time.sleep(0.002)
    assert not file.closed
    return {number}


def version():
    assert not file.closed
    return {number}


lib.impl("version", version, "CompositeImplicitAutograd")
lib.impl("hold", hold, "CompositeImplicitAutograd")
"""


class Hooked:
    """A library whose hook writes down that it was called."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def write(self, number: int, more: str = "pass") -> Path:
        path = self.folder / "hooked.py"
        path.write_text(HOOKED.format(folder=str(self.folder), number=number, more=more))
        return path

    @property
    def unloaded(self) -> list[int]:
        log = self.folder / "unloaded"
        return [int(line) for line in log.read_text().split()] if log.exists() else []


@pytest.fixture
def hooked(tmp_path: Path) -> Hooked:
    return Hooked(tmp_path)


def test_hook_runs_at_unload(session: oc.Session, hooked: Hooked):
    session.load(hooked.write(1))
    assert session.ops.hooked.version() == 1
    assert hooked.unloaded == []
    session.unload("hooked")
    assert hooked.unloaded == [1]


def test_hook_runs_at_replacement_when_the_last_call_has_ended(session: oc.Session, hooked: Hooked):
    session.load(hooked.write(1))
    with ThreadPoolExecutor(1) as pool:
        held = pool.submit(lambda: session.ops.hooked.hold())
        assert wait_for((hooked.folder / "reached").exists)
        session.load(hooked.write(2))
        assert session.ops.hooked.version() == 2
        assert hooked.unloaded == []
        (hooked.folder / "go").touch()
        assert held.result(60) == 1
    assert wait_for(lambda: hooked.unloaded == [1])
    # Its files are closed: so a rollback imports it again.
    session.rollback("hooked")
    assert session.ops.hooked.version() == 1
    assert wait_for(lambda: hooked.unloaded == [1, 2])
    session.unload("hooked")
    assert hooked.unloaded == [1, 2, 1]


@pytest.mark.parametrize("name", ["worker-1", "mine"])
def test_hook_runs_when_the_interpreter_stops_in_order(
    start_daemon: StartDaemon, hooked: Hooked, name: str
):
    daemon = start_daemon(workers=1)
    with worker(daemon, "--name", "mine") as process, daemon.connect() as session:
        assert wait_for(lambda: len(session.interpreters()) == 2)
        session.load(hooked.write(1), interpreter=name)
        assert session.ops.hooked.version() == 1
        if name == "mine":
            process.terminate()
            process.wait(60)
        else:
            daemon.stop()
        assert wait_for(lambda: hooked.unloaded == [1])


def test_hook_of_a_library_that_is_refused_runs(session: oc.Session, hooked: Hooked):
    path = hooked.write(1)
    path.write_text(f"{path.read_text()}\nraise ValueError('no')\n")
    with pytest.raises(oc.LibraryLoadError):
        session.load(path)
    assert hooked.unloaded == [1]


def test_hook_that_raises_or_hangs_harms_nothing(
    start_daemon: StartDaemon, hooked: Hooked, write_library
):
    daemon = start_daemon(workers=1, constants=dict.fromkeys(UNLOAD_SECONDS, 1.0))
    daemon.expects_errors = True  # the log says what went wrong
    with daemon.connect() as session:
        session.load(hooked.write(1, "raise SystemExit('no')"))
        session.unload("hooked")
        session.load(hooked.write(2, "import time; time.sleep(3600)"))
        pid = session.interpreters()[0].pid
        session.unload("hooked")
        assert hooked.unloaded == [1, 2]
        session.load(hooked.write(3))
        assert session.ops.hooked.version() == 3
        assert session.interpreters()[0].pid == pid
    said = [record["message"] for record in daemon.log_records()]
    assert any("unloaded raised" in message for message in said)
    assert any("on_unload of hooked v2 has not ended" in message for message in said)
