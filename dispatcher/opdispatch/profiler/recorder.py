"""Recording of events while calls run. Everything else is computed after the profile has ended.

Times are nanoseconds of ``CLOCK_MONOTONIC``, which all processes of a machine share.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from opdispatch.arrays import find_key_bits
from opdispatch.boxing.boxing import split_without_defaults
from opdispatch.dispatch.inspection import is_observed
from opdispatch.local_state.call_observer import CallObserver
from opdispatch.local_state.caller_frames import caller_lines
from opdispatch.local_state.trace_line import TraceLine, TraceSink
from opdispatch.modes.flop_counter import find_flop_formula, shapes_of
from opdispatch.profiler.result_memory import Owners, owners_of, result_bytes

if TYPE_CHECKING:
    from opdispatch.boxing.signature import Signature
    from opdispatch.local_state.operator import Operator

MAX_EVENTS = 1_000_000
"""Default maximum number of events in one profile."""
STACK_DEPTH = 16
"""Maximum number of source lines in an event's stack."""

Shapes = tuple[tuple[int | None, ...], ...]

now = time.monotonic_ns


@dataclass(frozen=True, slots=True)
class Process:
    """Process of an event. Processes with the same ``machine`` share one clock."""

    name: str
    pid: int
    machine: str


def _machine() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""


_MACHINE = _machine()


def this_process(name: str = "") -> Process:
    """Return the current process, named after its program by default."""
    return Process(name or Path(sys.argv[0] or "python").name, os.getpid(), _MACHINE)


class Span:
    """One recorded event, with its times and its parent. ``end`` is 0 while it is open."""

    __slots__ = (
        "begin",
        "end",
        "failed",
        "flop_inputs",
        "flops",
        "inputs",
        "kind",
        "name",
        "owners",
        "parent",
        "process",
        "result_bytes",
        "result_shape",
        "stack",
        "thread",
    )

    def __init__(self, name: str, kind: str, parent: Span | None, thread: int) -> None:
        self.name = name
        self.kind = kind
        self.parent = parent
        self.thread = thread
        self.process: Process | None = None  # this one
        self.inputs: Shapes | None = None
        self.flop_inputs: tuple[Sequence[Any], dict[str, Any]] | None = None
        self.result_shape: Any = None
        self.flops: int | None = None
        self.owners: Owners | None = None  # of the arguments' memory, until the call has ended
        self.result_bytes: int | None = None
        self.stack: tuple[str, ...] = ()
        self.failed = False
        self.end = 0
        self.begin = now()


class Recorder:
    """The recorded events of one profile.

    Guards ``_lock`` protects ``visits`` and ``dropped``. ``spans`` is append-only, and only the
    thread that began a span writes to it until it ends.
    """

    def __init__(
        self,
        *,
        record_shapes: bool,
        with_flops: bool,
        record_keys: bool,
        profile_memory: bool = False,
        with_stack: bool = False,
        max_events: int = MAX_EVENTS,
    ) -> None:
        self.record_shapes = record_shapes
        self.profile_memory = profile_memory
        self.with_stack = with_stack
        self.with_flops = with_flops
        self.record_keys = record_keys
        self.max_events = max_events
        self.spans: list[Span] = []
        self.visits: Counter[tuple[str, str]] = Counter()
        """Number of kernel visits by operator and key."""
        self.threads: dict[int, str] = {}
        self.dropped = 0
        """Number of events beyond the limit."""
        self.is_running = True
        self._lock = threading.Lock()

    def begin(self, name: str, kind: str, parent: Span | None) -> Span | None:
        """Begin an event now; return None if the limit of events is reached."""
        if not self.is_running:
            return None
        if len(self.spans) >= self.max_events:
            self.drop(1)
            return None
        thread = threading.get_native_id()
        if thread not in self.threads:
            self.threads[thread] = threading.current_thread().name
        span = Span(name, kind, parent, thread)
        self.spans.append(span)
        return span

    def drop(self, count: int) -> None:
        """Count events beyond the limit."""
        with self._lock:
            self.dropped += count

    def visit(self, operator: str, key: str, count: int = 1) -> None:
        """Count visits of a kernel by operator and key."""
        if self.is_running:
            with self._lock:
                self.visits[operator, key] += count

    def sink(self, outer: TraceSink | None) -> TraceSink:
        """Count the visits in the lines of a dispatch trace, and pass the lines on to ``outer``."""

        def emit(line: TraceLine) -> None:
            if type(line) is TraceLine:  # lines of other processes are of another class
                self.visit(line.operator, line.key)
            if outer is not None:
                outer.emit(replace(line, depth=outer.depth + line.depth))

        return TraceSink(emit, takes_remote=outer is not None and outer.takes_remote)

    def stop(self) -> None:
        """Stop recording; open events end now."""
        self.is_running = False
        end = now()
        for span in self.spans:
            if not span.end:
                span.end = max(end, span.begin)
                span.owners = None


