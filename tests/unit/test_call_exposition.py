"""The metrics of calls as text, which is kept between scrapes."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("prometheus_client", reason="opdispatch[http] is not installed")

from prometheus_client.parser import text_string_to_metric_families

from opdispatch_server.daemon.monitoring.call_exposition import (
    CALL_FAMILIES,
    CALL_LABELS,
    CallExposition,
    labels_of,
)
from opdispatch_server.daemon.monitoring.triton import (
    TRITON_FAMILIES,
    TRITON_LABELS,
)
from opdispatch_server.metrics.call_counts import CallCounts, Series
from opdispatch_server.metrics.call_table import CallSums, Counts, SharedCounts, table_of

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


def our_text() -> CallExposition:
    return CallExposition(CALL_FAMILIES, CALL_LABELS)


def samples_of(pieces: list[Any]) -> Samples:
    found: Samples = {}
    for family in text_string_to_metric_families(b"".join(pieces).decode()):
        for sample in family.samples:
            key = sample.name, frozenset(sample.labels.items())
            assert key not in found, "a sample twice"
            found[key] = sample.value
    return found


def counts_of(ok: int, failed: int = 0, died: int = 0) -> Counts:
    return Counts(
        ok=ok,
        failed=failed,
        died=died,
        run_ns=ok * 1000,
        run_buckets=(ok, failed) + (0,) * 11,
        queue_buckets=(ok + failed,) + (0,) * 12,
    )


names = st.sampled_from([f"lib::f{n}" for n in range(6)] + ["\1" * 60 + "a", "\1" * 60 + "b"])
scrapes = st.lists(
    st.dictionaries(names, st.builds(counts_of, *[st.integers(0, 9)] * 3)), max_size=5
)


@given(scrapes)
def test_cached_exposition_equals_a_fresh_one(scrapes: list[dict[str, Counts]]):
    text = our_text()
    for counts in scrapes:
        calls = table_of({Series(name, "CPU", "lib", "1"): e for name, e in counts.items()})
        assert samples_of(text.write(calls)) == samples_of(our_text().write(calls))


@given(st.lists(st.integers(0, 2**64 - 1), max_size=5))
def test_numbers_of_any_size_are_read_as_they_are(counted: list[int]):
    found = {Series(f"a::f{i}"): Counts(argument_bytes=n, run_ns=n) for i, n in enumerate(counted)}
    samples = samples_of(our_text().write(table_of(found)))
    given = [v for (name, _), v in samples.items() if name.endswith("argument_bytes_total")]
    assert sorted(given) == sorted(counted)
    took = [v for (name, _), v in samples.items() if name.endswith("kernel_duration_seconds_sum")]
    assert sorted(took) == pytest.approx([n / 1e9 for n in sorted(counted)], rel=1e-12, abs=2e-8)


def test_of_a_cut_name_both_operators_are_in_one_sample():
    calls = table_of({Series("\1" * 60 + end): counts_of(2) for end in "ab"})
    text = our_text()
    for _ in range(2):
        values = [v for (name, _), v in samples_of(text.write(calls)).items() if "calls" in name]
        assert sorted(values) == [0, 0, 4]


@given(st.lists(st.text(max_size=30), max_size=400))
def test_labels_of_many_series_are_those_of_each_by_itself(names: list[str]):
    texts = [Series(name, "CPU", name, "1").encode() for name in names]
    for fields in (CALL_LABELS, TRITON_LABELS):
        alone = [label for text in texts for label in labels_of([text], fields)]
        assert labels_of(texts, fields) == alone


def entered(function: Callable[[], Any]) -> int:
    """Return how many Python functions a call enters."""
    count = 0

    def profile(frame: object, event: str, argument: object) -> None:
        nonlocal count
        count += event == "call"

    sys.setprofile(profile)
    try:
        function()
    finally:
        sys.setprofile(None)
    return count


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has memfds")
def test_a_scrape_enters_no_function_for_each_series():
    counts = CallCounts()
    rows = [counts.row_of(Series(f"lib::f{n}", "CPU", "lib", "1")) for n in range(1000)]
    shared = SharedCounts.open(os.getpid(), counts.descriptor)
    assert shared is not None
    ours = our_text()
    triton = CallExposition(TRITON_FAMILIES, TRITON_LABELS)

    def scrape() -> None:
        sums = CallSums(2000)
        sums.add(shared.read())
        for text in (ours, triton):
            for piece in text.write(sums.table):
                assert piece

    for called in (0, 10, 1000):  # names are made into labels by the first
        for row in rows[:called]:
            counts.note(row, 1000, 0, failed=False)
        assert entered(scrape) < 450, "however many were called since"
