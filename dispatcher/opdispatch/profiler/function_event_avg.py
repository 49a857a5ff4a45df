"""Averages of events with the same name.

Mirrors ``FunctionEventAvg`` of ``torch/autograd/profiler_util.py``.
"""

from __future__ import annotations

from dataclasses import dataclass

from opdispatch.profiler.function_events import FunctionEvent
from opdispatch.profiler.recorder import Shapes


@dataclass(slots=True)
class FunctionEventAvg:
    """Aggregate of the events with one name in one process, optionally also one input shape.

    Times are sums in microseconds. A call within a call of the same name counts in the total times
    of both, as in PyTorch. ``flops`` and ``result_bytes`` are None if they were not recorded.
    ``stack`` has the stack lines that the events were grouped by.
    """

    key: str
    process: str = ""
    input_shapes: Shapes = ()
    count: int = 0
    cpu_time_total: float = 0.0
    self_cpu_time_total: float = 0.0
    flops: int | None = None
    result_bytes: int | None = None
    stack: tuple[str, ...] = ()

    @property
    def cpu_time(self) -> float:
        """Mean total CPU time of an event, in microseconds."""
        return self.cpu_time_total / self.count if self.count else 0.0

    def add(self, event: FunctionEvent) -> None:
        """Add one event to the sums."""
        self.count += 1
        self.cpu_time_total += event.cpu_time_total
        self.self_cpu_time_total += event.self_cpu_time_total
        if event.flops is not None:
            self.flops = (self.flops or 0) + event.flops
        if event.result_bytes is not None:
            self.result_bytes = (self.result_bytes or 0) + event.result_bytes
