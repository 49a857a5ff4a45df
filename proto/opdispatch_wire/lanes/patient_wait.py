"""A wait for the reply of a call that may be given up, since another one can run it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from opdispatch_wire.lanes.lane_messages import InterpreterBusyError

T = TypeVar("T")
IsGivenUp = Callable[[], bool]
Wait = Callable[["float | None"], T]
"""Waits until a time of ``time.monotonic``, and raises TimeoutError then; None: for ever."""

# How often a call that takes its time asks whether it is given up, in seconds.
_ASK_SECONDS = 0.5


def wait_unless(is_given_up: IsGivenUp, wait: Wait[T], deadline: float | None) -> T:
    """Return what ``wait`` does, and ask now and then whether the call is given up.

    Raises InterpreterBusyError then, unless the reply is there, and TimeoutError.
    """
    while True:
        soon = time.monotonic() + _ASK_SECONDS
        try:
            return wait(soon if deadline is None else min(soon, deadline))
        except TimeoutError:
            if deadline is not None and time.monotonic() >= deadline:
                raise
        if is_given_up():
            try:
                return wait(0.0)
            except TimeoutError:
                raise InterpreterBusyError from None
