"""Other users of the machine at a daemon's unix socket: what each may do there."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from opdispatch_client.cli import main
from tests.service.libraries import IMAGE
from tests.service.running_daemon import RunningDaemon
from tests.waits import LONGEST_WAIT

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")

ALICE, BOB, MALLORY = 54321, 54322, 54323

# Everything is imported before the user changes, who may not be able to read it.
AS_ANOTHER = """
import os, sys
import numpy as np
import opdispatch_client as oc
from opdispatch_client.blocking import connect
import opdispatch_wire.kernel_errors, opdispatch_client.aio
user, address, daemon_user, what = sys.argv[1:]
with open(what) as file:
    code = file.read()
os.setgroups([]); os.setgid(int(user)); os.setuid(int(user))
try:
    with connect(address, daemon_user=daemon_user) as session:
        exec(code)
except oc.OpdispatchError as error:
    print(type(error).__name__, error)
"""


@pytest.fixture(scope="module")
def daemon() -> Iterator[RunningDaemon]:
    folder = Path(tempfile.mkdtemp(prefix="od-", dir="/tmp"))
    folder.chmod(0o755)
    options = ("--allow-user", f"{ALICE}=call", "--allow-user", f"{BOB}=load:image::*")
    daemon = RunningDaemon(folder, *options, workers=1)
    try:
        daemon.wait_until_ready()
        path = folder / "image.py"
        path.write_text(IMAGE)
        with daemon.connect() as session:
            session.load(path)
        yield daemon
    finally:
        daemon.clean_up()
        shutil.rmtree(folder)


def say(
    daemon: RunningDaemon,
    user: int,
    code: str,
    daemon_user: str = "",
    inside: tuple[str, ...] = (),
) -> str:
    script = daemon.folder / f"as-{user}.py"
    script.write_text(code)
    words = (str(user), daemon.address, daemon_user, str(script))
    done = subprocess.run(
        [*inside, sys.executable, "-c", AS_ANOTHER, *words],
        capture_output=True,
        text=True,
        timeout=LONGEST_WAIT,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_daemons_user_may_do_everything_as_before(daemon: RunningDaemon):
    with daemon.connect() as session:
        assert session.lane == "local"
        assert session.check_invariants() == []
    assert main(["health", "--address", daemon.address]) == 0


def test_a_user_with_the_role_call_calls_and_does_no_more(daemon: RunningDaemon):
    said = say(
        daemon,
        ALICE,
        "print(session.lane, session.ops.image.pipeline(np.arange(3.0)).tolist())\n"
        "print(session.put(np.arange(3.0)).numpy().tolist())\n"
        "session.unload('image')",
    )
    calls, kept, refusal = said.splitlines()
    assert calls == "stream [1.0, -2.0, -5.0]"
    assert kept == "[0.0, 1.0, 2.0]"
    who = f"user {ALICE} has the role call, and UnloadLibrary needs load"
    assert refusal.startswith(f"PermissionDeniedError {who}")
    assert f"serve --allow-user {ALICE}=load" in refusal


def test_a_user_with_the_role_load_loads_within_its_namespaces(daemon: RunningDaemon):
    path = daemon.folder / "bank.py"
    path.write_text('from opdispatch import Library\nLibrary("bank", "DEF").define("f() -> int")')
    said = say(daemon, BOB, f"session.load({str(path)!r})")
    assert said.startswith("PermissionDeniedError library 'bank' claims the namespace bank")
    path = daemon.folder / "more.py"
    path.write_text(
        'from opdispatch import Library\nLibrary("image", "FRAGMENT").define("f() -> int")'
    )
    said = say(daemon, BOB, f"print(session.load({str(path)!r}).loaded_by); session.unload('more')")
    assert said == f"user {BOB}\n"
    audit = [each for each in daemon.log_records() if each.get("event") == "audit"]
    outcomes = [(each["action"], each["identity"], each["outcome"]) for each in audit[-3:]]
    who = f"user {BOB} via unix socket"
    assert outcomes == [
        ("load", who, "permission_denied"),
        ("load", who, "done"),
        ("unload", who, "done"),
    ]


def test_permission_error_of_another_user_names_the_option(daemon: RunningDaemon):
    said = say(daemon, MALLORY, "print(session.libraries())")
    who = f"user {MALLORY} has the role none, and GetServerInfo needs call"
    assert said.startswith(f"PermissionDeniedError {who}")
    assert f"serve --allow-user {MALLORY}=call" in said


def test_a_network_namespace_of_ones_own_changes_no_role(daemon: RunningDaemon):
    apart = ("unshare", "--net")
    said = say(daemon, MALLORY, "print(session.libraries())", inside=apart)
    assert said.startswith(f"PermissionDeniedError user {MALLORY} has the role none")
    code = (
        "from opdispatch_wire.v1 import execution_pb2_grpc\n"
        "from opdispatch_wire.calls import call_request\n"
        "import grpc\n"
        "print(session.refresh_server_info().lane == '', session.lane)\n"
        "request = call_request('image::scale', [np.arange(3.0), 2.0], {}, request_id=1)\n"
        "request.wants_route = True\n"
        f"with grpc.insecure_channel({daemon.address.replace('unix://', 'unix:')!r}) as channel:\n"
        "    reply = execution_pb2_grpc.ExecutionServiceStub(channel).Call(request)\n"
        "print(len(reply.returns), len(reply.route.targets))\n"
        "session.unload('image')"
    )
    reached, route, refusal = say(daemon, ALICE, code, inside=apart).splitlines()
    assert (reached, route) == ("True stream", "1 0")
    assert refusal.startswith(f"PermissionDeniedError user {ALICE} has the role call")


def test_no_other_socket_of_the_daemon_takes_another_user(daemon: RunningDaemon):
    listening = subprocess.run(
        ["ss", "-Hlx"], capture_output=True, text=True, check=True, timeout=LONGEST_WAIT
    ).stdout
    paths = [
        word
        for line in listening.splitlines()
        for word in line.split()
        if word.startswith((str(daemon.folder), str(daemon.runtime_folder)))
    ]
    assert len(paths) > 3
    tries = (
        "for path in "
        f"{paths!r}:\n"
        "    with socket.socket(socket.AF_UNIX) as probe:\n"
        "        print(path, probe.connect_ex(path) == 0)"
    )
    become = f"import os, socket\nos.setgroups([]); os.setgid({MALLORY}); os.setuid({MALLORY})"
    code = f"{become}\n{tries}"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        timeout=LONGEST_WAIT,
    )
    reached = [line.split()[0] for line in done.stdout.splitlines() if line.endswith("True")]
    # The socket at its address; this is the name that it was bound to.
    path = Path(daemon.address.removeprefix("unix://"))
    assert reached == [str(path.with_name(f".{path.name}.{daemon.process.pid}"))]


def test_a_daemon_of_another_user_is_spoken_to_when_it_is_named():
    with tempfile.TemporaryDirectory(prefix="od-", dir="/tmp") as folder:
        path = f"{folder}/daemon.sock"
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(path)
            listener.listen()
            code = (
                "import os, sys\nfrom opdispatch_wire.addresses import check_socket_owner\n"
                f"os.setgroups([]); os.setgid({BOB}); os.setuid({BOB})\n"
                f"check_socket_owner('unix://{path}')"  # root's
            )
            Path(folder).chmod(0o755)
            Path(path).chmod(0o666)
            subprocess.run([sys.executable, "-c", code], check=True, timeout=LONGEST_WAIT)


def test_an_option_that_is_no_user_with_a_role_ends_the_start(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
):
    for text, message in (
        ("alice", "is not USER=ROLE"),
        (f"{ALICE}=load", "needs namespaces"),
        (f"{ALICE}=owner", "is not a role"),
    ):
        assert main(["serve", "--state", str(tmp_path), "--allow-user", text]) == 2
        assert message in capsys.readouterr().err
