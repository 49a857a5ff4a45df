"""``profile``: a profiler for the operator calls of a block.

Mirrors ``torch/profiler/profiler.py``. It costs nothing while it is off: a task with an active
profile has an observer in its local state, and only calls that see one leave the compiled fast
path.
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
    """Context manager that records operator calls in the current task and in tasks started from it.

    ``record_shapes`` adds the shapes of arguments to events, ``profile_memory`` the bytes newly
    allocated for results, ``with_stack`` the Python source lines of outermost calls, and
    ``with_flops`` the floating-point operations as counted by ``FlopCounterMode``, attributed to
    the outermost call with a formula. ``record_keys=False`` omits the key grid and lowers the
    overhead. Events beyond ``max_events`` are counted but not kept.

    With a ``schedule``, only some steps are recorded. Steps are separated by calls of ``step``, and
    each is an event ``ProfilerStep#N``. ``on_trace_ready`` is called with the profile at the end of
    each cycle, and at the end of the block within a cycle. Results are those of the last recorded
    cycle.

    A profile can be entered again, which discards previous results, but not while it is active.
    Events of a nested profile are also recorded by the outer one. Raises ArgumentError if
    ``max_events`` is not positive.
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
            raise ArgumentError(
                f"profile was given max_events={max_events!r}; expected a positive int"
            )
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
        """Number of calls of ``step`` in the block."""
        self._action: ProfilerAction | None = None  # of this step; None outside of the block
        self._recorder: Recorder | None = None  # of the results
        self._events: list[FunctionEvent] | None = None
        # Set only while calls are recorded.
        self._running: Recorder | None = None
        self._place: Place | None = None
        self._guard: LocalStateGuard | None = None
        self._state: LocalState | None = None  # the local state in which a step must begin and end

    def start(self) -> None:
        """Start recording. Raises ArgumentError if the profile is already active."""
        if self._action is not None:
            raise ArgumentError("this profile is already recording", hint="create another profile")
        self.step_num = 0
        action = self._action_of(0)
        self._recorder = self._events = None
        self._action = action
        self._begin()

    def stop(self) -> None:
        """Stop recording, in the task that started it. Open events end now."""
        action, self._action = self._action, None
        if action is None:
            raise ArgumentError("this profile is not recording")
        self._end(action)
        if action in RECORDING:
            self._tell()

    def step(self) -> None:
        """Start the next step. Must be called directly in the profile's block.

        Raises ArgumentError outside the block, in another task, and within a nested mode or context
        manager that changes the local state.
        """
        before = self._action
        if before is None:
            raise ArgumentError("step was called outside the block of the profile")
        if LOCAL_STATE.get() is not self._state:
            raise ArgumentError(
                "step was called in another task, or within a nested block that changes the local "
                "state",
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
        """Begin recording calls if this step's action records; with a schedule, in a step event."""
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
        """Return all events, in order of start time.

        Like the methods below, raises ArgumentError before the end of the block or of a cycle.
        """
        recorder = self._ended()
        if self._events is None:
            self._events = build_events(recorder, this_process())
        return self._events

    @property
    def dropped(self) -> int:
        """Number of events that were not kept because of ``max_events``."""
        return self._ended().dropped

    def key_averages(
        self, group_by_input_shape: bool = False, group_by_stack_n: int = 0
    ) -> EventList:
        """Average events by process and name, optionally also by input shapes and the first
        ``group_by_stack_n`` lines of the stack.
        """
        return average_by_name(
            self.events(),
            by_shape=group_by_input_shape,
            stack_lines=group_by_stack_n,
            dropped=self.dropped,
        )

    def key_grid(self) -> KeyGrid:
        """Return the number of kernel visits by operator and dispatch key."""
        return KeyGrid(self._ended().visits)

    def export_chrome_trace(self, path: str | os.PathLike[str]) -> None:
        """Write a file for https://ui.perfetto.dev, compressed if its name ends in ``.gz``."""
        # Imported here and below, since few programs export but every profile imports this module.
        from opdispatch.profiler.chrome_trace import build_chrome_trace, write_chrome_trace

        events, recorder = self.events(), self._ended()
        trace = build_chrome_trace(events, recorder.threads, this_process(), recorder.dropped)
        write_chrome_trace(trace, path)

    def export_flame_chart(self, path: str | os.PathLike[str], width: int = 1000) -> None:
        """Write a flame chart as SVG, ``width`` pixels wide."""
        from opdispatch.profiler.flame_chart import draw_flame_chart

        Path(path).write_text(draw_flame_chart(self.events(), width), encoding="utf-8")

    def _ended(self) -> Recorder:
        if self._running is not None:
            raise ArgumentError(
                "this profile is still recording",
                hint="read results after the end of its block, or in on_trace_ready",
            )
        if self._recorder is None:
            raise ArgumentError(
                "this profile has not recorded anything", hint="enter it with a with statement"
            )
        return self._recorder
