"""The facts of a daemon as Prometheus metrics."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain

from prometheus_client import CollectorRegistry
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    Metric,
)
from prometheus_client.exposition import choose_encoder
from prometheus_client.process_collector import ProcessCollector

from opdispatch.metrics import MOST_METRICS, MOST_SERIES, is_metric_name
from opdispatch_server.blame.suspicion import Cause
from opdispatch_server.daemon.libraries.change_log import CHANGES
from opdispatch_server.daemon.monitoring.call_exposition import (
    CALL_FAMILIES,
    CALL_LABELS,
    CallExposition,
    Piece,
    label_of,
)
from opdispatch_server.daemon.monitoring.facts import Facts
from opdispatch_server.daemon.monitoring.triton import (
    TRITON_FAMILIES,
    TRITON_LABELS,
)
from opdispatch_server.daemon_configuration import installed_version

_STATES = ("ready", "loading", "busy", "unfit", "apart", "draining", "drained", "quarantined")


class Exposition:
    """The metrics of a daemon as text. ``_lock`` guards the texts that are kept between scrapes."""

    def __init__(self, read: Callable[[], Facts], *, compat: str | None = None) -> None:
        """Take ``compat``, the product whose names the metrics of calls also get: ``triton``."""
        self._read = read
        self._lock = threading.Lock()
        self._calls = [CallExposition(CALL_FAMILIES, CALL_LABELS)]
        if compat == "triton":
            self._calls.append(CallExposition(TRITON_FAMILIES, TRITON_LABELS))

    def scrape(self, accept: str) -> tuple[Iterator[Piece], str]:
        """Return the text, in pieces created on demand, and its content type, one of ``accept``.

        Raises DaemonUnavailableError if the daemon cannot be read.
        """
        facts = self._read()
        registry = CollectorRegistry(auto_describe=False)
        registry.register(_Collected([*_of_daemon(facts)]))
        ProcessCollector(registry=registry)
        try:
            encode, content_type = choose_encoder(accept)
        except (TypeError, ValueError):  # an invalid version
            encode, content_type = choose_encoder("")
        others, end = encode(registry), b""
        if content_type.startswith("application/openmetrics-text"):
            others, end = others.removesuffix(_END), _END
        with self._lock:
            calls = [text.write(facts.calls, openmetrics=bool(end)) for text in self._calls]
        return chain(*calls, [others + end]), content_type


_END = b"# EOF\n"


class _Collected:
    """Metrics that have been collected, in the form that a registry takes."""

    def __init__(self, metrics: Sequence[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> Iterable[Metric]:
        return self._metrics

    def describe(self) -> Iterable[Metric]:
        return ()


def _of_daemon(facts: Facts) -> Iterator[Metric]:
    refusals = CounterMetricFamily(
        "opdispatch_calls_refused",
        "Calls that the daemon has ended with an error of its own, by error.",
        labels=("error",),
    )
    for error, count in facts.refusals.items():
        refusals.add_metric([error], count)
    yield refusals
    clients = CounterMetricFamily(
        "opdispatch_client_calls",
        "Calls that clients have sent, by process, token or machine.",
        labels=("client",),
    )
    for client, count in facts.clients.items():
        clients.add_metric([label_of(client)], count)
    yield clients
    yield from _of_interpreters(facts)
    yield from _of_registry(facts)
    yield from _of_libraries(facts)


def _of_interpreters(facts: Facts) -> Iterator[Metric]:
    states = GaugeMetricFamily(
        "opdispatch_interpreters", "Interpreters by state.", labels=("state",)
    )
    for state in _STATES:
        states.add_metric([state], sum(each.state == state for each in facts.interpreters))
    yield states
    deaths = CounterMetricFamily(
        "opdispatch_interpreter_deaths",
        "Interpreters that have ended, not orderly, by reason.",
        labels=("reason",),
    )
    for reason in (each.value for each in Cause if each is not Cause.ORDERLY):
        deaths.add_metric([reason], facts.deaths.get(reason, 0))
    yield deaths
    label = ("interpreter",)
    about = facts.interpreters
    for name, documentation, values in (
        ("calls_in_flight", "Calls that run or wait there.", [i.calls_in_flight for i in about]),
        ("calls_queued", "Calls that wait in the daemon for it.", [i.calls_queued for i in about]),
        ("queued_bytes", "The bytes of calls that wait for it.", [i.bytes_queued for i in about]),
        ("remote_values", "Values that it keeps for clients.", [i.remote_values for i in about]),
        ("remote_value_bytes", "The bytes of these.", [i.remote_bytes for i in about]),
        (
            "heartbeat_age_seconds",
            "How long it has been silent.",
            [i.heartbeat_age_seconds for i in about],
        ),
    ):
        gauge = GaugeMetricFamily(f"opdispatch_{name}", documentation, labels=label)
        for interpreter, value in zip(about, values, strict=True):
            gauge.add_metric([label_of(interpreter.name)], value)
        yield gauge
    restarts = CounterMetricFamily(
        "opdispatch_interpreter_restarts", "How often it was started again.", labels=label
    )
    for each in about:
        if each.supervised:
            restarts.add_metric([label_of(each.name)], each.restarts)
    yield restarts
    yield from _of_transfers(facts)
    yield from _of_processes(facts)


def _of_transfers(facts: Facts) -> Iterator[Metric]:
    copied = CounterMetricFamily(
        "opdispatch_device_copies",
        "Arrays copied between the host and devices, by direction.",
        labels=("interpreter", "device", "direction"),
    )
    for each in facts.interpreters:
        for transfer in each.transfers:
            for direction in ("to_device", "from_device", "from_peers"):
                labels = [label_of(each.name), label_of(transfer.device), direction]
                copied.add_metric(labels, getattr(transfer, direction))
    yield copied


def _of_processes(facts: Facts) -> Iterator[Metric]:
    label = ("interpreter",)
    cpu = CounterMetricFamily(
        "opdispatch_interpreter_cpu_seconds", "Processor time of its process.", labels=label
    )
    memory = GaugeMetricFamily(
        "opdispatch_interpreter_resident_bytes", "Resident memory of its process.", labels=label
    )
    shared = GaugeMetricFamily(
        "opdispatch_interpreter_shared_bytes",
        "Of these, memory shared with other processes, as for large tensors.",
        labels=label,
    )
    for name, use in facts.processes.items():
        cpu.add_metric([label_of(name)], use.cpu_seconds)
        memory.add_metric([label_of(name)], use.resident_bytes)
        shared.add_metric([label_of(name)], use.shared_bytes)
    yield from (cpu, memory, shared)


def _of_registry(facts: Facts) -> Iterator[Metric]:
    changes = CounterMetricFamily(
        "opdispatch_library_changes",
        "Changes of libraries, by kind; load_failed is one that has changed nothing.",
        labels=("change",),
    )
    for change in CHANGES:
        changes.add_metric([change], facts.changes.get(change, 0))
    yield changes
    libraries = GaugeMetricFamily(
        "opdispatch_libraries", "Libraries by state of their newest version.", labels=("state",)
    )
    for state in ("active", "waiting", "failed"):
        libraries.add_metric([state], sum(each.state == state for each in facts.libraries))
    yield libraries
    for name, documentation, value in (
        ("operators", "Operators that are registered.", facts.operators),
        ("registry_epoch", "The number of publications so far.", facts.epoch),
        ("registration_waiters", "Clients that wait for a registration.", facts.waiters),
        ("ready", "1 if the daemon serves calls.", int(facts.is_ready)),
    ):
        yield GaugeMetricFamily(f"opdispatch_{name}", documentation, value=value)
    build = GaugeMetricFamily("opdispatch_build_info", "The version.", labels=("version",))
    build.add_metric([installed_version()], 1)
    yield build


def _of_libraries(facts: Facts) -> Iterator[Metric]:
    """Yield the metrics that libraries define. Interpreters run user code: nothing is trusted."""
    samples: dict[tuple[str, bool], dict[tuple[tuple[str, str], ...], float]] = {}
    documentation: dict[tuple[str, bool], str] = {}
    for interpreter, found in facts.library_metrics.items():
        for metric in found[:MOST_METRICS]:
            if not all(map(is_metric_name, (metric.name, *metric.labels))):
                continue
            kind = (metric.name, metric.is_counter)
            documentation.setdefault(kind, label_of(metric.documentation))
            series = samples.setdefault(kind, {})
            for each in metric.series[: MOST_SERIES + 1]:
                values = map(label_of, each.values)
                labels = dict(zip(metric.labels, values, strict=False))
                labels["interpreter"] = label_of(interpreter)
                key = tuple(sorted(labels.items()))
                series[key] = series.get(key, 0.0) + each.value
    for (name, is_counter), series in sorted(samples.items()):
        full = f"opdispatch_library_{name}"
        about = documentation[name, is_counter]
        family = Metric(full, about, "counter" if is_counter else "gauge")
        for key, value in series.items():
            family.add_sample(f"{full}_total" if is_counter else full, dict(key), value)
        yield family
