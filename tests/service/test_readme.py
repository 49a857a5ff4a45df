"""The README's code runs as it stands, and prints what it says it prints."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

from tests.service.running_daemon import RunningDaemon
from tests.service.warm_daemon import run_code
from tests.waits import LONGEST_WAIT

README = (Path(__file__).resolve().parents[2] / "README.md").read_text()
PYTHON_BLOCKS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
CONSOLE_BLOCKS = re.findall(r"```console\n(.*?)```", README, re.DOTALL)


def promised_output(block: str) -> list[str]:
    """Return the output that the comments behind the print calls promise."""
    return re.findall(r"^\s*print\(.*\)\s+# (.*)$", block, re.MULTILINE)


def commands(block: str) -> list[tuple[str, str]]:
    """The commands of a console block, each with the output shown below it."""
    parts = re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]
    return [(command, output) for command, _, output in (part.partition("\n") for part in parts)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "edges.py").write_text(PYTHON_BLOCKS[0])
    Image.linear_gradient("L").convert("RGB").save(tmp_path / "photograph.png")
    return tmp_path


def run_python(block: str, folder: Path, address: str = "") -> list[str]:
    completed = run_code(block, cwd=folder, env={**os.environ, "OPDISPATCH_ADDRESS": address})
    assert completed.returncode == 0, completed.stderr
    return completed.stdout.splitlines()


def test_the_first_library_has_ten_lines_of_code() -> None:
    lines = [line for line in PYTHON_BLOCKS[0].splitlines() if line and not line.startswith("#")]
    assert len(lines) <= 10


def test_the_library_works_in_one_process(folder: Path) -> None:
    block = PYTHON_BLOCKS[1]
    command = [sys.executable, "-c", block]
    completed = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=LONGEST_WAIT
    )
    assert completed.stdout.splitlines() == promised_output(block) != []


def test_sessions_print_what_the_readme_says(folder: Path, daemon: RunningDaemon) -> None:
    blocks = PYTHON_BLOCKS[2:]
    assert len(blocks) == 2
    for block in blocks:
        assert run_python(block, folder, daemon.address) == promised_output(block) != []


def test_the_console_shows_what_the_commands_print(folder: Path, daemon: RunningDaemon) -> None:
    shown = [pair for block in CONSOLE_BLOCKS for pair in commands(block)]
    tried = 0
    for command, output in shown:
        if not output or command.endswith("&"):  # the daemon is there already
            continue
        completed = subprocess.run(
            command,
            shell=True,
            cwd=folder,
            env={
                **os.environ,
                "OPDISPATCH_ADDRESS": daemon.address,
                "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=60,
        )
        assert completed.stdout == output
        tried += 1
    assert tried == 3
