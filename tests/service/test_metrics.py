"""Metrics of a daemon for Prometheus, compared with its clients' counts."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pytest

import opdispatch_client as oc
from opdispatch.errors import OpdispatchError
from opdispatch_wire.errors import InterpreterDiedError, KernelError
from tests.service.conftest import StartDaemon, WriteLibrary
from tests.service.running_daemon import RunningDaemon, wait_for
from tests.service.scrapes import scrape, total
from tests.waits import LONGEST_WAIT

LANES: tuple[dict[str, Any], ...] = (
    {},
    {"lane": "local", "direct": False},
    {"lane": "stream"},
    {"lane": "stream", "direct": False},
    {"lane": "grpc", "direct": False},
)
CALLS = 10_000
THREADS = 4

BANK = """\
from opdispatch import Library

max_concurrency = 2
lib = Library("bank", "DEF")
lib.define("quote(float x) -> float")
lib.define("relay(float x) -> float")


def quote(x):
    if x < 0:
        raise ValueError("no such quote")
    return 2 * x


lib.impl("quote", quote, "CompositeExplicitAutograd")
"""
KILLER = """\
import os, signal
from opdispatch import Library

lib = Library("killer", "DEF")
lib.define("die_(Tensor(a!) self) -> Tensor(a!)")
lib.impl("die_", lambda self: os.kill(os.getpid(), signal.SIGKILL), "CPU")
"""


@pytest.fixture
def watched(start_daemon: StartDaemon) -> RunningDaemon:
    return start_daemon("--http", "127.0.0.1:0", workers=2)


def call_often(session: oc.Session, calls: int) -> Counter[str]:
    """Call in several threads; every tenth call fails."""
    quote = session.ops.bank.quote

    def call(thread: int) -> Counter[str]:
        seen: Counter[str] = Counter()
        for n in range(thread, calls, THREADS):
            try:
                quote(-1.0 if n % 10 == 0 else 1.0)
                seen["ok"] += 1
            except KernelError:
                seen["error"] += 1
        return seen

    with ThreadPoolExecutor(THREADS) as pool:
        return sum(pool.map(call, range(THREADS)), Counter())


@pytest.mark.slow
def test_scrape_equals_the_clients_count_on_all_lanes_with_kills(
    start_daemon: StartDaemon, write_library: WriteLibrary, tmp_path: Any
):
    listen = [f"unix://{tmp_path}/daemon.sock", "127.0.0.1:0"]
    daemon = start_daemon("--http", "127.0.0.1:0", workers=2, listen=listen)
    daemon.expects_errors = True
    seen: Counter[str] = Counter()
    died = 0
    with daemon.connect() as session:
        session.load(str(write_library("bank", BANK)))
        session.load(str(write_library("killer", KILLER)))
        for number, options in enumerate(LANES):
            address = daemon.addresses[1] if options.get("lane") == "stream" else daemon.address
            with oc.connect(address, **options) as caller:
                seen += call_often(caller, CALLS // len(LANES))
                if number % 2:  # from outside, while nothing runs
                    holder = session.libraries()[0].interpreters[0]
                    [victim] = [i for i in session.interpreters() if i.name == holder]
                    os.kill(victim.pid, signal.SIGKILL)
                else:
                    with pytest.raises(InterpreterDiedError):
                        caller.ops.killer.die_(np.zeros(2))
                    died += 1
        seen += call_often(session, 10)
        samples = scrape(daemon.url)
    calls = {
        outcome: total(samples, "opdispatch_calls_total", operator="bank::quote", outcome=outcome)
        for outcome in ("ok", "error", "died")
    }
    assert calls == {"ok": seen["ok"], "error": seen["error"], "died": 0}
    assert total(samples, "opdispatch_calls_total", operator="killer::die_", outcome="died") == died
    runs = total(samples, "opdispatch_kernel_duration_seconds_count", operator="bank::quote")
    assert runs == CALLS + 10
    assert total(samples, "opdispatch_interpreter_deaths_total") == len(LANES)


def test_metrics_tell_of_interpreters_libraries_and_failures(
    watched: RunningDaemon, write_library: WriteLibrary
):
    watched.expects_errors = True
    with watched.connect() as session:
        session.load(str(write_library("bank", BANK)))
        with pytest.raises(OpdispatchError):
            session.load(str(write_library("broken", "import nothing_like_it")))
        with pytest.raises(OpdispatchError):
            session.ops.bank.missing(1.0)
        session.ops.bank.quote(1.0)
        samples = scrape(watched.url)
    assert total(samples, "opdispatch_interpreters", state="ready") == 2
    assert total(samples, "opdispatch_library_changes_total", change="loaded") == 1
    assert total(samples, "opdispatch_library_changes_total", change="load_failed") == 1
    assert total(samples, "opdispatch_libraries", state="active") == 1
    assert total(samples, "opdispatch_operators") == 2
    assert total(samples, "opdispatch_calls_total", library="bank", version="1", outcome="ok") == 1
    assert len(samples["opdispatch_interpreter_resident_bytes"]) == 2
    assert min(samples["opdispatch_interpreter_resident_bytes"].values()) > 1e6


MOVER = """\
from opdispatch import Library, Tensor

