"""Notices the end of a process of this machine at once, a child or not."""

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
    """Return a text that is equal where this process's id means the same; "" if unknown.

    Two processes that agree on it are on one machine, in the same run of it, and in one
    process namespace: a container has another one, though it may share our sockets.
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
    """It exited or crashed, and was not sent away."""

    def __str__(self) -> str:
        return self.words


UNKNOWN_END = ProcessEnd("has ended", by_itself=False)
"""Of a process that is no child, or whose end other code of this process has asked for."""

# A process that crashes, or that its own code brings down, dies of others.
_SENT_BY_OTHERS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def has_process_descriptors() -> bool:
    """Return whether the system has them, and lets us use them: not every container does."""
    if sys.platform != "linux":
        return False
    try:
        os.close(os.pidfd_open(os.getpid()))
    except OSError:
        return False
    return True


def watch_process(pid: int, on_end: Callable[[ProcessEnd], None]) -> Callable[[], None]:
    """Call ``on_end`` in the event loop, with what is known of the end, when a process ends.

    The result stops watching; it may be called at any time. Where the system has no process
    descriptors, or no such process, nothing is watched.
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
    """Describe how a process of that exit status ended; negative ones are signals."""
    if status >= 0:
        return ProcessEnd(f"exited with status {status}", by_itself=True)
    by_itself = -status not in _SENT_BY_OTHERS
    with suppress(ValueError):
        return ProcessEnd(f"was ended by {signal.Signals(-status).name}", by_itself)
    return ProcessEnd(f"was ended by signal {-status}", by_itself)


def _how_it_ended(descriptor: int) -> ProcessEnd:
    # Known for children only, and until other code has asked for good.
    if sys.platform == "linux":
        with suppress(OSError):
            result = os.waitid(os.P_PIDFD, descriptor, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if result is not None:
                exited = result.si_code == os.CLD_EXITED
                return describe_exit(result.si_status if exited else -result.si_status)
    return UNKNOWN_END


def _nothing() -> None:
    pass
