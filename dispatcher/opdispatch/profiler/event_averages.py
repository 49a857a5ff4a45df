"""Events of one name taken together, and lists of them.

Mirrors ``FunctionEventAvg`` and ``EventList`` of ``torch/autograd/profiler_util.py``.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from opdispatch.profiler.event_table import format_table
from opdispatch.profiler.function_events import FunctionEvent
from opdispatch.profiler.recorder import Shapes


@dataclass(slots=True)
class FunctionEventAvg:
    """The events of one name in one process, or also of the same input shapes.

    Times are sums in microseconds. A call within a call of the same name counts in the
    total times of both, as in PyTorch. ``flops`` and ``result_bytes`` are None if nothing was
    counted. ``stack`` is that of all of them, as far as they were told apart by it.
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
        """The average of the total times."""
        return self.cpu_time_total / self.count if self.count else 0.0

    def add(self, event: FunctionEvent) -> None:
        """Add one event."""
        self.count += 1
        self.cpu_time_total += event.cpu_time_total
        self.self_cpu_time_total += event.self_cpu_time_total
        if event.flops is not None:
            self.flops = (self.flops or 0) + event.flops
        if event.result_bytes is not None:
            self.result_bytes = (self.result_bytes or 0) + event.result_bytes


class EventList(list[FunctionEventAvg]):
    """What ``profile.key_averages`` returns. ``dropped`` is how many events it knows nothing of."""

    def __init__(self, averages: Iterable[FunctionEventAvg] = (), *, dropped: int = 0) -> None:
        super().__init__(averages)
        self.dropped = dropped

    @property
    def self_cpu_time_total(self) -> float:
        """The sum of all times that events had for themselves."""
        return sum(each.self_cpu_time_total for each in self)

    def total_average(self) -> FunctionEventAvg:
        """All of them as one; in all but its own time and flops, nested calls count again."""
        flops = [each.flops for each in self if each.flops is not None]
        sizes = [each.result_bytes for each in self if each.result_bytes is not None]
        return FunctionEventAvg(
            "Total",
            count=sum(each.count for each in self),
            cpu_time_total=sum(each.cpu_time_total for each in self),
            self_cpu_time_total=self.self_cpu_time_total,
            flops=sum(flops) if flops else None,
            result_bytes=sum(sizes) if sizes else None,
        )

    def table(
        self,
        sort_by: str | None = None,
        row_limit: int = 100,
        max_name_column_width: int | None = 55,
    ) -> str:
        """The list as a table in PyTorch's columns, the largest of ``sort_by`` first.

        Raises ArgumentError if ``sort_by`` is no number of a row.
        """
        return format_table(self, sort_by, row_limit, max_name_column_width)


def average_by_name(
    events: Iterable[FunctionEvent], *, by_shape: bool, stack_lines: int = 0, dropped: int = 0
) -> EventList:
    """The events of one name in one process together, or also by shape and the lines that called.

    In the order of their beginning.
    """
    found: dict[tuple[object, ...], FunctionEventAvg] = {}
    for event in events:
        shapes = event.input_shapes if by_shape else ()
        stack = event.stack[:stack_lines]
        key = (event.name, event.process, shapes, stack)
        average = found.get(key)
        if average is None:
            average = found[key] = FunctionEventAvg(
                event.name, event.process.name, shapes, stack=stack
            )
        average.add(event)
    return EventList(found.values(), dropped=dropped)
