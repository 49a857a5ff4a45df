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

from opdispatch_server.daemon.monitoring.call_text import CallText
from opdispatch_server.metrics.call_counts import (
    NOTHING,
    CallCounts,
    Counts,
    Series,
    SharedCounts,
)

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


def samples_of(pieces: list[bytes]) -> Samples:
    found: Samples = {}
    for family in text_string_to_metric_families(b"".join(pieces).decode()):
        for sample in family.samples:
            key = sample.name, frozenset(sample.labels.items())
            assert key not in found, "a sample twice"
            found[key] = sample.value
    return found


def counts_of(ok: int, failed: int = 0, died: int = 0) -> Counts:
    return NOTHING._replace(
        ok=ok,
        failed=failed,
        died=died,
        run_ns=ok * 1000,
        run_buckets=(ok, failed) + (0,) * 11,
        queue_buckets=(ok + failed,) + (0,) * 12,
    )


names = st.sampled_from([f"lib::f{n}" for n in range(6)] + ["x" * 300 + "a", "x" * 300 + "b"])
scrapes = st.lists(
    st.dictionaries(names, st.builds(counts_of, *[st.integers(0, 9)] * 3)), max_size=5
)


@given(scrapes)
def test_what_is_kept_is_what_would_be_written_anew(scrapes: list[dict[str, Counts]]):
    text = CallText()
    for counts in scrapes:
        calls = {Series(name, "CPU", "lib", "1"): each for name, each in counts.items()}
        assert samples_of(text.write(calls)) == samples_of(CallText().write(calls))


def test_of_a_cut_name_both_operators_are_in_one_sample():
    calls = {Series("x" * 300 + end): counts_of(2) for end in "ab"}
    text = CallText()
    for _ in range(2):
        values = [v for (name, _), v in samples_of(text.write(calls)).items() if "calls" in name]
        assert sorted(values) == [0, 4]


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
def test_a_scrape_formats_only_series_that_were_called_since():
    counts = CallCounts()
    rows = [counts.row_of(Series(f"lib::f{n}", "CPU", "lib", "1")) for n in range(1000)]
    for row in rows:
        counts.note(row, 1000, 0, failed=False)
    shared = SharedCounts.open(os.getpid(), counts.descriptor)
    assert shared is not None
    text = CallText()

    def scrape() -> None:
        text.write(dict(shared.read().values()))

    first = entered(scrape)
    assert first > 1000
    again = entered(scrape)
    assert again < 100, "nothing is done for each series in Python code of ours"
    for row in rows[:10]:
        counts.note(row, 1000, 0, failed=False)
    assert entered(scrape) - again <= first / 1000 * 10 + 10
