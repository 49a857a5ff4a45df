"""Facts of a daemon as text for Prometheus, and the thread that serves it."""

from __future__ import annotations

import asyncio
import http.client
import os
import threading
import unicodedata
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("prometheus_client", reason="opdispatch[http] is not installed")
pytest.importorskip("starlette", reason="opdispatch[http] is not installed")
pytest.importorskip("uvicorn", reason="opdispatch[http] is not installed")

from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics
from prometheus_client.parser import text_string_to_metric_families
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from opdispatch_server.access.authentication import Authentication
from opdispatch_server.daemon.interpreters.totals import InterpreterTotals
from opdispatch_server.daemon.monitoring.call_exposition import LABEL_LIMIT
from opdispatch_server.daemon.monitoring.exposition import Exposition
from opdispatch_server.daemon.monitoring.facts import DaemonReader, Facts, read_process
from opdispatch_server.daemon.monitoring.routes import make_app
from opdispatch_server.daemon.monitoring.server import HttpServer, bind_http, hosts_of, url_of
from opdispatch_server.daemon.monitoring.service import Monitoring
from opdispatch_server.metrics.call_counts import Series
from opdispatch_server.metrics.call_table import Counts, table_of
from opdispatch_server.serving.listeners import AddressInUseError
from opdispatch_wire.addresses import AddressError
from opdispatch_wire.errors import DaemonUnavailableError
from opdispatch_wire.v1 import interpreter_pb2
from opdispatch_wire.v1 import registry_pb2 as pb
from tests.waits import LONGEST_WAIT

NO_CALLS = Facts(
    interpreters=[],
    libraries=[],
    operators=0,
    epoch=0,
    waiters=0,
    is_ready=False,
    deaths={},
    changes={},
    calls=table_of({}),
    refusals={},
    clients={},
    library_metrics={},
    processes={},
)


def exposed(facts: Facts) -> dict[str, list[Any]]:
    pieces, content_type = Exposition(lambda: facts, compat="triton").scrape("")
    assert content_type.startswith("text/plain")
    text = b"".join(pieces).decode()
    return {f.name: f.samples for f in text_string_to_metric_families(text)}


@given(st.text(max_size=400))
def test_names_of_any_kind_make_labels_that_prometheus_reads(name: str):
    counts = Counts(ok=3, run_ns=7_000_000_000, run_buckets=(3,) + (0,) * 12)
    interpreter = pb.Interpreter(name="w", state="ready")
    facts = NO_CALLS._replace(
        calls=table_of({Series(name, "CPU", name, "1"): counts}), interpreters=[interpreter]
    )
    samples = exposed(facts)
    [ok] = [s for s in samples["opdispatch_calls"] if s.labels["outcome"] == "ok"]
    assert ok.value == 3
    assert len(ok.labels["operator"]) <= LABEL_LIMIT
    assert not any(unicodedata.category(c) == "Cc" for c in ok.labels["operator"])


