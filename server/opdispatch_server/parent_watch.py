"""Keeps a supervised interpreter from outliving its daemon, however the daemon ends."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import threading

_PR_SET_PDEATHSIG = 1


def die_with_parent(parent_pid: int) -> int:
    """End this process when its parent, which holds the other end of stdin, is gone.

    Two mechanisms, neither of which suffices alone: a thread that waits for the end of stdin works
    everywhere, but not while a kernel holds the interpreter lock; the Linux kernel's signal works
    then, too. Returns the descriptor of the lifeline.
    """
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:
        os._exit(1)  # the parent ended before the signal was requested
    # Kernels that read stdin must not get the lifeline.
    lifeline = os.dup(0)
    os.set_inheritable(lifeline, False)
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    threading.Thread(target=_wait_for_end, args=(lifeline,), name="lifeline", daemon=True).start()
    return lifeline


def _wait_for_end(lifeline: int) -> None:
    with contextlib.suppress(OSError):
        while os.read(lifeline, 1):
            pass
    os._exit(1)
