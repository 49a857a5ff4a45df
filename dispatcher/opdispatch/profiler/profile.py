"""``profile``: what the calls of a block took.

Mirrors ``torch/profiler/profiler.py``. Off, it costs a call nothing: a task with a profile has a
local state of its own, and calls that see one take the interpreter path of the dispatcher.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

from opdispatch.errors import ArgumentError
from opdispatch.local_state.local_dispatch_key_set import LOCAL_STATE, LocalState, LocalStateGuard
from opdispatch.profiler.event_averages import EventList, average_by_name
from opdispatch.profiler.function_events import FunctionEvent, build_events
from opdispatch.profiler.key_grid import KeyGrid
from opdispatch.profiler.recorder import MAX_EVENTS, Place, Recorder, this_process
from opdispatch.profiler.schedule import RECORDING, ProfilerAction, Schedule


class profile:  # noqa: N801 - PyTorch's name
    """Records the calls of operators in a ``with`` block: in this task, and those it begins.

    With ``record_shapes``, events have the shapes of their arguments; with ``profile_memory``, the
    bytes of memory that their results have and their arguments had not; with ``with_stack``, the
    lines of Python that made them, if no other call is around them; with ``with_flops``, the
    floating-point operations that ``FlopCounterMode`` would count, at the outermost call that has
    a formula. Without ``record_keys`` there is no grid of keys, and a call costs less. Beyond
    ``max_events``, events are counted and not kept.

    With a ``schedule``, some steps of the block are recorded, which ``step`` divides, each an event
    ``ProfilerStep#N``. ``on_trace_ready`` is called with the profile when a cycle of the schedule
    has ended, or the block in the middle of one. What is asked of the profile is about the last
    cycle that was recorded.

    Entered again, it starts anew; for one block at a time. A profile within another one takes part
    in it. Raises ArgumentError if ``max_events`` is not positive.
    """

    def __init__(
        self,
        *,
        schedule: Schedule | None = None,
        on_trace_ready: Callable[[profile], Any] | None = None,
        record_shapes: bool = False,
        profile_memory: bool = False,
        with_stack: bool = False,
        with_flops: bool = False,
        record_keys: bool = True,
        max_events: int = MAX_EVENTS,
    ) -> None:
        if max_events < 1:
            raise ArgumentError(f"max_events is positive, not {max_events!r}")
        self._options: dict[str, Any] = {
            "record_shapes": record_shapes,
            "profile_memory": profile_memory,
            "with_stack": with_stack,
            "with_flops": with_flops,
            "record_keys": record_keys,
            "max_events": max_events,
        }
        self._schedule = schedule
        self._on_trace_ready = on_trace_ready
        self.step_num = 0
        """How often ``step`` was called in the block."""
        self._action: ProfilerAction | None = None  # of this step; None outside of the block
        self._recorder: Recorder | None = None  # of what is asked about
        self._events: list[FunctionEvent] | None = None
        # While something is recorded: where to, and what is switched on for it.
        self._running: Recorder | None = None
        self._place: Place | None = None
        self._guard: LocalStateGuard | None = None
        self._state: LocalState | None = None  # in which a step begins, and ends

    def start(self) -> None:
        """Begin to record. Raises ArgumentError if it does already."""
        if self._action is not None:
            raise ArgumentError("this profile is recording already", hint="make another one")
        self.step_num = 0
        action = self._action_of(0)
        self._recorder = self._events = None
        self._action = action
        self._begin()

    def stop(self) -> None:
        """End the recording, in the task that began it. What has not ended, ends now."""
        action, self._action = self._action, None
        if action is None:
            raise ArgumentError("this profile is not recording")
        self._end(action)
        if action in RECORDING:
            self._tell()

    def step(self) -> None:
        """Begin the next step, at the level of the block that the profile is entered for.

        Raises ArgumentError outside of the block, and where something else is switched on.
        """
        before = self._action
        if before is None:
            raise ArgumentError("step is called in the block of a profile, and it is not recording")
        if LOCAL_STATE.get() is not self._state:
            raise ArgumentError(
                "step was called within another block that switches something on, or in another "
                "task",
                hint="call it directly in the block of the profile",
            )
        action = self._action_of(self.step_num + 1)
        self.step_num += 1
        self._action = action
        goes_on = before is not ProfilerAction.RECORD_AND_SAVE and (
            action is before or {before, action} <= RECORDING
        )
        if goes_on:
            self._switch_off()
            self._switch_on()
            return
        self._end(before)
        if before is ProfilerAction.RECORD_AND_SAVE:
            self._tell()
        self._begin()

    def _action_of(self, step: int) -> ProfilerAction:
        if self._schedule is None:
            return ProfilerAction.RECORD
        action = self._schedule(step)
        if not isinstance(action, ProfilerAction):
            raise ArgumentError(
                f"the schedule of a profile returned {action!r} for step {step}; expected a "
                "ProfilerAction"
            )
        return action

    def _begin(self) -> None:
        """Start recording anew for this step's action."""
        if self._action is not ProfilerAction.NONE:
            self._running = Recorder(**self._options)
        self._switch_on()

    def _end(self, action: ProfilerAction) -> None:
        """Complete the recording of this action."""
        self._switch_off()
        recorder, self._running = self._running, None
        if recorder is not None:
            recorder.stop()
            if action in RECORDING:
                self._recorder, self._events = recorder, None

    def _tell(self) -> None:
        if self._on_trace_ready is not None:
            self._on_trace_ready(self)

    def _switch_on(self) -> None:
        """Begin recording calls, if they are to be recorded; in a step, within its event."""
        recorder = self._running
        if recorder is not None:
            local = LOCAL_STATE.get()
            place = Place(recorder, outer=local.observer)
            if self._schedule is not None:
                place = place.begin_range(f"ProfilerStep#{self.step_num}", "user")
            trace = recorder.sink(local.trace) if recorder.record_keys else local.trace
            self._place = place
            self._guard = LocalStateGuard(trace=trace, observer=place)
            self._guard.__enter__()
        self._state = LOCAL_STATE.get()

    def _switch_off(self) -> None:
        guard, place = self._guard, self._place
        self._guard = self._place = self._state = None
        if guard is not None and place is not None:
            guard.__exit__(None, None, None)
            place.end(None, failed=False)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    def events(self) -> list[FunctionEvent]:
        """Return all events, in order of their beginning.

        Like all that follows, raises ArgumentError unless the block has ended, or a cycle of the
        schedule.
        """
        recorder = self._ended()
        if self._events is None:
            self._events = build_events(recorder, this_process())
        return self._events

    @property
    def dropped(self) -> int:
        """How many events were not kept."""
        return self._ended().dropped

    def key_averages(
        self, group_by_input_shape: bool = False, group_by_stack_n: int = 0
    ) -> EventList:
        """Average events of one name in one process, or also of the same shapes, and the same
        ``group_by_stack_n`` lines of Python.
        """
        return average_by_name(
            self.events(),
            by_shape=group_by_input_shape,
            stack_lines=group_by_stack_n,
            dropped=self.dropped,
        )

    def key_grid(self) -> KeyGrid:
        """Return the visits of kernels, by operator and dispatch key."""
        return KeyGrid(self._ended().visits)

    def export_chrome_trace(self, path: str | os.PathLike[str]) -> None:
        """Write a file for https://ui.perfetto.dev, compressed if its name ends in ``.gz``."""
        # Here, and below: few programs need it, and every program imports this module.
        from opdispatch.profiler.chrome_trace import build_chrome_trace, write_chrome_trace

        events, recorder = self.events(), self._ended()
        trace = build_chrome_trace(events, recorder.threads, this_process(), recorder.dropped)
        write_chrome_trace(trace, path)

    def export_flame_chart(self, path: str | os.PathLike[str], width: int = 1000) -> None:
        """Write an SVG picture, ``width`` pixels wide."""
        from opdispatch.profiler.flame_chart import draw_flame_chart

        Path(path).write_text(draw_flame_chart(self.events(), width), encoding="utf-8")

    def _ended(self) -> Recorder:
        if self._running is not None:
            raise ArgumentError(
                "this profile is still recording",
                hint="ask after the end of its block, or in on_trace_ready",
            )
        if self._recorder is None:
            raise ArgumentError(
                "this profile has recorded nothing", hint="enter it: with profile()"
            )
        return self._recorder
