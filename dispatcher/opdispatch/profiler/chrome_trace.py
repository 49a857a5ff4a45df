"""Export of a profile in the Trace Event format of Perfetto and chrome://tracing.

https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU

Each process is a row, and each thread a track in it. Events that overlap without being nested, such
as calls of several tasks of one thread, are placed on additional tracks. A flow arrow connects a
call with its part in another process.
"""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from opdispatch.profiler.function_events import FunctionEvent
from opdispatch.profiler.recorder import Process

_CATEGORIES = {"operator": "cpu_op", "backward": "cpu_op", "user": "user_annotation"}
# First of the artificial thread and process ids; viewers support 32 bits.
_OWN_NUMBERS = 1_000_000_000

Track = tuple[int, int]
"""Process id and thread id in the trace."""


class TraceTracks:
    """Assigns events to tracks so that overlapping events of one track are always nested."""

    def __init__(self, threads: Mapping[int, str], process: Process) -> None:
        self._threads = threads
        self._process = process
        self._pids: dict[Process, int] = {}
        # Tracks of each thread, as stacks of the end times of open events.
        self._open: dict[tuple[Process, int], dict[Track, list[int]]] = {}
        self._own = _OWN_NUMBERS
        self.metadata: list[dict[str, Any]] = []

    def place(self, event: FunctionEvent) -> Track:
        """Return the track of the next event; events must be passed in order of start time."""
        tracks = self._open.setdefault((event.process, event.thread), {})
        for track, ends in tracks.items():
            while ends and ends[-1] <= event.begin_ns:
                ends.pop()
            if not ends or event.end_ns <= ends[-1]:
                ends.append(event.end_ns)
                return track
        track = self._new_track(event, len(tracks))
        tracks[track] = [event.end_ns]
        return track

    def _new_track(self, event: FunctionEvent, number: int) -> Track:
        pid = self._pid_of(event.process)
        name = f"thread {event.thread}"
        if event.process == self._process and event.thread in self._threads:
            name = f"{name} ({self._threads[event.thread]})"
        tid = event.thread
        if number:
            tid = self._own = self._own + 1
            name = f"{name}, task {number + 1}"
        self._note("thread_name", pid, tid, name=name)
        self._note("thread_sort_index", pid, tid, sort_index=len(self.metadata))
        return pid, tid

    def _pid_of(self, process: Process) -> int:
        pid = self._pids.get(process)
        if pid is None:
            pid = process.pid
            if pid in self._pids.values():  # of another machine
                pid = self._own = self._own + 1
            self._pids[process] = pid
            self._note("process_name", pid, 0, name=process.name)
            self._note("process_sort_index", pid, 0, sort_index=len(self._pids))
        return pid

    def _note(self, what: str, pid: int, tid: int, **args: Any) -> None:
        self.metadata.append({"ph": "M", "name": what, "pid": pid, "tid": tid, "args": args})


def build_chrome_trace(
    events: Sequence[FunctionEvent], threads: Mapping[int, str], process: Process, dropped: int
) -> dict[str, Any]:
    """Build the trace as JSON objects. Times are microseconds of the machine's monotonic clock."""
    tracks = TraceTracks(threads, process)
    places = {event: tracks.place(event) for event in events}
    lines = []
    for event in events:
        pid, tid = places[event]
        lines.append(
            {
                "ph": "X",
                "cat": _CATEGORIES.get(event.kind, event.kind),
                "name": event.name,
                "pid": pid,
                "tid": tid,
                "ts": event.begin_ns / 1000,
                "dur": (event.end_ns - event.begin_ns) / 1000,
                "args": _facts(event),
            }
        )
        parent = event.cpu_parent
        if parent is not None and parent.process != event.process:
            arrow = {"cat": "rpc", "name": "rpc", "id": event.id}
            start, end = places[parent], places[event]
            leaves = min(max(event.begin_ns, parent.begin_ns), parent.end_ns)
            lines.append(
                {"ph": "s", "pid": start[0], "tid": start[1], "ts": leaves / 1000, **arrow}
            )
            lines.append(
                {
                    "ph": "f",
                    "bp": "e",
                    "pid": end[0],
                    "tid": end[1],
                    "ts": event.begin_ns / 1000,
                    **arrow,
                }
            )
    return {
        "schemaVersion": 1,
        "displayTimeUnit": "ms",
        "droppedEvents": dropped,
        "traceEvents": [*tracks.metadata, *lines],
    }


def write_chrome_trace(trace: Mapping[str, Any], path: str | os.PathLike[str]) -> None:
    """Write the trace as JSON, gzip-compressed if the name ends in ``.gz``. Raises OSError."""
    text = json.dumps(trace, separators=(",", ":"), allow_nan=False).encode()
    path = Path(path)
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)


def _facts(event: FunctionEvent) -> dict[str, Any]:
    facts: dict[str, Any] = {"External id": event.id}
    if event.input_shapes:
        facts["Input Dims"] = [list(shape) for shape in event.input_shapes]
    if event.flops is not None:
        facts["flops"] = event.flops
    if event.result_bytes is not None:
        facts["Result bytes"] = event.result_bytes
    if event.stack:
        facts["Call stack"] = "\n".join(event.stack)
    if event.failed:
        facts["failed"] = True
    return facts
