"""The traceparent of calls, well formed or not, in a process that makes no spans."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opdispatch_wire import trace_context
from opdispatch_wire.profiles import CallSpan
from opdispatch_wire.trace_context import (
    LONGEST,
    TraceParent,
    is_on,
    kernel_sink,
    parse_traceparent,
    trace_id_of,
    traced_run,
)
from tests.waits import LONGEST_WAIT

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
GOOD = f"00-{TRACE}-{SPAN}-01"


def test_a_traceparent_is_read():
    assert parse_traceparent(GOOD) == TraceParent(int(TRACE, 16), int(SPAN, 16), 1)
    assert parse_traceparent(f"cc-{TRACE}-{SPAN}-00-what-comes-later") is not None
    assert trace_id_of(GOOD) == TRACE


@pytest.mark.parametrize(
    "text",
    [
        "",
        "00",
        GOOD.upper(),
        GOOD + "\n",
        GOOD + "-more",
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        GOOD.replace("a", "٣"),
        f"01-{TRACE}-{SPAN}-01-" + "x" * LONGEST,
        "0" * 10_000_000,
    ],
)
def test_malformed_traceparent_is_ignored(text: str):
    assert parse_traceparent(text) is None
    assert trace_id_of(text) == ""
    with traced_run("a::b", text, 0, {}) as passed_on:
        assert passed_on == ""


@given(st.text(max_size=80))
def test_any_text_can_be_looked_at(text: str):
    found = parse_traceparent(text)
    assert found is None or (found.trace_id and found.span_id)


def test_a_process_without_a_provider_passes_the_traceparent_on():
    assert not is_on()
    assert CallSpan.begin("a::b") is None
    assert kernel_sink() is None
    with traced_run("a::b", GOOD, 5, {}) as passed_on:
        assert passed_on == GOOD


def test_a_process_that_ends_waits_only_so_long_for_its_last_spans(
    monkeypatch: pytest.MonkeyPatch,
):
    may_end, is_asked = threading.Event(), threading.Event()

    class Provider:
        def shutdown(self) -> None:
            is_asked.set()
            may_end.wait(LONGEST_WAIT)

    monkeypatch.setattr("opentelemetry.trace.get_tracer_provider", Provider)
    monkeypatch.setattr(trace_context, "is_on", lambda: True)
    monkeypatch.setattr(trace_context, "LAST_SPANS_SECONDS", 0.01)
    trace_context.shut_down()
    assert is_asked.wait(LONGEST_WAIT)
    may_end.set()


def test_opentelemetry_is_not_imported_without_a_provider():
    source = (
        "import sys, opdispatch_client, opdispatch_wire.profiles\n"
        "from opdispatch_wire import trace_context as t\n"
        "assert not t.is_on()\n"
        "t.shut_down()\n"
        "print([name for name in sys.modules if name.startswith('opentelemetry')])\n"
    )
    output = subprocess.run(
        [sys.executable, "-c", source],
        check=True,
        capture_output=True,
        text=True,
        timeout=LONGEST_WAIT,
    ).stdout
    assert output.strip() == "[]"
