"""Starting and stopping a daemon."""

from __future__ import annotations

import os
import signal
import socket
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import opdispatch_client as oc
from tests.service.command_line import run_cli
from tests.service.conftest import StartDaemon, WriteLibrary
from tests.service.libraries import GATE, constant
from tests.service.running_daemon import Background, RunningDaemon, wait_for

WORKERS = 1
X = np.zeros(2)


def run_serve(*options: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """A daemon that is expected to give up at once."""
    state = () if "--state" in options else ("--state", str(folder / "state"))
    return run_cli("serve", *options, *state)


@pytest.fixture
def session(daemon: RunningDaemon) -> Iterator[oc.Session]:
    """A session that waits for no other daemon when its own stops."""
    with daemon.connect(wait=0) as session:
        yield session


def is_refused(session: oc.Session) -> bool:
    """Whether the daemon takes no new calls; asked with one that could not run anyway."""
    try:
        session.call("gate::wait")
    except oc.RefusedError:
        return True
    except oc.ArgumentError:
        return False
    raise AssertionError("the call has neither been refused nor failed")


def test_daemon_prints_its_addresses_when_ready(start_daemon: StartDaemon, tmp_path: Path):
    path = tmp_path / "private" / "daemon.sock"
    daemon = start_daemon(listen=[f"unix://{path}", "127.0.0.1:0"], workers=1, warm=False)
    unix, tcp = daemon.addresses
    assert unix == f"unix://{path}"
    assert int(tcp.rpartition(":")[2]) > 0
    for address in daemon.addresses:
        with oc.connect(address) as session:
            assert session.server_info.addresses == (unix, tcp)
            assert session.server_info.pid == daemon.process.pid
            assert len(session.interpreters()) == 1


def test_socket_is_private_to_its_user(start_daemon: StartDaemon, tmp_path: Path):
    path = tmp_path / "private" / "daemon.sock"
    start_daemon(listen=[f"unix://{path}"], workers=0)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_it_with_its_interpreters(start_daemon: StartDaemon, number):
    daemon = start_daemon(warm=False)
    assert len(daemon.processes()) == 4  # with the one that interpreters are forked from
    daemon.signal(number)
    assert daemon.wait() == 0
    assert not daemon.processes()
    assert list(daemon.folder.glob("daemon.sock*")) == []


def test_calls_in_flight_finish_before_it_stops_and_new_ones_are_refused(
    daemon: RunningDaemon, session: oc.Session, write_library: WriteLibrary
):
    session.load(write_library("gate", GATE))
    folder = daemon.folder
    with Background(session.ops.gate.wait, X, str(folder), 7) as call:
        assert wait_for((folder / "entered-7").exists)
        daemon.signal(signal.SIGTERM)
        assert wait_for(lambda: is_refused(session))
        (folder / "open").touch()
    assert daemon.wait() == 0
    assert call.result() == 7


def test_daemon_stops_in_time_despite_a_hanging_kernel(
    daemon: RunningDaemon, session: oc.Session, write_library: WriteLibrary
):
    session.load(write_library("gate", GATE))
    with Background(session.ops.gate.wait, X, str(daemon.folder), 1) as call:
        assert wait_for((daemon.folder / "entered-1").exists)
        assert daemon.stop() == 0  # though nothing ever lets it go
    with pytest.raises(oc.OpdispatchError):
        call.result()


def test_a_second_signal_stops_it_at_once(
    daemon: RunningDaemon, session: oc.Session, write_library: WriteLibrary
):
    session.load(write_library("gate", GATE))
    with Background(session.ops.gate.wait, X, str(daemon.folder), 1) as call:
        assert wait_for((daemon.folder / "entered-1").exists)
        daemon.signal(signal.SIGTERM)
        assert wait_for(lambda: "stopping" in daemon.log())
        daemon.signal(signal.SIGTERM)
        assert daemon.wait() == 1  # where it had waited for the call, that would be 0
    with pytest.raises(oc.OpdispatchError):
        call.result()


def test_daemon_stops_in_time_despite_a_hanging_import(
    daemon: RunningDaemon, session: oc.Session, write_library: WriteLibrary
):
    flag = daemon.folder / "importing"
    slow = f"import time\nopen({str(flag)!r}, 'w').close()\ntime.sleep(1000)\n"
    with Background(session.load, write_library("slow", slow)) as load:
        assert wait_for(flag.exists)
        assert daemon.stop() == 0  # though nothing ever lets it go
    with pytest.raises(oc.OpdispatchError):
        load.result()


def test_daemon_stops_in_time_while_it_starts(tmp_path: Path, write_library: WriteLibrary):
    flag = tmp_path / "importing"
    slow = f"import time\nopen({str(flag)!r}, 'w').close()\ntime.sleep(1000)\n"
    daemon = RunningDaemon(tmp_path, "--library", str(write_library("slow", slow)), workers=1)
    try:
        assert wait_for(flag.exists)
        assert daemon.stop() == 0  # though nothing ever lets it go
    finally:
        daemon.clean_up()


def test_interpreters_die_with_a_killed_daemon(start_daemon: StartDaemon):
    daemon = start_daemon()
    daemon.signal(signal.SIGKILL)
    assert daemon.wait() == -signal.SIGKILL
    assert wait_for(lambda: not daemon.processes()), daemon.processes()


def test_the_socket_of_a_killed_daemon_is_taken_over(start_daemon: StartDaemon):
    first = start_daemon(workers=0)
    first.signal(signal.SIGKILL)
    first.wait()
    assert (first.folder / "daemon.sock").exists()
    second = start_daemon(workers=0)
    with second.connect() as session:
        assert session.server_info.pid == second.process.pid


def test_a_second_daemon_on_the_same_socket_is_refused(start_daemon: StartDaemon, tmp_path: Path):
    first = start_daemon(workers=0)
    second = run_serve("--listen", first.address, folder=tmp_path)
    assert second.returncode == 1
    assert second.stderr.strip() == (
        f"opdispatch: a daemon already listens on {first.address}: stop it, or give this one "
        "another address with --listen"
    )
    with first.connect() as session:  # unharmed
        assert session.server_info.pid == first.process.pid


def test_a_second_daemon_on_the_same_port_is_refused(start_daemon: StartDaemon, tmp_path: Path):
    first = start_daemon(workers=0, listen=["127.0.0.1:0"])
    second = run_serve("--listen", first.address, folder=tmp_path)
    assert second.returncode == 1
    assert f"already listens on {first.address}" in second.stderr


def test_another_programs_socket_is_left_alone(tmp_path: Path):
    path = tmp_path / "other.sock"
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(path))
        other.listen()
        refused = run_serve("--listen", f"unix://{path}", folder=tmp_path)
        assert refused.returncode == 1
        assert f"another program listens on unix://{path}" in refused.stderr
        assert path.exists()


