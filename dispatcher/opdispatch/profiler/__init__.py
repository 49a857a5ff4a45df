"""Profiler of operator calls: their events, times, and the kernels that they visit.

result_memory     memory allocated for results
recorder          recording of events while calls run
function_events   the tree of events and their self times
function_event_avg
                  averages of events with the same name
event_averages    lists of averages
event_table       averages as a text table
key_grid          operators and the dispatch keys at which their kernels were visited
chrome_trace      events for Perfetto
flame_chart       events as a picture
schedule          which steps of a program are recorded
profile           the context manager ``profile``
record_function   ranges of the program with names

Mirrors ``torch.profiler``.
"""

from __future__ import annotations

from opdispatch.profiler.event_averages import EventList
from opdispatch.profiler.function_event_avg import FunctionEventAvg
from opdispatch.profiler.function_events import FunctionEvent
from opdispatch.profiler.key_grid import KeyGrid
from opdispatch.profiler.profile import profile
from opdispatch.profiler.record_function import record_function
from opdispatch.profiler.schedule import ProfilerAction, schedule

__all__ = [
    "EventList",
    "FunctionEvent",
    "FunctionEventAvg",
    "KeyGrid",
    "ProfilerAction",
    "profile",
    "record_function",
    "schedule",
]
