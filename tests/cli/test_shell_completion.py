"""Completion in a real bash, with names from a real daemon."""

from __future__ import annotations

import os
import shutil
import subprocess

import pytest

from tests.cli.conftest import SCRIPT
from tests.service.running_daemon import RunningDaemon

# What bash does when the tabulator key is pressed at the end of the words.
_PROGRAM = """
source <(opdispatch --show-completion bash)
COMP_WORDS=("$@")
COMP_CWORD=$(( $# - 1 ))
_opdispatch_completion opdispatch
printf '%s\\n' "${COMPREPLY[@]}"
"""

pytestmark = pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")


def _complete(address: str, *words: str) -> list[str]:
    done = subprocess.run(
        ["bash", "--norc", "-c", _PROGRAM, "bash", "opdispatch", *words],
        capture_output=True,
        text=True,
        check=True,
        env={
            **os.environ,
            "PATH": f"{os.path.dirname(SCRIPT)}:{os.environ['PATH']}",
            "OPDISPATCH_ADDRESS": address,
            # Otherwise typer looks at the processes to find the shell.
            "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1",
        },
    )
    assert done.stderr == ""
    return done.stdout.split()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["desc"], ["describe"]),
        (["ser"], ["serve"]),
        (["describe", "shop", "::", "s"], ["show", "stack"]),
        (["call", "shop", "::", "ed"], ["edges"]),
        (["table", "shop::edg"], ["shop::edges"]),
        (["unload", ""], ["shop"]),
        (["load", "--interpreter", "worker-"], ["worker-1", "worker-2"]),
        (["call", "--tr"], ["--trace"]),
    ],
)
def test_names_are_completed(daemon: RunningDaemon, words: list[str], expected: list[str]):
    assert _complete(daemon.address, *words) == expected


def test_the_address_is_taken_from_the_words(daemon: RunningDaemon):
    path = daemon.address.removeprefix("unix:")
    words = ["--address", "unix", ":", path, "describe", "shop", "::", "edg"]
    assert _complete("unix:///nowhere/daemon.sock", *words) == ["edges"]


def test_without_a_daemon_there_is_silence():
    assert _complete("unix:///nowhere/daemon.sock", "describe", "sh") == []
