"""Metrics that libraries define: numbers that kernels update and a daemon exports.

    from opdispatch import metrics

    HITS = metrics.counter("cache_hits", "Lookups that found a value.", labels=("cache",))

    def kernel(x):
        HITS.inc(cache="weights")

Metrics are per process. An interpreter sends its metrics with its heartbeats, and the daemon
exports them at ``/metrics``; in any other process, ``read`` returns them.
"""

from __future__ import annotations

import math
import re
import threading
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple, TypeVar

from opdispatch.errors import ArgumentError

MOST_METRICS: Final = 256
MOST_SERIES: Final = 128
"""The maximum number of label combinations per metric; further ones are counted as ``OTHER``."""

OTHER: Final = "other"

MOST_LABELS: Final = 16

LABEL_LIMIT: Final = 200
"""The longest label value or documentation, in characters; longer ones are truncated."""

_NAME = re.compile(r"[a-z][a-z0-9_]{0,63}")
_SUFFIXES = ("_total", "_count", "_sum", "_bucket", "_created", "_info")
# The daemon adds it.
_RESERVED = "interpreter"


class Reading(NamedTuple):
    """One metric with its values by label values, in the order of ``labels``."""

    name: str
    documentation: str
    is_counter: bool
    labels: tuple[str, ...]
    values: Mapping[tuple[str, ...], float]


class _Metric:
    """A value for each combination of label values. Thread-safe; ``_lock`` guards the values."""

    is_counter = False

    def __init__(self, name: str, documentation: str, labels: tuple[str, ...]) -> None:
        self.name = name
        self.documentation = _cut(documentation)
        self.labels = labels
        self._lock = threading.Lock()
        self._values: dict[tuple[str, ...], float] = {}

    def read(self) -> Reading:
        """Return the current values of the metric."""
        with self._lock:
            values = dict(self._values)
        return Reading(self.name, self.documentation, self.is_counter, self.labels, values)

    def _change(self, amount: float, labels: Mapping[str, object], *, to: bool = False) -> None:
        if labels.keys() != set(self.labels):
            raise ArgumentError(
                f"{self.name} was given the labels {sorted(labels)}; expected {list(self.labels)}"
            )
        amount = float(amount)  # integers may be too large to send
        if not math.isfinite(amount):
            raise ArgumentError(f"{self.name} was given {amount}; expected a finite number")
        key = tuple(_cut(labels[name]) for name in self.labels)
        with self._lock:
            if key not in self._values and len(self._values) >= MOST_SERIES:
                key = (OTHER,) * len(self.labels)
            self._values[key] = amount if to else self._values.get(key, 0.0) + amount


class Counter(_Metric):
    """A number that only grows, such as a number of requests."""

    is_counter = True

    def inc(self, amount: float = 1, /, **labels: object) -> None:
        """Add to the counter. Raises ArgumentError for a negative amount or undeclared labels."""
        if amount < 0:
            raise ArgumentError(f"{self.name} cannot shrink by {-amount}: it is a counter")
        self._change(amount, labels)


class Gauge(_Metric):
    """A number that goes up and down, such as the number of entries in a cache."""

    def set(self, value: float, /, **labels: object) -> None:
        """Set the value. Raises ArgumentError if ``labels`` are not those declared."""
        self._change(value, labels, to=True)

    def inc(self, amount: float = 1, /, **labels: object) -> None:
        """Add to the value; a negative amount subtracts.

        Raises ArgumentError if ``labels`` are not those declared.
        """
        self._change(amount, labels)


M = TypeVar("M", Counter, Gauge)

_lock = threading.Lock()
_metrics: dict[str, Counter | Gauge] = {}


def counter(name: str, documentation: str, labels: Sequence[str] = ()) -> Counter:
    """Return the counter of that name, created on first use.

    ``/metrics`` exports it as ``opdispatch_library_NAME_total``. Raises ArgumentError for an
    invalid name or label, and if a different metric has that name.
    """
    return _find(Counter, name, documentation, labels)


def gauge(name: str, documentation: str, labels: Sequence[str] = ()) -> Gauge:
    """Return the gauge of that name, created on first use.

    ``/metrics`` exports it as ``opdispatch_library_NAME``. Raises the errors of ``counter``.
    """
    return _find(Gauge, name, documentation, labels)


def read() -> list[Reading]:
    """Return all metrics of this process, sorted by name."""
    with _lock:
        found = sorted(_metrics.items())
    return [metric.read() for _, metric in found]


def is_metric_name(name: str) -> bool:
    """Return whether ``name`` is valid for a metric or a label."""
    return _NAME.fullmatch(name) is not None and not name.endswith(_SUFFIXES)


def _cut(text: object) -> str:
    """Convert to a string that can be sent: truncated, and without lone surrogates."""
    return str(text)[:LABEL_LIMIT].encode(errors="replace").decode()


def _find(kind: type[M], name: str, documentation: str, labels: Sequence[str]) -> M:
    if not is_metric_name(name):
        raise ArgumentError(
            f"{name!r} is not the name of a metric; expected at most 64 of a-z, 0-9 and _, the "
            f"first a letter, and none of the endings {', '.join(_SUFFIXES)}"
        )
    if len(labels) > MOST_LABELS:
        raise ArgumentError(f"{name} has {len(labels)} labels; expected at most {MOST_LABELS}")
    for label in labels:
        if not is_metric_name(label) or label == _RESERVED:
            raise ArgumentError(f"{label!r} is not the name of a label of {name}")
    with _lock:
        known = _metrics.get(name)
        if known is None:
            if len(_metrics) >= MOST_METRICS:
                raise ArgumentError(f"there is no room for {name}: {MOST_METRICS} metrics exist")
            known = _metrics[name] = kind(name, documentation, tuple(labels))
        if not isinstance(known, kind) or known.labels != tuple(labels):
            raise ArgumentError(
                f"{name} exists as a {type(known).__name__.lower()} with the labels "
                f"{list(known.labels)}"
            )
        return known
