"""Calls from the shell that need few modules, and the same with all of them."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from opdispatch_client.cli import plain_call
from opdispatch_client.cli.command import TIMEOUT_DEFAULT
from opdispatch_client.cli.plain_call import call_plainly
from opdispatch_client.cli.plain_command import PlainCommand, find_plain_command
from opdispatch_client.lanes.single_call import SingleCall
from tests.cli.conftest import RunCommand
from tests.service.running_daemon import RunningDaemon
from tests.waits import LONGEST_WAIT

_PROGRAM = """
import sys
from opdispatch_client.cli import main
code = main(sys.argv[1:])
heavy = {"grpc", "numpy", "typer", "click", "rich", "opdispatch", "asyncio", "logging", "pydantic"}
print(code, sorted(heavy & sys.modules.keys()), file=sys.stderr)
"""

CALLS = [
    ("shop::edges", "[[1,2.5,3]]"),
    ("shop::edges", "[[1,2,4]]", "normalize=false"),
    ("shop::add.Tensor", "[1,2]", "[0.5,-4]"),
    ("shop::add.Tensor", "[1,2]", "3", "--json"),
    ("shop::add.Tensor", "[1,2]", "3", "--timeout", "0"),
    ("shop::nothing",),
    ("shop::nothing", "--json"),
]


def daemon_path(daemon: RunningDaemon) -> str:
    return daemon.address.removeprefix("unix://")


@pytest.mark.parametrize("words", [CALLS[0], CALLS[3]])
def test_a_plain_call_needs_neither_grpc_nor_numpy_nor_the_dispatcher(
    daemon: RunningDaemon, words: tuple[str, ...]
):
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, "call", *words],
        capture_output=True,
        text=True,
        check=True,
        timeout=LONGEST_WAIT,
        env={**os.environ, "OPDISPATCH_ADDRESS": daemon.address},
    )
    assert done.stdout
    assert done.stderr == "0 []\n"


@pytest.mark.parametrize("words", CALLS)
def test_a_plain_call_prints_what_others_print(
    run: RunCommand, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
):
    plain = run("call", *words)
    with monkeypatch.context() as patched:
        patched.setattr(plain_call, "call_plainly", lambda command: None)
        assert plain == run("call", *words)
    assert plain.code == 0


@pytest.mark.parametrize(
    "words",
    [
        ("shop::add", "[1]", "[2]"),
        ("shop::halves", "[1,2]"),
        ("shop::missing", "1"),
        ("shop::edges", "[[1]]", "normalize=maybe"),
        ("shop::edges", "[[1]]", "--trace"),
    ],
)
def test_other_calls_are_left_to_all_modules_before_anything_is_sent(
    run: RunCommand, words: tuple[str, ...]
):
    command = find_plain_command(["call", *words])
    assert command is None or call_plainly(command) is None


def test_the_error_of_a_plain_call_is_reported(run: RunCommand, monkeypatch: pytest.MonkeyPatch):
    plain = run("call", "shop::fail", "[1]")
    monkeypatch.setattr(plain_call, "call_plainly", lambda command: None)
    assert (plain.code, plain.out) == (1, "")
    assert "out of stock" in plain.err
    assert plain == run("call", "shop::fail", "[1]")


def test_the_timeout_is_that_of_all_commands():
    assert plain_call._TIMEOUT == TIMEOUT_DEFAULT


def test_a_file_next_to_the_socket_says_where_the_lane_is(daemon: RunningDaemon):
    file = Path(f"{daemon_path(daemon)}.lock")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert Path(file.read_text().strip()).is_socket()


@pytest.mark.parametrize("content", ["", "relative/path\n", "/nowhere/at/all.lane\n", "\udcff"])
def test_a_file_that_names_no_lane_leaves_the_call_to_all_modules(tmp_path: Path, content: str):
    (tmp_path / "d.sock.lock").write_bytes(content.encode(errors="surrogateescape"))
    with pytest.raises((OSError, ValueError)):
        SingleCall.open(str(tmp_path / "d.sock"), "shop::nothing", 1)
    address = f"unix://{tmp_path}/d.sock"
    assert call_plainly(PlainCommand("a::b", [], address, None, json=False)) is None


def test_a_link_is_no_file_of_a_daemon(daemon: RunningDaemon, tmp_path: Path):
    (tmp_path / "d.sock.lock").symlink_to(f"{daemon_path(daemon)}.lock")
    with pytest.raises(OSError, match="symbolic links"):
        SingleCall.open(str(tmp_path / "d.sock"), "shop::nothing", 1)


@pytest.mark.parametrize("user", [os.geteuid() + 1])
def test_a_lane_of_another_user_is_not_used(
    daemon: RunningDaemon, monkeypatch: pytest.MonkeyPatch, user: int
):
    monkeypatch.setattr("opdispatch_client.lanes.single_call.is_trusted", {user}.__contains__)
    with pytest.raises(ValueError, match="another user"):
        SingleCall.open(daemon_path(daemon), "shop::nothing", LONGEST_WAIT)
