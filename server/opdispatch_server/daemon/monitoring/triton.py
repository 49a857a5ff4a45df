"""The metrics of calls under the names of Triton Inference Server's, for dashboards that know them.

An operator is a model, and the version of its library, the model's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from prometheus_client.core import Metric

from opdispatch_server.daemon.monitoring.call_text import label_of
from opdispatch_server.daemon.monitoring.facts import Facts
from opdispatch_server.metrics.call_counts import NOTHING, Counts

_LABELS = ("model", "version")

_METRICS: Sequence[tuple[str, str, Callable[[Counts], int]]] = (
    ("request_success", "Successful calls", lambda c: c.ok),
    ("request_failure", "Failed calls", lambda c: c.failed + c.died),
    ("count", "Calls that were run", lambda c: c.ok),
    ("exec_count", "Runs of kernels", lambda c: c.ok),
    (
        "request_duration_us",
        "Time of calls, in microseconds",
        lambda c: (c.queue_ns + c.run_ns) // 1000,
    ),
    ("queue_duration_us", "Time in queues, in microseconds", lambda c: c.queue_ns // 1000),
    ("compute_infer_duration_us", "Time in kernels, in microseconds", lambda c: c.run_ns // 1000),
)


def triton_metrics(facts: Facts) -> Iterator[Metric]:
    """Yield ``nv_inference_*``, whose durations are in microseconds."""
    by_model: dict[tuple[str, str], Counts] = {}
    for series, counts in facts.calls.items():
        model = (label_of(series.operator), label_of(series.version))
        by_model[model] = by_model.get(model, NOTHING) + counts
    for name, documentation, value in _METRICS:
        # The names have no suffix there.
        family = Metric(f"nv_inference_{name}", documentation, "unknown")
        for model, counts in by_model.items():
            family.add_sample(
                f"nv_inference_{name}", dict(zip(_LABELS, model, strict=True)), value(counts)
            )
        yield family
