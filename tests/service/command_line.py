"""The command line as a process of its own, for tests."""

from __future__ import annotations

import os
import subprocess
from contextlib import AbstractContextManager
from pathlib import Path

from tests.service.warm_daemon import ForkedProcess, run_command_line, running_command_line


def run_cli(*words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run ``opdispatch`` with more variables, and without an address of this process's."""
    return run_command_line(words, env=_environment(variables), cwd=Path.cwd())


def running_cli(*words: str, **variables: str) -> AbstractContextManager[ForkedProcess]:
    """Start ``opdispatch`` as ``run_cli`` runs it, and ask it to end when the block does."""
    return running_command_line(words, env=_environment(variables), cwd=Path.cwd())


def _environment(variables: dict[str, str]) -> dict[str, str]:
    inherited = {k: v for k, v in os.environ.items() if k != "OPDISPATCH_ADDRESS"}
    return {**inherited, **variables}
