"""The state folder when something is wrong with it: refused with what to do, never guessed at."""

from __future__ import annotations

import resource
import shutil
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

import opdispatch_client as oc
from opdispatch_server.daemon.state.journal_database import DATABASE
from opdispatch_server.daemon.state.journal_format import FORMAT
from tests.service.command_line import run_cli
from tests.service.conftest import StartDaemon, WriteLibrary
from tests.service.libraries import constant
from tests.service.running_daemon import RunningDaemon

WORKERS = 1
X = np.zeros(2)


def kill(daemon: RunningDaemon) -> None:
    daemon.signal(signal.SIGKILL)
    daemon.wait()


def test_two_daemons_on_one_state_folder_are_refused(start_daemon: StartDaemon, tmp_path: Path):
    first = start_daemon(workers=0)
    second = RunningDaemon(tmp_path, listen=[f"unix://{tmp_path}/second.sock"], workers=0)
    assert second.wait() == 1
    assert f"opdispatch: another daemon uses the state folder {tmp_path}/state" in second.log()
    second.clean_up()
    with first.connect() as session:
        assert session.server_info.pid == first.process.pid
    kill(first)  # which frees the folder
    third = start_daemon(workers=0)
    assert third.process.poll() is None


@pytest.mark.parametrize("damage", [b"", b"this is no database"])
def test_a_damaged_journal_stops_the_start_and_says_what_to_do(
    start_daemon: StartDaemon, write_library: WriteLibrary, tmp_path: Path, damage: bytes
):
    first = start_daemon(workers=1)
    with first.connect() as session:
        session.load(write_library("const", constant(5)))
    assert first.stop() == 0
    journal = tmp_path / "state" / "journal" / "journal.sqlite3"
    good = journal.read_bytes()
    journal.write_bytes(damage)
    second = RunningDaemon(tmp_path, workers=1)
    assert second.wait() == 1
    message = second.log().splitlines()[-1]
    assert message.startswith(f"opdispatch: the journal in {tmp_path}/state/journal is damaged")
    assert message.endswith(
        "(restore it with `opdispatch state import FILE`, or move the folder away to start "
        "without libraries)"
    )
    assert not (tmp_path / "daemon.sock").exists()
    second.clean_up()
    assert journal.read_bytes() == damage
    journal.write_bytes(good)
    third = start_daemon(workers=1)
    with third.connect() as session:
        assert session.ops.const.get(X) == 5


def test_a_disk_that_is_full_refuses_the_change_and_nothing_else(
    start_daemon: StartDaemon, write_library: WriteLibrary, tmp_path: Path
):
    daemon = start_daemon(workers=1)
    journal = tmp_path / "state" / "journal"
    limit = resource.RLIMIT_FSIZE
    with daemon.connect() as session:
        for number in range(1, 4):
            session.load(write_library("const", constant(number)))
        # No file of the daemon's may grow beyond what the journal's log has now: as good as a
        # full disk for the journal, while there is room for uploads and the daemon's log.
        log = (journal / "journal.sqlite3-wal").stat().st_size
        _, hard = resource.prlimit(daemon.process.pid, limit, (log, resource.RLIM_INFINITY))
        assert hard == resource.RLIM_INFINITY
        with pytest.raises(oc.JournalError, match="the change cannot be recorded in") as caught:
            session.load(write_library("const", constant(9)))
        assert "nothing has changed" in caught.value.hint
        with pytest.raises(oc.JournalError):
            session.load(write_library("other", constant(9, namespace="other")))
        with pytest.raises(oc.JournalError):
            session.unload("const")
        with pytest.raises(oc.JournalError):
            session.unload("const", version=3)
        assert [v.version for v in session.libraries(all_versions=True)] == [2, 3]
        assert session.ops.const.get(X) == 3
        assert session.check_invariants() == []
        resource.prlimit(daemon.process.pid, limit, (hard, hard))
        assert session.load(write_library("const", constant(9))).version == 4
        assert session.ops.const.get(X) == 9
    kill(daemon)
    again = start_daemon(workers=1)
    with again.connect() as session:
        assert [v.version for v in session.libraries(all_versions=True)] == [3, 4]
        assert session.ops.const.get(X) == 9