class Place(CallObserver):
    """A task's current event in a recorder. ``outer`` is its place in an outer profile's
    recorder."""

    __slots__ = ("_begun", "_counts_flops", "_owns", "outer", "recorder", "span")

    def __init__(
        self,
        recorder: Recorder,
        span: Span | None = None,
        outer: CallObserver | None = None,
        *,
        begun: CallObserver | None = None,
        owns: bool = False,
        counts_flops: bool = True,
    ) -> None:
        self.recorder = recorder
        self.span = span
        self.outer = begun or outer
        self._begun = begun  # another observer, whose ``end`` is called, too
        self._owns = owns
        # Calls made by the kernel of a counted call are not counted again.
        self._counts_flops = counts_flops

    def begin_call(self, op: Operator, stack: Sequence[Any]) -> Place | None:
        """Implement ``CallObserver.begin_call``. Returns None for an operator that is not
        observed."""
        begun = self.outer.begin_call(op, stack) if self.outer is not None else None
        if is_observed(op):
            return self.begin_operator(op.name.name, op.call_signature, stack, begun)
        return self._within(None, begun) if begun is not None else None

    def begin_operator(
        self,
        name: str,
        signature: Signature,
        stack: Sequence[Any],
        begun: CallObserver | None = None,
    ) -> Place | None:
        """Begin an operator's call like ``begin_call``, known by its name and signature alone.

        ``begun`` is the observer that the outer one has begun.
        """
        span = self.recorder.begin(name, "operator", self.span)
        if span is None:
            return self._within(None, begun) if begun is not None else None
        counts_flops = self._counts_flops
        recorder = self.recorder
        if recorder.record_shapes:
            span.inputs = tuple(map(_shape_of, stack))
        if recorder.with_stack and _is_outermost(span):
            span.stack = caller_lines(STACK_DEPTH)
        if recorder.profile_memory:
            span.owners = owners_of(stack)
        if recorder.with_flops and counts_flops and find_flop_formula(name) is not None:
            args, kwargs = split_without_defaults(signature, stack)
            span.flop_inputs = shapes_of(list(args)), shapes_of(kwargs)
            counts_flops = False
        span.begin = now()  # last, so that the recording itself is not measured
        return self._within(span, begun, counts_flops=counts_flops)

    def begin_range(self, name: str, kind: str, inputs: Sequence[Any] = ()) -> Place:
        """See ``CallObserver``."""
        begun = self.outer.begin_range(name, kind, inputs) if self.outer is not None else None
        span = self.recorder.begin(name, kind, self.span)
        if span is not None and self.recorder.record_shapes:
            span.inputs = tuple(map(_shape_of, inputs))
        if span is not None and self.recorder.with_stack and kind == "rpc" and _is_outermost(span):
            span.stack = caller_lines(STACK_DEPTH)
        return self._within(span, begun, counts_flops=self._counts_flops)

    def end(self, result: Any, failed: bool) -> None:
        """See ``CallObserver``."""
        span = self.span
        if self._owns and span is not None and not span.end:
            span.end = now()
            span.failed = failed
            if span.flop_inputs is not None and not failed:
                span.result_shape = shapes_of(result)
            if span.owners is not None:
                owners, span.owners = span.owners, None
                if not failed:
                    span.result_bytes = result_bytes(result, owners)
        if self._begun is not None:
            self._begun.end(result, failed)

    def _within(
        self, span: Span | None, begun: CallObserver | None, *, counts_flops: bool = True
    ) -> Place:
        """Return the place within a new event, or the current place if the event is not kept."""
        if span is None:
            counts_flops = self._counts_flops
        return Place(
            self.recorder,
            span or self.span,
            self.outer,
            begun=begun,
            owns=span is not None,
            counts_flops=counts_flops,
        )


def _is_outermost(span: Span) -> bool:
    """Return whether the call is an outermost one, made by the program and not by a kernel."""
    around = span.parent
    while around is not None and around.kind not in ("operator", "rpc"):
        around = around.parent
    return around is None


def _shape_of(value: Any) -> tuple[int | None, ...]:
    """Return the shape of an argument; () for values other than tensors, as in PyTorch."""
    return () if find_key_bits(value) is None else tuple(getattr(value, "shape", ()))
