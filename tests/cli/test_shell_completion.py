"""Completion in a real bash, with names from a real daemon."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable

import pytest

from tests.cli.conftest import SCRIPT
from tests.service.running_daemon import RunningDaemon
from tests.waits import LONGEST_WAIT

NOWHERE = "unix:///nowhere/daemon.sock"

# What bash does when the tabulator key is pressed at the end of the words.
_PROGRAM = """
source "$1"
shift
COMP_WORDS=("$@")
COMP_CWORD=$(( $# - 1 ))
_opdispatch_completion opdispatch
printf '%s\\n' "${COMPREPLY[@]}"
"""

pytestmark = pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")


Complete = Callable[..., list[str]]


def _run(*command: str, address: str) -> str:
    done = subprocess.run(
        command,
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
        timeout=LONGEST_WAIT,
    )
    assert done.stderr == ""
    return done.stdout


@pytest.fixture(scope="module")
def complete(tmp_path_factory: pytest.TempPathFactory) -> Complete:
    """Return a function that completes the last of some words as bash does, for that daemon."""
    script = tmp_path_factory.mktemp("bash") / "completion.sh"
    script.write_text(_run(SCRIPT, "--show-completion", "bash", address=NOWHERE))

    def complete(address: str, *words: str) -> list[str]:
        bash = ("bash", "--norc", "-c", _PROGRAM, "bash", str(script))
        return _run(*bash, "opdispatch", *words, address=address).split()

    return complete


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
def test_names_are_completed(
    daemon: RunningDaemon, complete: Complete, words: list[str], expected: list[str]
):
    assert complete(daemon.address, *words) == expected


def test_the_address_is_taken_from_the_words(daemon: RunningDaemon, complete: Complete):
    path = daemon.address.removeprefix("unix:")
    words = ["--address", "unix", ":", path, "describe", "shop", "::", "edg"]
    assert complete(NOWHERE, *words) == ["edges"]


def test_without_a_daemon_there_is_silence(complete: Complete):
    assert complete(NOWHERE, "describe", "sh") == []
