"""Traces the kernels that calls visit: ``with capture_dispatch_trace() as lines: ...``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from opdispatch.local_state.local_dispatch_key_set import LocalStateGuard
from opdispatch.local_state.trace_line import TraceLine, TraceSink, print_line


@contextmanager
def capture_dispatch_trace() -> Iterator[list[TraceLine]]:
    """Collect the kernels that calls in the ``with`` block visit, in order of entry."""
    lines: list[TraceLine] = []
    with LocalStateGuard(trace=TraceSink(lines.append)):
        yield lines


@contextmanager
def show_dispatch_trace() -> Iterator[None]:
    """Print the kernels that calls in the ``with`` block visit to stderr."""
    with LocalStateGuard(trace=TraceSink(print_line)):
        yield
