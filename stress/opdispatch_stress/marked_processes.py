"""Finding processes by an environment variable, even if their parent has ended."""

from __future__ import annotations

import shlex
import time

import psutil

# Seconds for which a process in execve(2) may have no readable environment.
_EXEC_SECONDS = 1.0
_POLL_SECONDS = 0.001


def find_marked(name: str, value: str) -> dict[int, str]:
    """Return the live processes with ``name=value`` in their environment: pid to command line.

    Children inherit the variable. Processes of other users are not found.
    """
    found = {}
    for process in psutil.process_iter():
        try:
            if read_environment(process).get(name) == value and (words := process.cmdline()):
                found[process.pid] = shlex.join(words)
        except psutil.Error:
            continue  # it ended just now, or belongs to another user
    return found


def read_environment(process: psutil.Process) -> dict[str, str]:
    """Return a process's environment; empty for zombies and kernel threads.

    During execve(2), a process has memory but no readable environment; wait until it has. Raises
    psutil.Error for a process that has ended or belongs to another user.
    """
    deadline = time.monotonic() + _EXEC_SECONDS
    while True:
        # In this order: a process with a command line has its environment, even if empty.
        command = process.cmdline()
        environment: dict[str, str] = process.environ()
        if command or environment or time.monotonic() > deadline:
            return environment
        if process.memory_info().vms == 0:
            return {}
        time.sleep(_POLL_SECONDS)
