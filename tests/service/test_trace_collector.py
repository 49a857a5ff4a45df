"""Spans of four processes at a collector, sent by OTLP as docs/monitoring.md says."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from opdispatch_wire import trace_context
from tests.service.conftest import StartDaemon, WriteLibrary
from tests.service.running_daemon import RunningDaemon, wait_for
from tests.service.test_distributed_traces import load_both
from tests.waits import LONGEST_WAIT

pytest.importorskip(
    "opentelemetry.exporter.otlp.proto.grpc",
    reason="opentelemetry-exporter-otlp-proto-grpc is not installed",
)

from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc

PAGE = Path(__file__).parents[2] / "docs" / "monitoring.md"
[SETUP] = [
    block
    for block in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    if "TracerProvider" in block
]
CLIENT = """\
import sys
from opentelemetry import trace
import my_traces
import opdispatch_client

my_traces.start("the client")
with opdispatch_client.connect(sys.argv[1], direct=sys.argv[2] == "direct") as session:
    with trace.get_tracer("test").start_as_current_span("the user's"):
        for _ in range(3):  # the first one asks the daemon for its route
            session.ops.outer.run(1.0)
trace.get_tracer_provider().shutdown()
"""


class Collector(trace_service_pb2_grpc.TraceServiceServicer):
    """Receives spans, by service name; while it is ``held``, it takes none."""

    def __init__(self) -> None:
        self.spans: list[tuple[str, Any]] = []
        self.is_free = threading.Event()
        self.is_free.set()
        self.asked = threading.Event()

    def Export(  # noqa: N802 (the name that gRPC has)
        self, request: trace_service_pb2.ExportTraceServiceRequest, context: grpc.ServicerContext
    ) -> trace_service_pb2.ExportTraceServiceResponse:
        """Take spans in."""
        self.asked.set()
        self.is_free.wait(LONGEST_WAIT)
        for resource_spans in request.resource_spans:
            about = {a.key: a.value.string_value for a in resource_spans.resource.attributes}
            for scope in resource_spans.scope_spans:
                self.spans += [(about["service.name"], span) for span in scope.spans]
        return trace_service_pb2.ExportTraceServiceResponse()


@contextmanager
def serving(collector: Collector) -> Iterator[dict[str, str]]:
    """Serve it; yield the variables by which exporters find it."""
    server = grpc.server(ThreadPoolExecutor(8))
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(collector, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield exporting_to(port)
    finally:
        collector.is_free.set()
        server.stop(None).wait(LONGEST_WAIT)


def exporting_to(port: int) -> dict[str, str]:
    return {
        "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{port}",
        "OTEL_BSP_SCHEDULE_DELAY": "100",
        "OTEL_RESOURCE_ATTRIBUTES": "deployment.environment.name=test",
    }


def start(
    start_daemon: StartDaemon, folder: Path, variables: dict[str, str], **settings: Any
) -> RunningDaemon:
    (folder / "my_traces.py").write_text(SETUP)
    # Importing an exporter may keep an interpreter from its heartbeats for a second.
    options = ("--tracing", "my_traces:start", "--heartbeat", "2")
    return start_daemon(*options, workers=2, environment=variables, **settings)


@pytest.mark.parametrize("way", ["direct", "through the daemon"])
def test_a_collector_sees_one_call_across_four_processes(
    way: str, start_daemon: StartDaemon, write_library: WriteLibrary, tmp_path: Path
):
    collector = Collector()
    with serving(collector) as variables:
        daemon = start(start_daemon, tmp_path, variables)
        load_both(daemon, write_library)
        subprocess.run(
            [sys.executable, "-c", CLIENT, daemon.address, way],
            check=True,
            cwd=tmp_path,
            env={"PYTHONPATH": str(tmp_path), **variables},
            timeout=LONGEST_WAIT,
        )
        assert daemon.stop() == 0, "what is left is sent at the end"
    [root] = [span for _, span in collector.spans if span.name == "the user's"]
    here = {
        span.span_id: (service, span)
        for service, span in collector.spans
        if span.trace_id == root.trace_id
    }

    def line_of(span: Any) -> list[tuple[str, str]]:
        """Return services and names from the root to a span."""
        service, _ = here[span.span_id]
        above = line_of(here[span.parent_span_id][1]) if span.parent_span_id else []
        return [*above, (service, span.name)]

    kernels = [span for _, span in here.values() if span.name == "kernel inner::step"]
    assert len(kernels) == 3
    last = max(kernels, key=lambda span: span.start_time_unix_nano)
    expected = [
        ("the client", "the user's"),
        ("the client", "call outer::run"),
        ("opdispatch daemon", "queue outer::run"),
        ("opdispatch worker-1", "kernel outer::run"),
        ("opdispatch worker-1", "call inner::step"),
        ("opdispatch daemon", "queue inner::step"),
        ("opdispatch worker-2", "kernel inner::step"),
    ]
    if way == "direct":
        del expected[2]
    assert line_of(last) == expected
    for service, span in here.values():
        assert span.start_time_unix_nano <= span.end_time_unix_nano, (service, span.name)
    about = {a.key: a.value.string_value for a in last.attributes}
    assert (about["opdispatch.library"], about["opdispatch.interpreter"]) == ("inner", "worker-2")


@pytest.mark.parametrize("collector_is", ["slow", "gone"])
def test_a_collector_that_is_slow_or_gone_holds_up_no_call(
    collector_is: str, start_daemon: StartDaemon, write_library: WriteLibrary, tmp_path: Path
):
    collector = Collector()
    with serving(collector) as variables:
        if collector_is == "slow":
            collector.is_free.clear()
        else:
            variables = exporting_to(9)  # discard: nothing listens there
        constants = {f"{trace_context.__name__}.LAST_SPANS_SECONDS": 0.2}
        daemon = start(start_daemon, tmp_path, variables, constants=constants)
        daemon.expects_errors = True  # what exporters log of it is theirs to say
        load_both(daemon, write_library)
        with daemon.connect() as session:
            session.ops.outer.run(1.0)
            if collector_is == "slow":
                assert wait_for(collector.asked.is_set)
            for _ in range(100):
                assert session.ops.outer.run(1.0) == 4.0
        assert daemon.stop() == 0
