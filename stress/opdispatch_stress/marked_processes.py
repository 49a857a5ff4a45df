"""Processes that are found by a mark in their environment, even if their parent is gone."""

from __future__ import annotations

import shlex
import time

import psutil

# How long a process that is executing a new program may have no readable environment.
_EXEC_SECONDS = 1.0
_POLL_SECONDS = 0.001


def find_marked(name: str, value: str) -> dict[int, str]:
    """Return every live process whose environment has that mark: process id and command line.

    A child inherits the environment, and with it the mark. Processes of other users are not
    visible.
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
    """Return a process's environment; empty for dead processes and the kernel's own.

    In the middle of execve(2) a process has memory but nothing to read yet: this waits for it.
    Raises psutil.Error for a process that has ended or belongs to another user.
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