lib = Library("mover", "DEF")
lib.define("both(Tensor x, float by, *, Tensor? y=None) -> (Tensor, Tensor)")
lib.define("join(Tensor[] parts, str how) -> Tensor")
lib.define("text(str s) -> str")
lib.define("fail(Tensor x) -> Tensor")
lib.define("add_(Tensor(a!) x, Tensor y) -> Tensor(a!)")


def fail(x):
    raise ValueError("no")


def add_(x, y):
    x += y
    return x


lib.impl("both", lambda x, by, *, y: (x * by, x[:1]), "CPU")
lib.impl("join", lambda parts, how: parts[0] + parts[1], "CPU")
lib.impl("text", lambda s: s, "CompositeExplicitAutograd")
lib.impl("fail", fail, "CPU")
lib.impl("add_", add_, "CPU")
"""


@pytest.mark.parametrize("options", LANES, ids=str)
def test_bytes_are_those_that_clients_have_sent_and_got(
    options: dict[str, Any],
    start_daemon: StartDaemon,
    write_library: WriteLibrary,
    tmp_path: Path,
):
    listen = [f"unix://{tmp_path}/daemon.sock", "127.0.0.1:0"]
    daemon = start_daemon("--http", "127.0.0.1:0", workers=1, listen=listen)
    daemon.expects_errors = True
    address = daemon.addresses[1] if options.get("lane") == "stream" else daemon.address
    sent: Counter[str] = Counter()
    got: Counter[str] = Counter()

    def call(name: str, *args: Any, **kwargs: Any) -> None:
        arrays = [*args, *kwargs.values(), *(args[0] if isinstance(args[0], list) else ())]
        sent[name] += sum(each.nbytes for each in arrays if isinstance(each, np.ndarray))
        with contextlib.suppress(KernelError):
            result = getattr(caller.ops.mover, name)(*args, **kwargs)
            results = result if isinstance(result, tuple) else [result]
            got[name] += sum(each.nbytes for each in results if isinstance(each, np.ndarray))

    with daemon.connect() as session, oc.connect(address, **options) as caller:
        session.load(str(write_library("mover", MOVER)))
        # Small ones are planned from the second call on; large ones are beside their messages.
        for size in (3, 3, 3, 3, 1, 0, 5000, 300_000, 300_000):
            x = np.ones(size)
            call("both", x, 2.0)
            call("both", x, 2.0, y=np.ones(7, np.int8))
            call("join", [x, x], "plus")
            call("text", "not a tensor")
            call("fail", x)
            call("add_", x, x)
        samples = scrape(daemon.url)
        with caller.program() as program:
            program.call("mover::join", [np.ones(10), np.ones(10)], "plus")
    for name in sent:
        about = {"operator": f"mover::{name}", "library": "mover", "version": "1"}
        assert total(samples, "opdispatch_call_argument_bytes_total", **about) == sent[name]
        assert total(samples, "opdispatch_call_result_bytes_total", **about) == got[name]
    assert got["fail"] == got["text"] == sent["text"] == 0 < min(sent["fail"], got["both"])
    samples = scrape(daemon.url)
    assert total(samples, "opdispatch_call_argument_bytes_total", operator="program") == 160


def test_a_library_has_metrics_of_its_own(watched: RunningDaemon, write_library: WriteLibrary):
    source = BANK.replace(
        "lib = Library",
        "from opdispatch import metrics\n"
        'QUOTES = metrics.counter("quotes", "Quotes.", labels=("kind",))\n'
        "lib = Library",
    ).replace("    return 2 * x", '    QUOTES.inc(kind="plain")\n    return 2 * x')
    with watched.connect() as session:
        session.load(str(write_library("bank", source)))
        for _ in range(5):
            session.ops.bank.quote(1.0)
        assert wait_for(
            lambda: total(scrape(watched.url), "opdispatch_library_quotes_total", kind="plain") == 5
        )


def test_no_metric_of_a_library_keeps_its_interpreter_from_its_heartbeats(
    watched: RunningDaemon, write_library: WriteLibrary
):
    source = BANK.replace(
        "lib = Library",
        "from opdispatch import metrics\n"
        'ODD = metrics.counter("odd", "\\ud800" + "x" * 50_000_000, labels=("kind",))\n'
        "lib = Library",
    ).replace(
        "    return 2 * x",
        '    for kind in (chr(0xD800), "x" * 1_000_000, \'a"b\\\\\\n\', *range(100_000)):\n'
        "        ODD.inc(10**308, kind=kind)\n"
        "    return 2 * x",
    )
    with watched.connect() as session:
        pids = {each.pid for each in session.interpreters()}
        session.load(str(write_library("bank", source)))
        session.ops.bank.quote(1.0)
        assert wait_for(lambda: "opdispatch_library_odd_total" in scrape(watched.url))
        found = scrape(watched.url)["opdispatch_library_odd_total"]
        kinds = {dict(labels)["kind"] for labels in found}
        assert {"?", "x" * 200, 'a"b\\\\n', "0", "other"} <= kinds
        assert len(kinds) == 129
        assert {each.pid for each in session.interpreters()} == pids


def test_names_of_triton_come_where_they_are_asked_for(
    start_daemon: StartDaemon, write_library: WriteLibrary
):
    daemon = start_daemon("--http", "127.0.0.1:0", "--metrics-compat", "triton", workers=1)
    with daemon.connect() as session:
        session.load(str(write_library("bank", BANK)))
        session.ops.bank.quote(1.0)
        samples = scrape(daemon.url)
    assert total(samples, "nv_inference_request_success", model="bank::quote", version="1") == 1
    assert total(samples, "nv_inference_request_failure", model="bank::quote") == 0


def test_scrapes_go_on_while_many_operators_are_loaded(
    watched: RunningDaemon, write_library: WriteLibrary
):
    defines = "\n".join(f'lib.define("f{n}(float x) -> float")' for n in range(1000))
    source = f'from opdispatch import Library\nlib = Library("many", "DEF")\n{defines}\n'
    has_loaded = threading.Event()
    scraped: list[float] = []

    def scrape_all_along() -> None:
        while not has_loaded.is_set():
            scraped.append(total(scrape(watched.url), "opdispatch_operators"))

    with watched.connect() as session, ThreadPoolExecutor(1) as pool:
        scraping = pool.submit(scrape_all_along)
        try:
            session.load(str(write_library("many", source)))
        finally:
            has_loaded.set()
        scraping.result(LONGEST_WAIT)
    assert set(scraped) <= {0, 1000}, "a library comes at once"
    assert total(scrape(watched.url), "opdispatch_operators") == 1000


def test_time_in_the_queue_is_counted(watched: RunningDaemon, write_library: WriteLibrary):
    source = BANK.replace("max_concurrency = 2", "import time\nmax_concurrency = 1").replace(
        "    return 2 * x", "    time.sleep(x)\n    return x"
    )
    with watched.connect() as session:
        session.load(str(write_library("bank", source)))
        with ThreadPoolExecutor(3) as pool:
            list(pool.map(session.ops.bank.quote, [0.05] * 3))
        assert wait_for(
            lambda: total(scrape(watched.url), "opdispatch_queue_duration_seconds_count") == 3
        )
        waited = total(
            scrape(watched.url), "opdispatch_queue_duration_seconds_sum", operator="bank::quote"
        )
    assert waited >= 0.05


def test_a_collector_that_is_slow_or_gone_holds_up_no_other(
    watched: RunningDaemon, write_library: WriteLibrary
):
    defines = "\n".join(f'lib.define("f{n}(float x) -> float")' for n in range(1000))
    kernel = 'for n in range(1000): lib.impl(f"f{n}", lambda x: x, "CompositeExplicitAutograd")'
    source = f'from opdispatch import Library\nlib = Library("many", "DEF")\n{defines}\n{kernel}\n'
    address = urlsplit(watched.url)
    request = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with watched.connect() as session, contextlib.ExitStack() as stack:
        session.load(str(write_library("many", source)))
        for n in range(1000):
            getattr(session.ops.many, f"f{n}")(1.0)
        for n in range(8):  # more than are answered at once; some leave at once, some read nothing
            slow = stack.enter_context(socket.create_connection((address.hostname, address.port)))
            slow.sendall(request)
            if n % 2:
                slow.close()
        samples = scrape(watched.url)
        assert total(samples, "opdispatch_calls_total", library="many", outcome="ok") == 1000
        assert session.ops.many.f0(1.0) == 1.0
    assert watched.stop() == 0


@pytest.mark.parametrize("options", LANES, ids=str)
def test_calls_are_counted_by_client(
    options: dict[str, Any],
    start_daemon: StartDaemon,
    write_library: WriteLibrary,
    tmp_path: Path,
):
    daemon = start_daemon(
        *("--http", "127.0.0.1:0", "--heartbeat", "0.1"),
        workers=1,
        listen=[f"unix://{tmp_path}/daemon.sock", "127.0.0.1:0"],
    )
    address = daemon.addresses[1] if options.get("lane") == "stream" else daemon.address
    with daemon.connect() as session:
        session.load(str(write_library("bank", BANK)))
        with oc.connect(address, **options) as caller:
            for _ in range(20):
                caller.ops.bank.quote(1.0)
        is_local = caller.lane == "local"

        def counted() -> float:
            found = scrape(daemon.url).get("opdispatch_client_calls_total", {})
            return sum(
                value
                for key, value in found.items()
                if is_local == dict(key)["client"].endswith(f"[{os.getpid()}]")
            )

        assert wait_for(lambda: counted() == 20)