def test_a_file_that_is_no_socket_is_left_alone(tmp_path: Path):
    path = tmp_path / "notes.txt"
    path.write_text("mine")
    refused = run_serve("--listen", f"unix://{path}", folder=tmp_path)
    assert refused.returncode == 2
    assert f"{path} exists and is not a socket" in refused.stderr
    assert path.read_text() == "mine"


@pytest.mark.parametrize(
    ("address", "reason"),
    [
        ("0.0.0.0:0", "can be reached from other machines"),
        ("unix:///" + "long/" * 30 + "x.sock", "has at most 107"),
        ("nonsense", "is not understood"),
        ("127.0.0.1:99999", "the highest one is 65535"),
        (
            "unix:///proc/missing/daemon.sock",
            "cannot listen on unix:///proc/missing/daemon.sock: No",
        ),
    ],
)
def test_an_address_that_will_not_do_is_wrong_usage(tmp_path: Path, address: str, reason: str):
    refused = run_serve("--listen", address, folder=tmp_path)
    assert refused.returncode == 2
    assert reason in refused.stderr
    assert "Traceback" not in refused.stderr


def test_beyond_this_machine_only_when_asked_for(start_daemon: StartDaemon):
    daemon = start_daemon("--insecure", listen=["0.0.0.0:0"], workers=0)
    port = daemon.address.rpartition(":")[2]
    with oc.connect(f"127.0.0.1:{port}") as session:
        assert session.server_info.pid == daemon.process.pid


