"""The facts of a daemon as Prometheus metrics."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib.metadata import version
from itertools import accumulate

from prometheus_client import CollectorRegistry
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.process_collector import ProcessCollector

from opdispatch.metrics import MOST_METRICS, MOST_SERIES, is_metric_name
from opdispatch_server.blame.suspicion import Cause
from opdispatch_server.daemon.libraries.change_log import CHANGES
from opdispatch_server.daemon.monitoring.facts import Facts
from opdispatch_server.metrics.call_counts import NOTHING, QUEUE_BOUNDS, RUN_BOUNDS, Counts
from opdispatch_wire.printable import printable_line

_SERIES = ("operator", "key", "library", "version")
_STATES = ("ready", "loading", "busy", "unfit", "apart", "draining", "drained", "quarantined")
LABEL_LIMIT = 200
"""The longest value of a label, in characters."""


class DaemonCollector:
    """Yields all metrics of a daemon, from one reading of it for each scrape."""

    def __init__(
        self, read: Callable[[], Facts], *more: Callable[[Facts], Iterable[Metric]]
    ) -> None:
        """``more`` yield further metrics of the same reading."""
        self._read = read
        self._more = more

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics. Raises DaemonUnavailableError if the daemon cannot be read."""
        facts = self._read()
        yield from _of_calls(facts)
        yield from _of_interpreters(facts)
        yield from _of_registry(facts)
        yield from _of_libraries(facts)
        for each in self._more:
            yield from each(facts)


def registry_of(collector: DaemonCollector) -> CollectorRegistry:
    """Return a registry of these metrics, with those of the daemon's own process."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Described(collector))
    ProcessCollector(registry=registry)
    return registry


class _Described:
    """A collector that is not asked for its metrics when it is registered."""

    def __init__(self, collector: DaemonCollector) -> None:
        self.collect = collector.collect

    def describe(self) -> Iterable[Metric]:
        return ()


def _of_calls(facts: Facts) -> Iterator[Metric]:
    calls = CounterMetricFamily(
        "opdispatch_calls",
        "Calls whose kernels have run, by outcome: ok, error, or died with its interpreter.",
        labels=(*_SERIES, "outcome"),
    )
    runs = HistogramMetricFamily(
        "opdispatch_kernel_duration_seconds",
        "How long kernels ran, with the calls that they made.",
        labels=_SERIES,
    )
    queues = HistogramMetricFamily(
        "opdispatch_queue_duration_seconds",
        "How long calls waited in the daemon and in their interpreter.",
        labels=_SERIES,
    )
    by_labels: dict[tuple[str, ...], Counts] = {}
    for series, counts in facts.calls.items():  # names that are cut may be the same
        labels = tuple(map(label_of, series))
        by_labels[labels] = by_labels.get(labels, NOTHING) + counts
    for labels, counts in by_labels.items():
        outcomes = (("ok", counts.ok), ("error", counts.failed), ("died", counts.died))
        for outcome, count in outcomes:
            if count or outcome != "died":
                calls.add_metric([*labels, outcome], count)
        if counts.ok or counts.failed:
            run = _buckets(counts.run_buckets, RUN_BOUNDS)
            runs.add_metric(labels, run, counts.run_ns / 1e9)
            queue = _buckets(counts.queue_buckets, QUEUE_BOUNDS)
            queues.add_metric(labels, queue, counts.queue_ns / 1e9)
    refusals = CounterMetricFamily(
        "opdispatch_calls_refused",
        "Calls that the daemon has ended with an error of its own, by error.",
        labels=("error",),
    )
    for error, count in facts.refusals.items():
        refusals.add_metric([error], count)
    yield from (calls, runs, queues, refusals)


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
    build.add_metric([version("opdispatch")], 1)
    yield build


def _of_libraries(facts: Facts) -> Iterator[Metric]:
    """Yield metrics of libraries' own. Interpreters run code of users: nothing is taken as said."""
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


def _buckets(counts: Sequence[int], bounds: Sequence[float]) -> list[tuple[str, float]]:
    names = [*(f"{bound:g}" for bound in bounds), "+Inf"]
    return list(zip(names, map(float, accumulate(counts)), strict=True))


def label_of(text: str) -> str:
    """Return a label's value: of names that users choose, one line of limited length."""
    return printable_line(text)[:LABEL_LIMIT]
