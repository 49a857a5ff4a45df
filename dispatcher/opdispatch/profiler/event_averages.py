"""Lists of events taken together by their names.

Mirrors ``EventList`` of ``torch/autograd/profiler_util.py``.
"""

from __future__ import annotations

from collections.abc import Iterable

from opdispatch.profiler.event_table import format_table
from opdispatch.profiler.function_event_avg import FunctionEventAvg
from opdispatch.profiler.function_events import FunctionEvent


class EventList(list[FunctionEventAvg]):
    """Result of ``profile.key_averages``. ``dropped`` counts the events that are not in it."""

    def __init__(self, averages: Iterable[FunctionEventAvg] = (), *, dropped: int = 0) -> None:
        super().__init__(averages)
        self.dropped = dropped

    @property
    def self_cpu_time_total(self) -> float:
        """The sum of all times that events had for themselves."""
        return sum(each.self_cpu_time_total for each in self)

    def total_average(self) -> FunctionEventAvg:
        """Return all averages as one.

        In all but its own time and flops, nested calls count again.
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

        Raises ArgumentError if ``sort_by`` is not one of the numbers of a row.
        """
        return format_table(self, self.dropped, sort_by, row_limit, max_name_column_width)


def average_by_name(
    events: Iterable[FunctionEvent], *, by_shape: bool, stack_lines: int = 0, dropped: int = 0
) -> EventList:
    """Average the events of one name in one process, or also of one shape and the same calling
    lines.

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
