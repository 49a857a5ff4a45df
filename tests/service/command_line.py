"""The command line as a process of its own, for tests."""

from __future__ import annotations

import os
import subprocess
import sys

from tests.waits import LONGEST_WAIT


def run_cli(*words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run ``opdispatch`` with more variables, and without an address of this process's."""
    environment = {k: v for k, v in os.environ.items() if k != "OPDISPATCH_ADDRESS"}
    return subprocess.run(
        [sys.executable, "-m", "opdispatch_client.cli", *words],
        env={**environment, **variables},
        capture_output=True,
        text=True,
        timeout=LONGEST_WAIT,
        check=False,
    )
