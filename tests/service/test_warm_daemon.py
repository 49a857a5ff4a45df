"""A daemon that tests fork is the one that a user starts."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from opdispatch_server.daemon import take_over
from opdispatch_server.worker.libraries import loaded
from tests.service.conftest import StartDaemon, WriteLibrary
from tests.service.running_daemon import RunningDaemon
from tests.service.warm_daemon import (
    ForkedProcess,
    can_fork,
    run_code,
    run_command_line,
)
from tests.waits import LONGEST_WAIT

ASKS = """\
from opdispatch import Library
from opdispatch_server.daemon import take_over
from opdispatch_server.worker.libraries import loaded

lib = Library("asks", "DEF")
lib.define("constants() -> float[]")


def constants():
    return [float(loaded.UNLOAD_SECONDS), float(take_over._LOCK_PAUSE)]


lib.impl("constants", constants, "CompositeExplicitAutograd")
"""


def look_at(daemon: RunningDaemon) -> dict[str, object]:
    """Return what the system says of a process: its place, its streams, how it takes signals."""
    folder = Path(f"/proc/{daemon.process.pid}")
    status = dict(line.split(":\t", 1) for line in (folder / "status").read_text().splitlines())
    pid = daemon.process.pid
    return {
        **{name: status[name] for name in ("PPid", "SigBlk", "SigIgn", "Umask")},
        "session": os.getsid(pid) == os.getpgid(pid) == pid,
        "folder": (folder / "cwd").readlink(),
        "limits": (folder / "limits").read_text(),
        "input": (folder / "fd/0").readlink(),
        "output": str((folder / "fd/1").readlink()).partition(":")[0],
        "log": (folder / "fd/2").readlink() == daemon.log_path,
        "descriptors": len(os.listdir(folder / "fd")),
    }


def test_a_fork_is_what_a_started_process_is(start_daemon: StartDaemon):
    forked = start_daemon(workers=0)
    assert isinstance(forked.process, ForkedProcess)
    assert forked.process.pid in forked.processes()
    seen = look_at(forked)
    forked.stop()
    started = start_daemon(workers=0, warm=False)
    assert not isinstance(started.process, ForkedProcess)
    assert seen == look_at(started)


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGTERM, 0), (signal.SIGKILL, -signal.SIGKILL)]
)
def test_end_of_a_warm_daemon_is_reported(start_daemon: StartDaemon, number, status):
    process = start_daemon(workers=0).process
    assert process.poll() is None
    process.send_signal(number)
    assert process.wait(LONGEST_WAIT) == process.poll() == process.returncode == status


@pytest.mark.parametrize("other", [{"PYTHONHASHSEED": "3"}, {"OPDISPATCH_QUEUE": "9"}], ids=str)
def test_a_daemon_that_reads_its_environment_early_is_no_fork(
    start_daemon: StartDaemon, other: dict[str, str]
):
    assert not can_fork({**os.environ, **other})
    daemon = start_daemon(workers=0, environment=other)
    assert not isinstance(daemon.process, ForkedProcess)


def test_code_runs_as_in_a_process_of_its_own(tmp_path: Path):
    (tmp_path / "beside.py").write_text("NAME = __name__")
    code = (
        "import beside, os, sys; print(beside.NAME, __name__, os.environ['X']); sys.exit(sys.argv)"
    )
    variables = {**os.environ, "X": "x"}
    done = run_code(code, env=variables, cwd=tmp_path)
    assert (done.stdout, done.stderr, done.returncode) == ("beside __main__ x\n", "['-c']\n", 1)
    done = run_code("1 / 0", env=variables, cwd=tmp_path)
    assert (done.returncode, done.stderr.splitlines()[-1]) == (
        1,
        "ZeroDivisionError: division by zero",
    )


def test_a_command_line_runs_as_in_a_process_of_its_own(tmp_path: Path):
    done = run_command_line(["call", "--help"], env=dict(os.environ), cwd=tmp_path)
    assert (done.stderr, done.returncode) == ("", 0)
    assert "opdispatch call" in done.stdout
    words = ["describe", "a::b", "--address", f"unix://{tmp_path}/none"]
    done = run_command_line(words, env=dict(os.environ), cwd=tmp_path)
    assert (done.stdout, done.returncode) == ("", 1)
    assert done.stderr.startswith(f"opdispatch: no daemon answers at unix://{tmp_path}/none")


def test_a_daemon_and_its_interpreters_have_the_constants_that_a_test_chooses(
    start_daemon: StartDaemon, write_library: WriteLibrary
):
    constants = {f"{loaded.__name__}.UNLOAD_SECONDS": 17.0, f"{take_over.__name__}._LOCK_PAUSE": 3}
    daemon = start_daemon(workers=1, constants=constants)
    library = write_library("asks", ASKS)
    with daemon.connect() as session:
        session.load(library)
        assert session.ops.asks.constants() == [17.0, 3.0]
    with pytest.raises(RuntimeError, match="has no attribute 'MISSING'"):
        start_daemon(constants={f"{loaded.__name__}.MISSING": 1.0})
