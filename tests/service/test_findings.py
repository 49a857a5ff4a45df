"""Five things that go wrong, found by page, metrics and logs alone, as docs/monitoring.md says."""

from __future__ import annotations

import os
from typing import Any
from urllib.parse import quote

import grpc
import numpy as np
import pytest

from opdispatch_wire.calls import call_request
from opdispatch_wire.errors import InterpreterDiedError
from opdispatch_wire.v1 import execution_pb2_grpc
from tests.service.conftest import StartDaemon, WriteLibrary
from tests.service.running_daemon import RunningDaemon, wait_for
from tests.waits import LONGEST_WAIT

pytest.importorskip("prometheus_client", reason="opdispatch[http] is not installed")
pytest.importorskip("starlette", reason="opdispatch[http] is not installed")
pytest.importorskip("uvicorn", reason="opdispatch[http] is not installed")

from tests.service.scrapes import scrape, total
from tests.service.test_metrics import KILLER
from tests.service.test_page import event_stream, get_json, latest_state

TRACE = "0af7651916cd43dd8448eb211c80319c"


def step(name: str, body: str) -> str:
    return (
        "import time\nfrom opdispatch import Library, ops\n"
        f'lib = Library("{name}", "DEF")\nlib.define("run(float x) -> float")\n'
        f"def run(x):\n    {body}\n    return x\n"
        'lib.impl("run", run, "CompositeExplicitAutograd")\n'
    )


def start(start_daemon: StartDaemon, *options: str, workers: int = 1) -> RunningDaemon:
    daemon = start_daemon("--http", "127.0.0.1:0", "--heartbeat", "0.1", *options, workers=workers)
    daemon.expects_errors = True
    return daemon


def test_a_slow_call_and_which_of_its_nested_kernels_is_to_blame(
    start_daemon: StartDaemon, write_library: WriteLibrary
):
    daemon = start(start_daemon, "--slow-call", "0.1", workers=3)
    bodies = {"third": "pass", "second": "time.sleep(0.3)", "first": "ops.second.run(x)"}
    bodies["first"] += "; ops.third.run(x)"
    with daemon.connect() as session:
        interpreters = sorted(each.name for each in session.interpreters())
        for (name, body), interpreter in zip(bodies.items(), interpreters, strict=True):
            session.load(str(write_library(name, step(name, body))), on=interpreter)
    request = call_request("first::run", [1.0], {})
    request.traceparent = f"00-{TRACE}-b7ad6b7169203331-01"
    with grpc.insecure_channel(daemon.address) as channel:
        stub = execution_pb2_grpc.ExecutionServiceStub(channel)  # type: ignore[no-untyped-call]
        stub.Call(request, timeout=LONGEST_WAIT)

    def slow() -> dict[str, Any]:
        records = [r for r in daemon.log_records() if r.get("event") == "slow_call"]
        return {r["operator"]: r for r in records if r["trace"] == TRACE}

    assert wait_for(lambda: len(slow()) == 2)
    found = slow()
    assert set(found) == {"first::run", "second::run"}, "the third was quick"
    own = {name: r["kernel_seconds"] - r["nested_seconds"] for name, r in found.items()}
    assert max(own, key=lambda name: own[name]) == "second::run"
    assert found["first::run"]["nested_seconds"] >= 0.3
    assert found["second::run"]["nested_seconds"] == 0
    assert own["second::run"] > found["second::run"]["queue_seconds"]


def test_a_library_that_crashes_its_interpreter(
    start_daemon: StartDaemon, write_library: WriteLibrary
):
    daemon = start(start_daemon, workers=2)
    with daemon.connect() as session:
        session.load(str(write_library("killer", KILLER)))
        with pytest.raises(InterpreterDiedError):
            session.ops.killer.die_(np.zeros(2))
    died = {"operator": "killer::die_", "library": "killer", "version": "1", "outcome": "died"}
    assert wait_for(lambda: total(scrape(daemon.url), "opdispatch_calls_total", **died) == 1)
    with event_stream(daemon.url) as events:
        state = latest_state(events, lambda state: state["deaths"])
    [_, cause, _, _, running] = state["deaths"][0]
    assert (cause, running) == ("killed", ["killer::die_"])


def test_a_client_that_floods(start_daemon: StartDaemon, write_library: WriteLibrary):
    daemon = start(start_daemon)
    with daemon.connect() as session, event_stream(daemon.url) as events:
        session.load(str(write_library("quick", step("quick", "pass"))))

        def is_seen(state: Any) -> bool:
            for _ in range(50):
                session.ops.quick.run(1.0)
            return bool(state["clients"])

        state = latest_state(events, is_seen)
    name, rate = state["clients"][0]
    assert name.endswith(f"[{os.getpid()}]")
    assert rate > 0


def test_a_replacement_that_takes_longer(start_daemon: StartDaemon, write_library: WriteLibrary):
    daemon = start(start_daemon)
    with daemon.connect() as session:
        for seconds in (0.0, 0.1):
            session.load(str(write_library("quick", step("quick", f"time.sleep({seconds})"))))
            session.ops.quick.run(1.0)
    about = get_json(daemon.url, "/api/operator?name=" + quote("quick::run"))
    means = {version: run for _, _, version, _, _, _, run, _ in about["calls"]}
    assert means["2"] >= 0.1 > means["1"]
    samples = scrape(daemon.url)
    took = {
        version: total(samples, "opdispatch_kernel_duration_seconds_sum", version=version)
        for version in ("1", "2")
    }
    assert took["2"] > 2 * took["1"]
    events = [(r["event"], r.get("version")) for r in daemon.log_records() if "event" in r]
    assert ("library_replaced", 2) in events


def test_a_key_that_fell_back_to_a_composite_kernel(
    start_daemon: StartDaemon, write_library: WriteLibrary
):
    daemon = start(start_daemon)
    composite = (
        'from opdispatch import Library\nlib = Library("paint", "DEF")\n'
        'lib.define("f(Tensor x) -> Tensor")\n'
        'lib.impl("f", lambda x: x, "CompositeImplicitAutograd")\n'
    )
    fast = (
        'from opdispatch import Library\nlib = Library("paint", "IMPL")\n'
        'lib.impl("f", lambda x: x, "CPU")\n'
    )

    def cell() -> str:
        found = get_json(daemon.url, "/api/cells?operator=paint::f")
        return str(found["paint::f"]["CPU"][0])

    with daemon.connect() as session:
        session.load(str(write_library("paint", composite)))
        session.load(str(write_library("fast", fast)))
        session.ops.paint.f(np.ones(1))
        assert cell() == "exact"
        session.unload("fast")
        session.ops.paint.f(np.ones(1))
        assert cell() == "composite"
    samples = scrape(daemon.url)
    for key in ("CPU", "CompositeImplicitAutograd"):
        assert total(samples, "opdispatch_calls_total", operator="paint::f", key=key) == 1
    unloaded = [r for r in daemon.log_records() if r.get("event") == "library_unloaded"]
    assert [r["library"] for r in unloaded] == ["fast"]
