"""The events of a finished profile: a tree with total and self times.

Mirrors ``FunctionEvent`` of ``torch/autograd/profiler_util.py``. Times are microseconds.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from opdispatch.modes.flop_counter import find_flop_formula
from opdispatch.profiler.recorder import Process, Recorder, Shapes, Span


class Interval(NamedTuple):
    """Time range from ``start`` to ``end``, in microseconds of the machine's monotonic clock."""

    start: float
    end: float

    def elapsed_us(self) -> float:
        """Return the duration in microseconds."""
        return self.end - self.start


@dataclass(eq=False, slots=True)
class FunctionEvent:
    """One operator call or other timed range.

    ``kind`` is "operator", "user" (``record_function``) or "backward" (a node of the backward
    pass); for a remote call "rpc" (the client's round trip), "daemon" (the daemon's part of it) or
    "queue" (the part of that spent waiting). ``input_shapes`` has one shape for each argument, ()
    for values that are not tensors; it is empty if shapes were not recorded. ``result_bytes`` is
    the memory newly allocated for the results, in bytes, or None if it was not recorded. ``stack``
    has the source lines of an outermost call, innermost first, if they were recorded. ``failed``
    tells whether it raised.
    """

    id: int
    name: str
    kind: str
    process: Process
    thread: int
    begin_ns: int
    end_ns: int
    input_shapes: Shapes = ()
    flops: int | None = None
    result_bytes: int | None = None
    stack: tuple[str, ...] = ()
    failed: bool = False
    cpu_parent: FunctionEvent | None = field(default=None, repr=False)
    cpu_children: list[FunctionEvent] = field(default_factory=list, repr=False)

    @property
    def time_range(self) -> Interval:
        """Start and end of the event."""
        return Interval(self.begin_ns / 1000, self.end_ns / 1000)

    @property
    def cpu_time_total(self) -> float:
        """Duration including nested events, in microseconds."""
        return (self.end_ns - self.begin_ns) / 1000

    @property
    def self_ns(self) -> int:
        """``self_cpu_time_total`` in nanoseconds."""
        return self.end_ns - self.begin_ns - self._covered_ns()

    @property
    def self_cpu_time_total(self) -> float:
        """Duration without the time in which nested events ran, in microseconds."""
        return self.self_ns / 1000

    def _covered_ns(self) -> int:
        # Children of different tasks may overlap, and may outlast their parent.
        covered, reached = 0, self.begin_ns
        for child in sorted(self.cpu_children, key=lambda each: each.begin_ns):
            begin, end = max(child.begin_ns, reached), min(child.end_ns, self.end_ns)
            if end > begin:
                covered += end - begin
                reached = end
        return covered


def build_events(recorder: Recorder, process: Process) -> list[FunctionEvent]:
    """Build the events from recorded spans, in order of start time; ``process`` is the current
    process.

    Propagates errors of FLOP formulas.
    """
    made: dict[int, FunctionEvent] = {}
    events = []
    for number, span in enumerate(sorted(recorder.spans, key=lambda span: span.begin)):
        event = FunctionEvent(
            id=number,
            name=span.name,
            kind=span.kind,
            process=span.process or process,
            thread=span.thread,
            begin_ns=span.begin,
            end_ns=span.end,
            input_shapes=span.inputs or (),
            flops=flops_of(span),
            result_bytes=span.result_bytes,
            stack=span.stack,
            failed=span.failed,
        )
        made[id(span)] = event
        events.append(event)
    for span in recorder.spans:
        parent = made.get(id(span.parent)) if span.parent is not None else None
        if parent is not None:
            event = made[id(span)]
            event.cpu_parent = parent
            parent.cpu_children.append(event)
    return events


def flops_of(span: Span) -> int | None:
    """Return the number of floating-point operations of an event. Propagates errors of its
    formula."""
    if span.flop_inputs is None or span.failed or span.result_shape is None:
        return span.flops
    formula = find_flop_formula(span.name)
    if formula is None:
        return None
    args, kwargs = span.flop_inputs
    return int(formula(*args, out_shape=span.result_shape, **kwargs))
