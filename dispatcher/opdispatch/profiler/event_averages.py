"""Averages of events, grouped by name.

Mirrors ``EventList`` of ``torch/autograd/profiler_util.py``.
"""

from __future__ import annotations

from collections.abc import Iterable

from opdispatch.profiler.event_table import format_table
from opdispatch.profiler.function_event_avg import FunctionEventAvg
from opdispatch.profiler.function_events import FunctionEvent


class EventList(list[FunctionEventAvg]):
    """Result of ``profile.key_averages``. ``dropped`` is the number of events that were not
    recorded."""

    def __init__(self, averages: Iterable[FunctionEventAvg] = (), *, dropped: int = 0) -> None:
        super().__init__(averages)
        self.dropped = dropped

    @property
    def self_cpu_time_total(self) -> float:
        """Sum of the self CPU times, in microseconds."""
        return sum(each.self_cpu_time_total for each in self)

    def total_average(self) -> FunctionEventAvg:
        """Sum all averages into one.

        Nested calls are counted repeatedly, except in self time and flops.
        """
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
        """Return the list as a table in PyTorch's columns, the largest of ``sort_by`` first.

        Raises ArgumentError if ``sort_by`` is not a numeric column.
        """
        return format_table(self, self.dropped, sort_by, row_limit, max_name_column_width)


def average_by_name(
    events: Iterable[FunctionEvent], *, by_shape: bool, stack_lines: int = 0, dropped: int = 0
) -> EventList:
    """Group events by process and name, optionally also by input shapes and stack lines.

    Groups are in order of their first event.
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
