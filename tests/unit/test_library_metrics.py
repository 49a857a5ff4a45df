"""Metrics of libraries' own, in the process that has them."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opdispatch import metrics
from opdispatch.errors import ArgumentError


@pytest.fixture(autouse=True)
def _no_metrics(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(metrics, "_metrics", {})


def test_a_counter_adds_up_over_threads():
    hits = metrics.counter("hits", "Hits.", labels=("cache",))

    def count(_: int) -> None:
        for _ in range(1000):
            hits.inc(cache="a")

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(count, range(4)))
    hits.inc(2.5, cache="b")
    [reading] = metrics.read()
    assert reading.values == {("a",): 4000, ("b",): 2.5}
    assert (reading.name, reading.is_counter, reading.labels) == ("hits", True, ("cache",))


def test_a_gauge_goes_up_and_down():
    size = metrics.gauge("size", "Size.")
    size.set(5)
    size.inc(-2)
    assert metrics.read()[0].values == {(): 3}


def test_asking_again_gives_the_same_metric():
    assert metrics.counter("hits", "Hits.") is metrics.counter("hits", "Hits.")
    with pytest.raises(ArgumentError, match="exists as a counter"):
        metrics.gauge("hits", "Hits.")
    with pytest.raises(ArgumentError, match=r"with the labels \[\]"):
        metrics.counter("hits", "Hits.", labels=("cache",))


@pytest.mark.parametrize("name", ["", "Hits", "1hits", "hits_total", "a" * 65, "hits\n", "a-b"])
def test_names_that_prometheus_would_not_take_are_refused(name: str):
    with pytest.raises(ArgumentError, match="is not the name of a metric"):
        metrics.counter(name, "Hits.")


def test_labels_are_those_that_were_declared():
    hits = metrics.counter("hits", "Hits.", labels=("cache",))
    for labels in ({}, {"other": 1}, {"cache": 1, "more": 2}):
        with pytest.raises(ArgumentError, match=r"expected \['cache'\]"):
            hits.inc(**labels)
    with pytest.raises(ArgumentError, match="interpreter"):
        metrics.counter("misses", "Misses.", labels=("interpreter",))
    for amount in (-1, float("nan"), float("inf")):
        with pytest.raises(ArgumentError):
            hits.inc(amount, cache="a")


any_text = st.text(st.characters(codec=None, exclude_categories=()), max_size=300)


@given(st.lists(any_text, min_size=metrics.MOST_SERIES, max_size=300))
def test_values_of_labels_are_bounded_in_number_and_length(values: list[str]):
    metrics._metrics.clear()
    hits = metrics.counter("hits", "Hits.", labels=("cache",))
    for value in values:
        hits.inc(cache=value)
    [reading] = metrics.read()
    assert len(reading.values) <= metrics.MOST_SERIES + 1
    assert sum(reading.values.values()) == len(values)
    for (value,) in reading.values:
        assert len(value.encode().decode()) <= metrics.LABEL_LIMIT


def test_any_metric_of_a_library_can_be_sent():
    documentations: list[Any] = ["\ud800", 5, "x" * 1_000_000, None]
    for n, documentation in enumerate(documentations):
        counted = metrics.counter(f"c{n}", documentation)
        for _ in range(3):
            counted.inc(10**308)
    for reading in metrics.read():
        assert len(reading.documentation.encode()) <= metrics.LABEL_LIMIT
        assert isinstance(reading.values[()], float)
    with pytest.raises(ArgumentError, match="at most 16"):
        metrics.counter("wide", "", labels=[f"l{n}" for n in range(100_000)])


def test_metrics_are_bounded_in_number():
    for n in range(metrics.MOST_METRICS):
        metrics.counter(f"m{n}", "")
    with pytest.raises(ArgumentError, match="no room"):
        metrics.counter("more", "")