def test_libraries_can_be_loaded_at_the_start(
    start_daemon: StartDaemon, write_library: WriteLibrary
):
    path = write_library("first", constant(1, namespace="first"))
    other = write_library("second", constant(2, namespace="second"))
    daemon = start_daemon("--library", str(path), "--library", str(other), workers=1)
    with daemon.connect() as session:
        assert session.ops.first.get(X) == 1
        assert session.ops.second.get(X) == 2


def test_a_module_and_a_folder_can_be_loaded_at_the_start(
    start_daemon: StartDaemon, tmp_path: Path
):
    package = tmp_path / "scaling"
    package.mkdir()
    (package / "__init__.py").write_text("from . import kernels\n")
    (package / "kernels.py").write_text(constant(3, namespace="scaling"))
    sources = ("opdispatch.array_library", str(package))
    daemon = start_daemon(*(each for one in sources for each in ("--library", one)), workers=1)
    with daemon.connect() as session:
        assert session.ops.array.add(X, X).tolist() == (X + X).tolist()
        assert session.ops.scaling.get(X) == 3


def test_a_library_that_does_not_load_stops_the_start(tmp_path: Path, write_library: WriteLibrary):
    path = write_library("wrong", "import json\n\njson.loads('{')\n")
    daemon = RunningDaemon(tmp_path, "--library", str(path), workers=1)
    with pytest.raises(RuntimeError, match="did not start"):
        daemon.wait_until_ready()
    assert daemon.wait() == 1
    log = daemon.log()
    assert 'File "wrong.py", line 3' in log
    assert "opdispatch: wrong.py raised JSONDecodeError" in log
    daemon.clean_up()


def test_a_missing_library_file_is_wrong_usage(tmp_path: Path):
    refused = run_serve("--library", str(tmp_path / "none.py"), folder=tmp_path)
    assert refused.returncode == 2
    assert "none.py" in refused.stderr


def test_uploads_in_the_state_folder_are_private(
    daemon: RunningDaemon, session: oc.Session, write_library: WriteLibrary
):
    loaded = session.load(write_library("const", constant(1)))
    kept = daemon.folder / "state" / "libraries" / loaded.sha256
    assert kept.read_text() == constant(1)
    assert stat.S_IMODE(kept.parent.stat().st_mode) == 0o700


def test_log_is_json_unless_it_goes_to_a_terminal(daemon: RunningDaemon, session: oc.Session):
    messages = [record["message"] for record in daemon.log_records()]
    assert sum("is ready" in message for message in messages) == 1
    assert all("time" in record for record in daemon.log_records())


def test_daemon_without_interpreters_refuses_loads_with_a_hint(
    start_daemon: StartDaemon, write_library: WriteLibrary
):
    daemon = start_daemon(workers=0)
    path = write_library("const", constant(1))
    with daemon.connect() as session:
        with pytest.raises(oc.InterpreterNotFoundError) as caught:
            session.load(path)
        assert str(caught.value) == (
            "the library cannot be loaded: no interpreter is connected that could hold it (start "
            "one with `opdispatch worker`, or the daemon with --workers 1 or more)"
        )


def test_abandoned_run_folders_are_removed_by_the_next_daemon(start_daemon: StartDaemon):
    first = start_daemon(workers=1)
    first.signal(signal.SIGKILL)
    first.wait()
    assert len(list(first.runtime_folder.iterdir())) == 1
    second = start_daemon(workers=1, environment={"XDG_RUNTIME_DIR": str(first.runtime_folder)})
    assert len(list(first.runtime_folder.iterdir())) == 1  # its own
    assert second.stop() == 0
    assert list(first.runtime_folder.iterdir()) == []


def test_daemon_processes_have_their_own_process_groups(daemon: RunningDaemon):
    groups = {os.getpgid(pid) for pid in daemon.processes()}
    assert len(groups) == 3
