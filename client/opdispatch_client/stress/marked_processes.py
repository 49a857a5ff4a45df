"""Processes that are found by a mark in their environment, even if their parent is gone."""

from __future__ import annotations

import time
from pathlib import Path

# A process that is starting a program has neither a command line nor an environment to show.
_EXEC_SECONDS = 1.0
_POLL_SECONDS = 0.001


def find_marked(mark: str) -> dict[int, str]:
    """Every live process whose environment has that mark: process id and command line.

    A child inherits the environment, and with it the mark. Linux only: it reads ``/proc``
    (proc(5)). Processes of other users are not seen.
    """
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if mark.encode() in read_environment(folder):
                command = (folder / "cmdline").read_bytes().replace(b"\0", b" ")
                if command:  # else it is dead, and only its parent has not looked yet
                    found[int(folder.name)] = command.decode(errors="replace").strip()
        except OSError:
            continue  # it ended just now, or is somebody else's
    return found


def read_environment(folder: Path) -> bytes:
    """What stands in the ``environ`` of that folder of ``/proc``; nothing for the kernel's own.

    A process in the midst of execve(2) has memory already, but nothing to read yet: it is waited
    for. Of the dead there is nothing, or an OSError, as the kernel likes; of others, an OSError.
    """
    deadline = time.monotonic() + _EXEC_SECONDS
    while True:
        # In this order: whoever has a command line has its environment, too, even if that is empty.
        command = (folder / "cmdline").read_bytes()
        environment = (folder / "environ").read_bytes()
        if command or environment or time.monotonic() > deadline:
            return environment
        if (folder / "statm").read_text().startswith("0 "):
            return b""
        time.sleep(_POLL_SECONDS)
