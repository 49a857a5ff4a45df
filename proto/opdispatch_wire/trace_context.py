"""Distributed tracing: spans of calls, and the traceparent that links them across processes.

    caller      CallSpan.begin, ask     ->  CallRequest.traceparent
    daemon      begin_span, traceparent_of
    callee      KernelSpan

A process makes spans once its program has set an OpenTelemetry tracer provider; without one it
passes the received traceparent on. OpenTelemetry is never imported before that: code that sets a
provider has imported it.
"""

from __future__ import annotations

import importlib
import os
import re
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from opdispatch.local_state.trace_line import TraceLine, TraceSink

if TYPE_CHECKING:
    from opentelemetry.trace import Span

LONGEST: Final = 512
"""Longest traceparent that is parsed, in characters; version 00 has 55."""

MOST_EVENTS: Final = 128
"""Most kernels recorded as events of one span."""

LAST_SPANS_SECONDS: Final = 2.0
"""Longest wait of an exiting process for its last spans to be exported, in seconds."""

API: Final = "opentelemetry.trace"
"""The tracing API. A process that has not imported it makes no spans."""

_FORM = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?", re.DOTALL)
_SCOPE = "opdispatch"


class TraceParent(NamedTuple):
    """The ids of a parent span and its trace, with the trace flags."""

    trace_id: int
    span_id: int
    flags: int


def parse_traceparent(text: str) -> TraceParent | None:
    """Parse a W3C traceparent; return None if the text is not one."""
    found = _FORM.fullmatch(text) if len(text) <= LONGEST else None
    # Version 00 has no further parts, and ff is not a valid version.
    if found is None or found[1] == "ff" or (found[1] == "00" and found[5] is not None):
        return None
    parsed = TraceParent(int(found[2], 16), int(found[3], 16), int(found[4], 16))
    return parsed if parsed.trace_id and parsed.span_id else None


def trace_id_of(text: str) -> str:
    """Return the trace id of a traceparent in hex, as logs show it; empty if it is not one."""
    parent = parse_traceparent(text) if text else None
    return f"{parent.trace_id:032x}" if parent is not None else ""


def is_on() -> bool:
    """Return whether this process makes spans, which it does if it has a tracer provider."""
    find = getattr(sys.modules.get(API), "get_tracer_provider", None)
    if find is None:
        return False
    from opentelemetry.trace import ProxyTracerProvider

    return not isinstance(find(), ProxyTracerProvider)


def set_up(target: str, process: str) -> None:
    """Call the user's function ``MODULE:FUNCTION``, which sets a tracer provider.

    It gets ``process``, the name of this process, for the resource of its spans. Its exceptions
    propagate.
    """
    if (folder := os.getcwd()) not in sys.path:  # as for libraries that are modules
        sys.path.append(folder)
    module, _, function = target.partition(":")
    getattr(importlib.import_module(module), function)(process)


def shut_down() -> None:
    """Shut the provider down, which exports its spans. Blocks at most ``LAST_SPANS_SECONDS``."""
    if is_on():
        from opentelemetry.trace import get_tracer_provider

        if (end := getattr(get_tracer_provider(), "shutdown", None)) is not None:
            # In a thread, because exporters wait longer for a collector that is slow or gone.
            thread = threading.Thread(target=end, name="last-spans", daemon=True)
            thread.start()
            thread.join(LAST_SPANS_SECONDS)


def begin_span(
    name: str,
    kind: str,
    attributes: Mapping[str, str | int | float],
    parent: str | None = None,
    began: int | None = None,
) -> Span:
    """Begin a span. ``kind`` is the name of an ``opentelemetry.trace.SpanKind``.

    ``parent`` is a traceparent; an empty or malformed one begins a new trace, and None stands for
    the current span of this task. ``began`` is a start time as of ``time.time_ns``.
    """
    from opentelemetry import context, trace

    within = (
        None if parent is None else trace.set_span_in_context(_remote(parent), context.Context())
    )
    return trace.get_tracer(_SCOPE).start_span(
        name,
        within,
        kind=trace.SpanKind[kind],
        attributes={"rpc.system": "opdispatch", **attributes},
        start_time=began,
    )


def end_span(span: Span, *, failed: bool = False) -> None:
    """End a span, with the status ERROR if it ``failed``."""
    from opentelemetry.trace import Status, StatusCode

    if failed:
        span.set_status(Status(StatusCode.ERROR))
    span.end()


def traceparent_of(span: Span) -> str:
    """Return the traceparent to send with the calls that a span makes."""
    context = span.get_span_context()
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{int(context.trace_flags):02x}"


def _remote(parent: str) -> Span:
    from opentelemetry import trace

    parsed = parse_traceparent(parent)
    if parsed is None:
        return trace.INVALID_SPAN
    return trace.NonRecordingSpan(
        trace.SpanContext(parsed.trace_id, parsed.span_id, True, trace.TraceFlags(parsed.flags & 1))
    )


class KernelSpan:
    """The spans of one call in an interpreter: the run of its kernel, and its wait if it waited.

    It is the current span while the kernel runs. Begin and end it in the same thread.
    """

    __slots__ = ("_own_token", "_span", "_token", "events")

    def __init__(
        self, operator: str, parent: str, queue_ns: int, attributes: Mapping[str, str | int | float]
    ) -> None:
        from opentelemetry import context, trace

        about = {"opdispatch.operator": operator, **attributes}
        if queue_ns:
            began = time.time_ns() - queue_ns
            begin_span(f"queue {operator}", "INTERNAL", about, parent, began).end()
        self._span = begin_span(f"kernel {operator}", "SERVER", about, parent)
        self._token = context.attach(trace.set_span_in_context(self._span))
        self._own_token = _KERNEL.set(self)
        self.events = 0

    @property
    def traceparent(self) -> str:
        """The traceparent to send with calls that the kernel makes."""
        return traceparent_of(self._span)

    @property
    def is_recording(self) -> bool:
        """Whether the sampler has chosen to record the span."""
        return self._span.is_recording()

    def take(self, line: TraceLine) -> None:
        """Record a visited kernel as an event of the span; at most MOST_EVENTS are recorded."""
        self.events += 1
        if self.events <= MOST_EVENTS:
            attributes: dict[str, Any] = {
                "opdispatch.operator": line.operator,
                "opdispatch.key": line.key,
                "opdispatch.kernel": line.kernel,
                "opdispatch.depth": line.depth,
            }
            self._span.add_event(line.kind, attributes)

    def end(self, *, failed: bool) -> None:
        """End the span of the run, and restore the task's span before it."""
        from opentelemetry import context

        _KERNEL.reset(self._own_token)
        context.detach(self._token)
        end_span(self._span, failed=failed)


_KERNEL: ContextVar[KernelSpan | None] = ContextVar("opdispatch_kernel_span", default=None)


def kernel_sink() -> TraceSink | None:
    """Return the sink that records visited kernels in this task's span; None without one."""
    span = _KERNEL.get()
    if span is None or not span.is_recording:
        return None
    return TraceSink(span.take, 1, takes_remote=False)


@contextmanager
def traced_run(
    operator: str, parent: str, queue_ns: int, attributes: Mapping[str, str | int | float]
) -> Iterator[str]:
    """Run a block, in which a kernel serves a call, in a span with that ``parent``.

    Yields the traceparent to send with calls that the kernel makes: without a tracer provider, that
    of the call itself.
    """
    if not is_on():
        yield parent if parse_traceparent(parent) is not None else ""
        return
    span, failed = KernelSpan(operator, parent, queue_ns, attributes), True
    try:
        yield span.traceparent
        failed = False
    finally:
        span.end(failed=failed)
