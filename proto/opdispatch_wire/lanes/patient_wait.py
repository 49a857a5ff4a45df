"""Wait for the reply of a call that may be given up, to move it to another interpreter."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TypeVar

from opdispatch_wire.lanes.lane_messages import InterpreterBusyError

T = TypeVar("T")
Watch = Callable[[], AbstractContextManager[Callable[[], bool]]]
"""Returns a block in which a call is watched, and which yields a function: is it given up?"""
Wait = Callable[["float | None"], T]
"""Waits until a time of ``time.monotonic`` (None: forever); raises TimeoutError then."""

ASK_SECONDS = 0.5
"""Seconds before a waiting call is watched, and between two checks whether it is given up."""


def wait_unless_given_up(watch: Watch, wait: Wait[T], deadline: float | None) -> T:
    """Call ``wait`` until it returns, and watch the call if that takes long.

    Raises TimeoutError, and InterpreterBusyError if the call is given up and its reply has not
    come.
    """
    if (found := _wait_a_while(wait, deadline)) is not None:
        return found
    return wait_watched(watch, wait, deadline)


def wait_watched(watch: Watch, wait: Wait[T], deadline: float | None) -> T:
    """Wait as ``wait_unless_given_up`` does, for a call made ASK_SECONDS ago."""
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
