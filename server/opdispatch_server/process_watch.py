"""Immediate notice of the end of a process on this machine, a child or not."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple


def process_space() -> str:
    """Return a text that is equal in processes where this process's id is valid; "" if unknown.

    Processes with equal texts are on one machine, in the same boot, and in one process namespace: a
    container has another one, though it may share our sockets.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{os.stat('/proc/self/ns/pid').st_ino}"
    except OSError:
        return ""


class ProcessEnd(NamedTuple):
    """How a process ended."""

    words: str
    """Such as "exited with status 3"."""
    by_itself: bool
    """Whether it exited or crashed, rather than being killed from outside."""

    def __str__(self) -> str:
        return self.words


UNKNOWN_END = ProcessEnd("has ended", by_itself=False)
"""For a process that is not a child, or whose exit status other code has already collected."""

# A process that crashes, or that its own code kills, dies of another signal.
_SENT_BY_OTHERS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def has_process_descriptors() -> bool:
    """Return whether process descriptors exist and are permitted: not every container has them."""
    if sys.platform != "linux":
        return False
    try:
        os.close(os.pidfd_open(os.getpid()))
    except OSError:
        return False
    return True


def watch_process(pid: int, on_end: Callable[[ProcessEnd], None]) -> Callable[[], None]:
    """Call ``on_end`` in the event loop, with how the process ended, when it ends.

    The returned function stops watching, and may be called at any time. Where the system has no
    process descriptors, or no such process, nothing is watched.
    """
    if sys.platform != "linux":
        return _nothing
    try:
        descriptor = os.pidfd_open(pid)
    except (OSError, OverflowError):
        return _nothing
    loop = asyncio.get_running_loop()
    open_descriptors = {descriptor}

    def stop() -> None:
        if open_descriptors:
            open_descriptors.clear()
            loop.remove_reader(descriptor)
            os.close(descriptor)

    def ended() -> None:
        how = _how_it_ended(descriptor)
        stop()
        on_end(how)

    loop.add_reader(descriptor, ended)
    return stop


def describe_exit(status: int) -> ProcessEnd:
    """Describe how a process with that exit status ended; negative ones are signals."""
    if status >= 0:
        return ProcessEnd(f"exited with status {status}", by_itself=True)
    by_itself = -status not in _SENT_BY_OTHERS
    with suppress(ValueError):
        return ProcessEnd(f"was ended by {signal.Signals(-status).name}", by_itself)
    return ProcessEnd(f"was ended by signal {-status}", by_itself)


def _how_it_ended(descriptor: int) -> ProcessEnd:
    # Known only for children, and only until other code collects it.
    if sys.platform == "linux":
        with suppress(OSError):
            result = os.waitid(os.P_PIDFD, descriptor, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if result is not None:
                exited = result.si_code == os.CLD_EXITED
                return describe_exit(result.si_status if exited else -result.si_status)
    return UNKNOWN_END


def _nothing() -> None:
    pass
