"""One trace over a client, a daemon and two interpreters, and the log records that name it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import grpc
import pytest

from opdispatch_wire.calls import call_request
from opdispatch_wire.v1 import execution_pb2_grpc
from tests.service.conftest import StartDaemon, WriteLibrary
from tests.service.running_daemon import RunningDaemon, wait_for
from tests.waits import LONGEST_WAIT

pytest.importorskip("opentelemetry.sdk", reason="opentelemetry-sdk is not installed")

# Every process writes its spans to a file of its own, one a line.
SETUP = """\
import os
from opentelemetry import trace
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult


class Lines(SpanExporter):
    def export(self, spans):
        with open(os.path.join({folder!r}, f"{{os.getpid()}}.spans"), "a") as file:
            for span in spans:
                file.write(span.to_json(indent=None) + "\\n")
        return SpanExportResult.SUCCESS


def start(name):
    provider = TracerProvider(resource=Resource({{"service.name": name}}))
    provider.add_span_processor(SimpleSpanProcessor(Lines()))
    trace.set_tracer_provider(provider)
"""
CLIENT = """\
import json, sys
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
import opdispatch_client

exporter = InMemorySpanExporter()
provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(exporter))
trace.set_tracer_provider(provider)
with opdispatch_client.connect(sys.argv[1], direct=sys.argv[2] == "direct") as session:
    with trace.get_tracer("test").start_as_current_span("the user's"):
        for _ in range(3):
            session.ops.outer.run(1.0)
    with trace.get_tracer("test").start_as_current_span("the user's program"):
        with session.program() as program:
            handle = program.call("outer::run", 1.0)
    try:
        session.ops.inner.fail(1.0)
    except Exception:
        pass
for span in exporter.get_finished_spans():
    print(span.to_json(indent=None))
"""
OUTER = """\
from opdispatch import Library, ops

lib = Library("outer", "DEF")
lib.define("run(float x) -> float")
lib.define("local(float x) -> float")
lib.impl("local", lambda x: x + 1, "CompositeExplicitAutograd")
lib.impl("run", lambda x: ops.inner.step(ops.outer.local(x)), "CompositeExplicitAutograd")
"""
INNER = """\
import time
from opdispatch import Library

lib = Library("inner", "DEF")
lib.define("step(float x) -> float")
lib.define("fail(float x) -> float")
lib.define("rest(float seconds) -> float")


def fail(x):
    raise ValueError("no")


def rest(seconds):
    time.sleep(seconds)
    return seconds


