"""Schedules of the steps that a profile records. Mirrors ``torch.profiler.schedule``."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum, auto

from opdispatch.errors import ArgumentError


class ProfilerAction(Enum):
    """Action of the profiler in a step."""

    NONE = auto()
    """Record nothing, without overhead for calls."""
    WARMUP = auto()
    """Record and discard, so that one-time costs of recording are not measured."""
    RECORD = auto()
    RECORD_AND_SAVE = auto()
    """Record, and call ``on_trace_ready`` at the end of the step."""


RECORDING = frozenset({ProfilerAction.RECORD, ProfilerAction.RECORD_AND_SAVE})

Schedule = Callable[[int], ProfilerAction]
"""Function from the step number, counted from 0, to its action."""


def schedule(
    *,
    wait: int,
    warmup: int,
    active: int,
    repeat: int = 0,
    skip_first: int = 0,
    skip_first_wait: int = 0,
) -> Schedule:
    """Return a schedule of cycles: ``wait`` idle steps, then ``warmup``, then ``active`` steps.

    There are ``repeat`` cycles, or an unlimited number if it is 0, after the first ``skip_first``
    steps. If ``skip_first_wait`` is not 0, the first cycle has no idle steps. Raises ArgumentError
    for negative numbers and unless ``active`` is positive. As ``torch.profiler.schedule``.
    """
    length = wait + warmup + active
    if min(wait, warmup, repeat, skip_first) < 0 or active < 1:
        raise ArgumentError(
            f"a schedule has active=1 or more, and no number below 0; it was given wait={wait}, "
            f"warmup={warmup}, active={active}, repeat={repeat}, skip_first={skip_first}"
        )

    def action_of(step: int) -> ProfilerAction:
        step -= skip_first
        if step < 0:
            return ProfilerAction.NONE
        if skip_first_wait:
            step += wait
        cycle, place = divmod(step, length)
        if (repeat and cycle >= repeat) or place < wait:
            return ProfilerAction.NONE
        if place < wait + warmup:
            return ProfilerAction.WARMUP
        return ProfilerAction.RECORD if place < length - 1 else ProfilerAction.RECORD_AND_SAVE

    return action_of
