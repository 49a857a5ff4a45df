"""Profiles across processes: requested with a call, returned with its reply, merged by the caller.

    caller      CallSpan.begin, ask     ->  CallRequest.profile
    callee                                  profile_to_proto
    caller      CallSpan.end            <-  CallReply.profile

Note [Clocks of machines]
    The processes of one machine share a monotonic clock, so that their events need no adjustment.
    Events from another machine are shifted to the middle of the round trip, as if the request and
    the reply had taken equally long. From then on they count as events of the caller's machine,
    and "(clock adjusted)" is added to the name of their process.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from opdispatch.local_state.local_dispatch_key_set import LOCAL_STATE
from opdispatch.profiler.function_events import flops_of
from opdispatch.profiler.recorder import Place, Process, Recorder, Span, this_process
from opdispatch_wire import trace_context
from opdispatch_wire.v1 import execution_pb2, profile_pb2

if TYPE_CHECKING:
    from opentelemetry.trace import Span as OpenSpan

MAX_EVENTS = 4096
"""Most events in the reply to one call."""
MAX_BYTES = 1 << 20
_MAX_VISITS = 1024
_MAX_NAME = 256
_UNKNOWN_EXTENT = -1


class CallSpan:
    """The span of one remote call, for the profiles of the task and for tracing."""

    __slots__ = ("_place", "_traced")

    def __init__(self, place: Place | None, traced: OpenSpan | None) -> None:
        self._place = place
        self._traced = traced

    @classmethod
    def begin(cls, what: str) -> CallSpan | None:
        """Begin the span of a call of an operator or a program.

        Return None if neither profiling nor tracing is on.
        """
        observer = LOCAL_STATE.get().observer
        place: Place | None = None
        if isinstance(observer, Place):
            name = what.removeprefix("the ").partition(".")[0]  # no overload, as for local calls
            place = observer.begin_range(f"rpc {name}", "rpc")
        if trace_context.is_on():
            about = {"opdispatch.operator": what}
            return cls(place, trace_context.begin_span(f"call {what}", "CLIENT", about))
        return cls(place, None) if place is not None else None

    def ask(self, request: execution_pb2.CallRequest) -> None:
        """Add the traceparent and the options of all profiles of the task to the request."""
        if self._traced is not None:
            request.traceparent = trace_context.traceparent_of(self._traced)
        if self._place is None:
            return
        recorders = [place.recorder for place in _all_places(self._place)]
        asked = request.profile
        asked.record_shapes = any(recorder.record_shapes for recorder in recorders)
        asked.with_flops = any(recorder.with_flops for recorder in recorders)
        asked.profile_memory = any(recorder.profile_memory for recorder in recorders)
        asked.record_keys = any(recorder.record_keys for recorder in recorders)
        asked.max_events = max(1, min(max(map(_room_of, recorders), default=1), MAX_EVENTS))

    def end(self, reply: execution_pb2.CallReply | None) -> None:
        """End the span; ``reply`` is None if the call got none. Idempotent."""
        traced, self._traced = self._traced, None
        if traced is not None:
            trace_context.end_span(traced, failed=reply is None or reply.HasField("error"))
        place, self._place = self._place, None
        if place is None:
            return
        place.end(None, failed=reply is None or reply.HasField("error"))
        if reply is not None and reply.HasField("profile"):
            for each in _all_places(place):
                absorb_profile(each, reply.profile)


def _all_places(place: Place | None) -> Iterator[Place]:
    while isinstance(place, Place):
        yield place
        place = place.outer if isinstance(place.outer, Place) else None


def _room_of(recorder: Recorder) -> int:
    return recorder.max_events - len(recorder.spans)


def profile_to_proto(
    recorder: Recorder, process: Process, max_bytes: int = MAX_BYTES
) -> profile_pb2.Profile:
    """Encode the events recorded in ``process`` and those received from other processes.

    Events that do not fit in ``max_bytes`` are counted as dropped.
    """
    message = profile_pb2.Profile(dropped=recorder.dropped)
    for (operator, key), count in list(recorder.visits.items())[:_MAX_VISITS]:
        message.visits.add(operator=operator[:_MAX_NAME], key=key[:_MAX_NAME], count=count)
    processes: dict[Process, int] = {}
    places: dict[int, int] = {}
    size = message.ByteSize()
    if size > max_bytes:
        del message.visits[:]
        size = 0
    for number, span in enumerate(recorder.spans):
        event = message.events.add()
        where = span.process or process
        event.process = processes.setdefault(where, len(processes))
        _write_event(event, span)
        event.parent = places.get(id(span.parent), 0)
        size += event.ByteSize() + 8
        if size > max_bytes:
            del message.events[-1]
            message.dropped += len(recorder.spans) - number
            break
        places[id(span)] = number + 1
    for where in processes:
        message.processes.add(name=where.name[:_MAX_NAME], pid=where.pid, machine=where.machine)
    return message


def _write_event(event: profile_pb2.ProfiledEvent, span: Span) -> None:
    event.name = span.name[:_MAX_NAME]
    event.kind = span.kind
    event.thread = span.thread
    event.begin = span.begin
    event.duration = max(span.end - span.begin, 0)
    event.failed = span.failed
    for shape in span.inputs or ():
        extents = event.inputs.add().extents
        extents.extend(_UNKNOWN_EXTENT if extent is None else extent for extent in shape)
    flops = flops_of(span)
    if flops is not None and 0 <= flops < 1 << 64:
        event.flops = flops
    if span.result_bytes is not None:
        event.result_bytes = span.result_bytes


def absorb_profile(place: Place, message: profile_pb2.Profile) -> None:
    """Add the events of a reply to the recorder, as children of ``place``, which has ended.

    Events beyond the recorder's limit are dropped. An event with a bad parent becomes a child of
    ``place``, one with a bad process gets the process "unknown": a malformed profile must not fail
    the call.
    """
    recorder, parent = place.recorder, place.span
    room = max(_room_of(recorder), 0) if recorder.is_running else 0
    kept = message.events[:room]
    recorder.drop(message.dropped + len(message.events) - len(kept))
    for visit in message.visits:
        recorder.visit(visit.operator, visit.key, visit.count)
    here = this_process()
    processes = [Process(each.name, each.pid, each.machine) for each in message.processes]
    shifts = _shifts(kept, processes, here.machine, parent)
    spans: list[Span] = []
    for event in kept:
        known = event.process < len(processes)
        process = processes[event.process] if known else Process("unknown", 0, "")
        inside = spans[event.parent - 1] if 0 < event.parent <= len(spans) else parent
        span = Span(event.name, event.kind, inside, event.thread)
        shift = shifts.get(process.machine, 0)
        span.begin = max(event.begin + shift, 0)
        span.end = span.begin + event.duration
        span.process = process
        if process.machine != here.machine:
            span.process = Process(f"{process.name} (clock adjusted)", process.pid, here.machine)
        if event.inputs:
            span.inputs = tuple(
                tuple(None if n == _UNKNOWN_EXTENT else n for n in shape.extents)
                for shape in event.inputs
            )
        span.flops = event.flops if event.HasField("flops") else None
        span.result_bytes = event.result_bytes if event.HasField("result_bytes") else None
        span.failed = event.failed
        spans.append(span)
    recorder.spans += spans


def _shifts(
    events: Sequence[profile_pb2.ProfiledEvent],
    processes: Sequence[Process],
    here: str,
    around: Span | None,
) -> dict[str, int]:
    """Return the clock shift for each other machine: see Note [Clocks of machines]."""
    extents: dict[str, tuple[int, int]] = {}
    for event in events:
        machine = processes[event.process].machine if event.process < len(processes) else ""
        if machine != here:
            end = event.begin + event.duration
            low, high = extents.get(machine, (event.begin, end))
            extents[machine] = min(low, event.begin), max(high, end)
    if around is None:
        return {}
    middle = around.begin + around.end
    return {machine: (middle - low - high) // 2 for machine, (low, high) in extents.items()}