def test_prune_removes_unused_uploads(
    start_daemon: StartDaemon, write_library: WriteLibrary, tmp_path: Path
):
    state = tmp_path / "state"
    prune = ("state", "prune", "--state", str(state))
    daemon = start_daemon(workers=1)
    with daemon.connect() as session:
        first, *_ = [session.load(write_library("const", constant(n))) for n in range(1, 5)]
        refused = run_cli(*prune)
        assert refused.returncode == 1
        assert f"another daemon uses the state folder {state}" in refused.stderr
    assert daemon.stop() == 0
    size = 2 * (state / "libraries" / first.sha256).stat().st_size  # with what it unpacks to
    done = run_cli(*prune)
    assert (done.stderr, done.stdout) == ("", f"removed 2 uploads ({2 * size} bytes), kept 2\n")
    assert not (state / "libraries" / first.sha256).exists()
    again = start_daemon(workers=1)
    with again.connect() as session:
        assert [v.version for v in session.libraries(all_versions=True)] == [3, 4]
        assert session.ops.const.get(X) == 4
        assert session.unload("const", version=4)
        assert session.ops.const.get(X) == 3
        assert session.load(write_library("const", constant(1))).version == 5
        assert session.ops.const.get(X) == 1


@pytest.mark.parametrize("taken", ["state", "state/journal", "state/journal/journal.sqlite3"])
def test_a_state_folder_that_is_deleted_is_noticed_before_anything_is_acknowledged(
    start_daemon: StartDaemon, write_library: WriteLibrary, tmp_path: Path, taken: str
):
    daemon = start_daemon(workers=1)
    with daemon.connect() as session:
        session.load(write_library("const", constant(1)))
        path = tmp_path / taken
        shutil.rmtree(path) if path.is_dir() else path.unlink()
        for name, text in (
            ("const", constant(2)),
            ("other", constant(3, namespace="other")),
        ):
            with pytest.raises(oc.JournalError):
                session.load(write_library(name, text))
        for change in (lambda: session.unload("const"), lambda: session.drain("worker-1")):
            with pytest.raises(oc.JournalError, match="was deleted, moved or replaced"):
                change()
        assert [v.version for v in session.libraries(all_versions=True)] == [1]
        assert session.ops.const.get(X) == 1
        assert session.check_invariants() == []


def test_a_journal_of_a_newer_version_stops_the_start(start_daemon: StartDaemon, tmp_path: Path):
    assert start_daemon(workers=0).stop() == 0
    journal = tmp_path / "state" / "journal"
    with closing(sqlite3.connect(journal / DATABASE)) as database:
        database.execute(f"PRAGMA user_version = {FORMAT + 1}")
    daemon = RunningDaemon(tmp_path, workers=0)
    assert daemon.wait() == 1
    daemon.clean_up()
    assert daemon.log().splitlines() == [
        f"opdispatch: the journal in {journal} was written by a newer opdispatch: its format is "
        f"{FORMAT + 1}, and this one reads up to {FORMAT} (start the newer one, or move the "
        "folder away to start without libraries)"
    ]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("size=8k", "no journal can be made in {state}: database or disk is full"),
        (
            "ro",
            "the state folder {state} cannot be used: Read-only file system (choose another one "
            "with --state)",
        ),
    ],
)
def test_a_disk_that_takes_no_state_stops_the_start(tmp_path: Path, options: str, message: str):
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = f'mount -t tmpfs -o {options} none "$1" && shift && exec "$@"'
    private = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", mount, "sh"]
    if subprocess.run([*private, str(disk), "true"], capture_output=True, timeout=60).returncode:
        pytest.skip("mounts need user namespaces, which this machine refuses")
    serve = [sys.executable, "-m", "opdispatch_client.cli", "serve", "--workers", "0"]
    state = disk / "state"
    done = subprocess.run(
        [*private, str(disk), *serve, "--state", str(state), "--listen", f"unix://{tmp_path}/s"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"opdispatch: {message.format(state=state)}\n"


OF_ANOTHER_USER = """\
import os, sys
from pathlib import Path
from opdispatch_server.daemon.state.folder import StateFolder
from opdispatch_wire.errors import JournalError
if os.getuid() == 0:  # root may read what is anyone's
    os.setgroups([])
    os.setuid(65534)
try:
    StateFolder(Path(sys.argv[1]))
except JournalError as error:
    sys.exit(str(error))
"""


def test_a_state_folder_of_another_user_is_refused(tmp_path: Path):
    state = tmp_path / "state"
    state.mkdir(mode=0o000)
    command = [sys.executable, "-c", OF_ANOTHER_USER, str(state)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (
        1,
        f"the state folder {state} cannot be used: Permission denied (choose another one with "
        "--state)\n",
    )
