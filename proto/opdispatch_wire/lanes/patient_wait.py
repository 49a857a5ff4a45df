"""A wait for the reply of a call that may be given up, since another one can run it."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TypeVar

from opdispatch_wire.lanes.lane_messages import InterpreterBusyError

T = TypeVar("T")
Watch = Callable[[], AbstractContextManager[Callable[[], bool]]]
"""Makes a block in which a call is watched; it gives what says whether that is given up."""
Wait = Callable[["float | None"], T]
"""Waits until a time of ``time.monotonic``, and raises TimeoutError then; None: for ever."""

ASK_SECONDS = 0.5
"""How long a call is waited for before it is watched, and how often it is asked about then."""


def wait_unless_given_up(watch: Watch, wait: Wait[T], deadline: float | None) -> T:
    """Return what ``wait`` does; the call is watched while it takes its time.

    Raises InterpreterBusyError when it is given up, unless the reply is there, and TimeoutError.
    """
    if (found := _wait_a_while(wait, deadline)) is not None:
        return found
    return wait_watched(watch, wait, deadline)


def wait_watched(watch: Watch, wait: Wait[T], deadline: float | None) -> T:
    """Wait like ``wait_unless_given_up`` for a call, ASK_SECONDS after it was made."""
    with watch() as is_given_up:
        while not is_given_up():
            if (found := _wait_a_while(wait, deadline)) is not None:
                return found
    try:
        return wait(0.0)
    except TimeoutError:
        raise InterpreterBusyError from None


def _wait_a_while(wait: Wait[T], deadline: float | None) -> T | None:
    soon = time.monotonic() + ASK_SECONDS
    try:
        return wait(soon if deadline is None else min(soon, deadline))
    except TimeoutError:
        if deadline is not None and time.monotonic() >= deadline:
            raise
        return None