def test_names_that_are_alike_when_they_are_cut_are_one_sample():
    calls = table_of({Series("\1" * (LABEL_LIMIT // 4) + end): Counts(ok=1) for end in "ab"})
    samples = exposed(NO_CALLS._replace(calls=calls))
    [ok] = [s for s in samples["opdispatch_calls"] if s.labels["outcome"] == "ok"]
    assert ok.value == 2
    assert len(samples["nv_inference_request_success"]) == 1


def test_buckets_add_up_and_time_is_in_seconds():
    counts = Counts(ok=2, failed=1, run_ns=1_500_000_000, run_buckets=(1, 1) + (0,) * 10 + (1,))
    samples = exposed(NO_CALLS._replace(calls=table_of({Series("a::b"): counts})))
    runs = samples["opdispatch_kernel_duration_seconds"]
    buckets = [s.value for s in runs if s.name.endswith("_bucket")]
    assert buckets == sorted(buckets)
    assert (buckets[0], buckets[-2], buckets[-1]) == (1, 2, 3)
    assert [s.value for s in runs if s.name.endswith("_sum")] == [1.5]
    assert samples["nv_inference_compute_infer_duration_us"][0].value == 1_500_000


@given(st.text(max_size=80), st.text(max_size=80))
def test_metrics_of_libraries_are_taken_only_with_names_that_can_be(name: str, value: str):
    series = [interpreter_pb2.LibrarySeries(values=[value], value=2)]
    found = [
        interpreter_pb2.LibraryMetric(name=each, is_counter=True, labels=["cache"], series=series)
        for each in ("hits", name)
    ]
    samples = exposed(NO_CALLS._replace(library_metrics={"w1": found, "w2": found[:1]}))
    hits = samples["opdispatch_library_hits"]
    assert {s.labels["interpreter"] for s in hits} == {"w1", "w2"}
    assert all(s.name == "opdispatch_library_hits_total" for s in hits)


@given(st.text(max_size=300), st.text(max_size=40))
def test_openmetrics_are_read_by_their_own_strict_parser(name: str, library: str):
    counts = Counts(
        ok=2,
        died=1,
        run_ns=1_500_000_000,
        run_buckets=(1, 1) + (0,) * 11,
        queue_buckets=(2,) + (0,) * 12,
    )
    facts = NO_CALLS._replace(calls=table_of({Series(name, "CPU", library, "1"): counts}))
    accept = "application/openmetrics-text; version=1.0.0"
    pieces, content_type = Exposition(lambda: facts).scrape(accept)
    assert content_type.startswith("application/openmetrics-text")
    families = {f.name: f for f in openmetrics(b"".join(pieces).decode())}
    calls = {s.labels["outcome"]: s.value for s in families["opdispatch_calls"].samples}
    assert calls == {"ok": 2, "error": 0, "died": 1}
    assert families["opdispatch_queue_duration_seconds"].type == "histogram"


@pytest.mark.parametrize("kind", ["application/openmetrics-text", "text/plain"])
@given(st.text(max_size=40))
def test_scrape_answers_any_accept_header(kind: str, version: str):
    pieces, content_type = Exposition(lambda: NO_CALLS).scrape(f"{kind}; version={version}")
    assert content_type.startswith(("text/plain", "application/openmetrics-text"))
    assert b"opdispatch_ready 0" in b"".join(pieces)


def test_every_reason_of_a_death_is_there_before_the_first_one():
    reasons = {s.labels["reason"] for s in exposed(NO_CALLS)["opdispatch_interpreter_deaths"]}
    assert reasons == {"crashed", "killed", "overdue", "locked", "silent", "unfit"}


def test_resources_of_a_process_are_read():
    use = read_process(os.getpid())
    assert use is not None
    assert use.cpu_seconds > 0
    assert use.resident_bytes > 1 << 20
    assert read_process(0) is None


@pytest.fixture
def stopped_reader() -> DaemonReader:
    """Return a reader of a daemon whose loop has ended."""
    loop = asyncio.new_event_loop()
    loop.close()
    missing: Any = None
    return DaemonReader(loop, missing, missing, missing, missing, InterpreterTotals(), dict)


def test_a_daemon_that_has_stopped_cannot_be_read(stopped_reader: DaemonReader):
    with pytest.raises(DaemonUnavailableError, match="has stopped"):
        stopped_reader.read()


def test_a_daemon_that_is_busy_is_not_waited_for_for_ever(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("opdispatch_server.daemon.monitoring.facts.STEP_TIMEOUT", 0.05)
    loop = asyncio.new_event_loop()
    is_free = threading.Event()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    loop.call_soon_threadsafe(is_free.wait, LONGEST_WAIT)
    missing: Any = None
    reader = DaemonReader(loop, missing, missing, missing, missing, InterpreterTotals(), dict)
    with pytest.raises(DaemonUnavailableError, match="has not answered"):
        reader.ask(lambda: 1)
    is_free.set()
    asyncio.run_coroutine_threadsafe(asyncio.sleep(0), loop).result(LONGEST_WAIT)
    loop.call_soon_threadsafe(loop.stop)
    thread.join(LONGEST_WAIT)
    loop.close()


def status_of(url: str, path: str) -> int:
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=LONGEST_WAIT)
    try:
        connection.request("GET", path)
        return connection.getresponse().status
    finally:
        connection.close()


def test_unreadable_facts_give_status_503(stopped_reader: DaemonReader, tmp_path: Path):
    missing: Any = None
    secret = tmp_path / "http-token"
    monitoring = Monitoring(stopped_reader, Authentication(), None, missing, secret)
    url = monitoring.start("127.0.0.1:0", insecure=False)
    try:
        for path in ("/metrics", "/livez", "/readyz"):
            assert status_of(url, path) == 503
    finally:
        monitoring.stop()
        monitoring.stop()


@pytest.fixture
def serving(stopped_reader: DaemonReader) -> Iterator[str]:
    listening = bind_http("127.0.0.1:0", insecure=False)
    server = HttpServer(listening)
    exposition = Exposition(lambda: NO_CALLS)
    hello = Route("/hello", lambda request: PlainTextResponse("hello"))
    identify = partial(Authentication().identify, "/opdispatch.v1.RegistryService/ListOperators")
    server.start(make_app(stopped_reader, exposition, identify, hosts_of(listening), [hello]))
    yield url_of(listening)
    server.stop()


def test_every_answer_forbids_scripts_of_its_own(serving: str):
    for path in ("/hello", "/metrics", "/nothing"):
        connection = http.client.HTTPConnection(urlsplit(serving).netloc, timeout=LONGEST_WAIT)
        connection.request("GET", path)
        policy = connection.getresponse().headers["content-security-policy"]
        connection.close()
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy


def test_a_taken_or_a_wrong_address_is_refused_by_name(serving: str):
    with pytest.raises(AddressInUseError, match="--http"):
        bind_http(urlsplit(serving).netloc, insecure=False)
    with pytest.raises(AddressError, match="HOST:PORT"):
        bind_http("unix:///tmp/page.sock", insecure=False)
    with pytest.raises(AddressError, match="other machines"):
        bind_http("0.0.0.0:0", insecure=False)
