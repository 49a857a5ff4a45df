"""A new version is published when enough interpreters have imported it, and not before."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

import opdispatch_client as oc
from opdispatch_client.cli import main
from tests.service.conftest import StartDaemon, WriteLibrary
from tests.service.doors import Doors
from tests.service.running_daemon import Background, RunningDaemon, wait_for

SHARED_WORKERS = 3
X = np.zeros(2)

# Its import says that it has begun, and waits to be let out.
SLOW = """\
import os
from opdispatch import Library

outside = os.open({folder!r} + "/outside", os.O_RDONLY | os.O_NONBLOCK)
inside = os.open({folder!r} + "/inside", os.O_WRONLY | os.O_NONBLOCK)
os.write(inside, b"%d\\n" % os.getpid())
os.set_blocking(outside, True)
os.read(outside, 1)
os.close(outside)
os.close(inside)

lib = Library("slow", "DEF")
lib.define("version(Tensor x) -> int")
lib.impl("version", lambda x: {version}, "CPU")
"""
# Its import works once.
ONCE = """\
import os
from opdispatch import Library

os.close(os.open({folder!r} + "/once", os.O_CREAT | os.O_EXCL))
lib = Library("slow", "DEF")
lib.define("version(Tensor x) -> int")
lib.impl("version", lambda x: 0, "CPU")
"""


@pytest.fixture
def slow(
    lent_daemon: RunningDaemon, doors: Doors, write_library: WriteLibrary
) -> Iterator[oc.Session]:
    """A session with the first version in three interpreters."""
    with lent_daemon.connect() as session:
        doors.let_out(3)
        session.load(
            write_library("slow", SLOW.format(folder=doors.folder, version=1)), interpreters=3
        )
        for _ in range(3):
            doors.next_inside()
        yield session


def active(session: oc.Session) -> tuple[int, int]:
    """Which text it is of, and how many interpreters hold it."""
    [library] = session.libraries()
    assert library.active
    return session.call("slow::version", X), len(library.interpreters)


@pytest.mark.parametrize(
    ("options", "ready"),
    [({}, 3), ({"min_ready": 2}, 2), ({"interpreters": 2}, 2), ({"min_ready": 1}, 1)],
)
def test_new_version_is_published_when_enough_have_imported_it(
    slow: oc.Session,
    doors: Doors,
    write_library: WriteLibrary,
    options: dict[str, int],
    ready: int,
):
    path = write_library("slow", SLOW.format(folder=doors.folder, version=2))
    with Background(slow.load, path, **options) as load:
        doors.next_inside()  # the first one imports it alone
        assert doors.no_other_is_inside()
        for _ in range(ready - 1):
            assert active(slow) == (1, 3)
            doors.let_out()
            doors.next_inside()
        assert active(slow) == (1, 3)
        doors.let_out()
        assert wait_for(lambda: slow.call("slow::version", X) == 2)
        held = len(slow.libraries()[0].interpreters)
        assert held >= ready
        doors.let_out(3 - ready)
        load.result()
    assert active(slow) == (2, options.get("interpreters", 3))
    assert slow.check_invariants() == []


def test_failed_import_in_another_interpreter_publishes_nothing(
    slow: oc.Session, doors: Doors, write_library: WriteLibrary
):
    with pytest.raises(oc.LibraryLoadError, match="FileExistsError"):
        slow.load(write_library("slow", ONCE.format(folder=doors.folder)))
    assert active(slow) == (1, 3)
    assert slow.check_invariants() == []
    doors.let_out(3)
    slow.load(write_library("slow", SLOW.format(folder=doors.folder, version=2)))
    assert active(slow) == (2, 3)


def test_load_that_waits_for_interpreters_says_so(
    slow: oc.Session, lent_daemon: RunningDaemon, doors: Doors, write_library: WriteLibrary
):
    path = write_library("slow", SLOW.format(folder=doors.folder, version=2))
    with (
        lent_daemon.connect(timeout=2) as hasty,
        pytest.raises(
            oc.WaitTimeoutError,
            match=r"waiting for 4 interpreters that can import slow v[0-9]+, of which there are 3",
        ),
    ):
        hasty.load(path, min_ready=4)
    assert active(slow) == (1, 3)
    doors.let_out(3)
    slow.load(path)
    assert active(slow) == (2, 3)


def test_min_ready_is_checked(slow: oc.Session, write_library: WriteLibrary):
    path = write_library("slow", "")
    for options in ({"min_ready": 0}, {"min_ready": 3, "interpreters": 2}):
        with pytest.raises(oc.WireError, match=f"min_ready is {options['min_ready']}; expected 1"):
            slow.load(path, **options)


def test_library_says_what_it_waits_for(
    start_daemon: StartDaemon,
    doors: Doors,
    write_library: WriteLibrary,
    capsys: pytest.CaptureFixture[str],
):
    daemon = start_daemon(workers=1)
    path = write_library("slow", SLOW.format(folder=doors.folder, version=1))
    doors.let_out(9)
    with daemon.connect() as session:
        loaded = session.load(path, interpreters=3)
        expected = "2 more interpreters: there is no other one that takes libraries"
        assert loaded.waiting_for == expected
        assert session.scale("slow", 1).waiting_for == ""
    assert main(["--address", daemon.address, "scale", "slow", "9"]) == 0
    said = capsys.readouterr().out
    assert said.startswith(
        "slow v1 is in 1 interpreter: worker-1; it waits for 8 more interpreters"
    )
    assert main(["--address", daemon.address, "libraries"]) == 0
    assert "slow waits for 8 more interpreters: there is no other" in capsys.readouterr().err
