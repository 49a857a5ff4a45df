"""``profile``: what the calls of a block took.

Mirrors ``torch/profiler/profiler.py``. Off, it costs a call nothing: a task with a profile has a
local state of its own, and calls that see one take the readable way of the dispatcher.
"""

from __future__ import annotations

import os
from pathlib import Path
from types import TracebackType
from typing import Self

from opdispatch.errors import ArgumentError
from opdispatch.local_dispatch_key_set import LOCAL_STATE, LocalStateGuard
from opdispatch.profiler.chrome_trace import build_chrome_trace, write_chrome_trace
from opdispatch.profiler.event_averages import EventList, average_by_name
from opdispatch.profiler.flame_chart import draw_flame_chart
from opdispatch.profiler.function_events import FunctionEvent, build_events
from opdispatch.profiler.key_grid import KeyGrid
from opdispatch.profiler.recorder import MAX_EVENTS, Place, Recorder, this_process


class profile:  # noqa: N801 - PyTorch's name
    """Records the calls of operators in a ``with`` block: in this task, and those it begins.

    With ``record_shapes``, events have the shapes of their arguments; with ``with_flops``, the
    floating-point operations that ``FlopCounterMode`` would count, at the outermost call that has
    a formula. Without ``record_keys`` there is no grid of keys, and a call costs less. Beyond
    ``max_events``, events are counted and not kept. Entered again, it starts anew; for one block
    at a time. A profile within another one takes part in it.

    Raises ArgumentError if ``max_events`` is not positive.
    """

    def __init__(
        self,
        *,
        record_shapes: bool = False,
        with_flops: bool = False,
        record_keys: bool = True,
        max_events: int = MAX_EVENTS,
    ) -> None:
        if max_events < 1:
            raise ArgumentError(f"max_events is positive, not {max_events!r}")
        self._record_shapes = record_shapes
        self._with_flops = with_flops
        self._record_keys = record_keys
        self._max_events = max_events
        self._recorder: Recorder | None = None
        self._guard: LocalStateGuard | None = None
        self._events: list[FunctionEvent] | None = None

    def start(self) -> None:
        """Begins to record. Raises ArgumentError if it does already."""
        if self._guard is not None:
            raise ArgumentError("this profile is recording already", hint="make another one")
        recorder = Recorder(
            record_shapes=self._record_shapes,
            with_flops=self._with_flops,
            record_keys=self._record_keys,
            max_events=self._max_events,
        )
        local = LOCAL_STATE.get()
        trace = recorder.sink(local.trace) if self._record_keys else local.trace
        self._recorder, self._events = recorder, None
        self._guard = LocalStateGuard(trace=trace, observer=Place(recorder, outer=local.observer))
        self._guard.__enter__()

    def stop(self) -> None:
        """Ends the recording, in the task that began it. What has not ended, ends now."""
        guard, self._guard = self._guard, None
        if guard is None or self._recorder is None:
            raise ArgumentError("this profile is not recording")
        guard.__exit__(None, None, None)
        self._recorder.stop()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    def events(self) -> list[FunctionEvent]:
        """All events, in order of their beginning.

        Like all that follows, raises ArgumentError unless the block has ended.
        """
        recorder = self._ended()
        if self._events is None:
            self._events = build_events(recorder, this_process())
        return self._events

    @property
    def dropped(self) -> int:
        """How many events were not kept."""
        return self._ended().dropped

    def key_averages(self, group_by_input_shape: bool = False) -> EventList:
        """Events of one name in one process together; or of one name and the same shapes."""
        return average_by_name(self.events(), by_shape=group_by_input_shape, dropped=self.dropped)

    def key_grid(self) -> KeyGrid:
        """Which kernels were visited, by operator and dispatch key."""
        return KeyGrid(self._ended().visits)

    def export_chrome_trace(self, path: str | os.PathLike[str]) -> None:
        """Writes a file for https://ui.perfetto.dev, compressed if its name ends in ``.gz``."""
        events, recorder = self.events(), self._ended()
        trace = build_chrome_trace(events, recorder.threads, this_process(), recorder.dropped)
        write_chrome_trace(trace, path)

    def export_flame_chart(self, path: str | os.PathLike[str], width: int = 1000) -> None:
        """Writes an SVG picture, ``width`` pixels wide."""
        Path(path).write_text(draw_flame_chart(self.events(), width), encoding="utf-8")

    def _ended(self) -> Recorder:
        if self._guard is not None:
            raise ArgumentError(
                "this profile is still recording", hint="ask after the end of its block"
            )
        if self._recorder is None:
            raise ArgumentError(
                "this profile has recorded nothing", hint="enter it: with profile()"
            )
        return self._recorder