lib.impl("step", lambda x: 2 * x, "CompositeExplicitAutograd")
lib.impl("fail", fail, "CompositeExplicitAutograd")
lib.impl("rest", rest, "CompositeExplicitAutograd")
"""


def spans_in(folder: Path) -> list[dict[str, Any]]:
    return [
        json.loads(line)
        for path in folder.glob("*.spans")
        for line in path.read_text().splitlines()
    ]


def load_both(daemon: RunningDaemon, write_library: WriteLibrary) -> None:
    with daemon.connect() as session:
        first, second = sorted(each.name for each in session.interpreters())
        session.load(str(write_library("inner", INNER)), on=second)
        session.load(str(write_library("outer", OUTER)), on=first)


@pytest.mark.parametrize("way", ["direct", "through the daemon"])
def test_one_trace_spans_client_daemon_and_two_interpreters(
    way: str, start_daemon: StartDaemon, write_library: WriteLibrary, tmp_path: Path
):
    (tmp_path / "traces_of_test.py").write_text(SETUP.format(folder=str(tmp_path)))
    daemon = start_daemon("--tracing", "traces_of_test:start", workers=2)
    daemon.expects_errors = True
    load_both(daemon, write_library)
    output = subprocess.run(
        [sys.executable, "-c", CLIENT, daemon.address, way],
        check=True,
        capture_output=True,
        text=True,
        timeout=LONGEST_WAIT,
    ).stdout
    client = [json.loads(line) for line in output.splitlines()]
    [user] = [s for s in client if s["name"] == "the user's"]
    trace = user["context"]["trace_id"]
    everywhere = {s["context"]["span_id"]: s for s in [*client, *spans_in(tmp_path)]}

    def line_of(span: dict[str, Any]) -> list[str]:
        """Return the names from the root to a span."""
        above = everywhere.get(span["parent_id"])
        return [*(line_of(above) if above else ()), span["name"]]

    inner = [s for s in everywhere.values() if s["name"] == "kernel inner::step"]
    mine = [s for s in inner if s["context"]["trace_id"] == trace]
    assert len(mine) == 3
    for span in mine:
        names = line_of(span)
        assert names[0] == "the user's"
        assert names[1] == "call outer::run"
        assert names[-4:] == [
            "kernel outer::run",
            "call inner::step",
            "queue inner::step",
            "kernel inner::step",
        ]
    services = {s["resource"]["attributes"]["service.name"] for s in spans_in(tmp_path)}
    assert services == {"opdispatch daemon", "opdispatch worker-1", "opdispatch worker-2"}
    [*_, outer] = [
        s
        for s in everywhere.values()
        if s["name"] == "kernel outer::run" and s["context"]["trace_id"] == trace
    ]
    assert outer["attributes"]["opdispatch.library"] == "outer"
    assert "outer::local" in {e["attributes"]["opdispatch.operator"] for e in outer["events"]}
    [failed] = [s for s in everywhere.values() if s["name"] == "kernel inner::fail"]
    assert failed["status"]["status_code"] == "ERROR"
    [logged] = [r for r in daemon.log_records() if r.get("event") == "kernel_error"]
    assert f"0x{logged['trace']}" == failed["context"]["trace_id"]
    [program] = [s for s in client if s["name"] == "the user's program"]
    steps = [s for s in inner if s["context"]["trace_id"] == program["context"]["trace_id"]]
    assert [line_of(s)[0] for s in steps] == ["the user's program"]


def test_slow_calls_are_logged_with_their_times_and_trace(
    start_daemon: StartDaemon, write_library: WriteLibrary
):
    daemon = start_daemon("--slow-call", "0.05", workers=2)
    load_both(daemon, write_library)
    trace = "0af7651916cd43dd8448eb211c80319c"
    with daemon.connect() as session:
        session.ops.inner.step(1.0)
        with_trace = call_request("inner::rest", [0.1], {})
        with_trace.traceparent = f"00-{trace}-b7ad6b7169203331-01"
        with grpc.insecure_channel(daemon.address) as channel:
            execution_pb2_grpc.ExecutionServiceStub(channel).Call(  # type: ignore[no-untyped-call]
                with_trace, timeout=LONGEST_WAIT
            )
        assert wait_for(lambda: any(r.get("event") == "slow_call" for r in daemon.log_records()))
    [record] = [r for r in daemon.log_records() if r.get("event") == "slow_call"]
    assert (record["operator"], record["library"]) == ("inner::rest", "inner")
    assert record["kernel_seconds"] >= 0.1
    assert record["queue_seconds"] >= 0
    assert record["trace"] == trace


def test_a_malformed_traceparent_does_no_harm(
    start_daemon: StartDaemon, write_library: WriteLibrary
):
    daemon = start_daemon("--slow-call", "0.000001", workers=2)
    load_both(daemon, write_library)
    with grpc.insecure_channel(daemon.address) as channel:
        stub = execution_pb2_grpc.ExecutionServiceStub(channel)  # type: ignore[no-untyped-call]
        for text in ("\n{}", "00-" + "f" * 100_000):
            request = call_request("outer::run", [1.0], {})
            request.traceparent = text
            assert stub.Call(request, timeout=LONGEST_WAIT).returns[0].floating == 4.0
    assert not any("trace" in record for record in daemon.log_records())


def test_a_setup_that_fails_is_said_at_the_start(start_daemon: StartDaemon):
    with pytest.raises(RuntimeError, match="--tracing no_such_module:start raised"):
        start_daemon("--tracing", "no_such_module:start", workers=1)
