"""The command line as a process of its own, for tests."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from tests.service.warm_daemon import run_command_line


def run_cli(*words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run ``opdispatch`` with more variables, and without an address of this process's."""
    environment = {k: v for k, v in os.environ.items() if k != "OPDISPATCH_ADDRESS"}
    return run_command_line(words, env={**environment, **variables}, cwd=Path.cwd())
