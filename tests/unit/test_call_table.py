"""Counts of many series, read, added and compared as arrays."""

from __future__ import annotations

from collections import Counter

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from opdispatch_server.metrics.call_counts import OTHER_SERIES, Series
from opdispatch_server.metrics.call_table import CallSums, Counts, add_at, no_calls, table_of

names = st.sampled_from([Series(f"lib::f{n}") for n in range(9)])
tables = st.lists(st.dictionaries(names, st.integers(0, 99)), max_size=5)


def test_a_table_has_the_counts_that_it_was_made_of():
    counts = Counts(1, 2, 3, 4, 5, 6, list(range(13)), list(range(13, 26)), 7)
    assert table_of({Series("a::b"): counts}).counts() == {Series("a::b"): counts}
    assert no_calls().counts() == table_of({}).counts() == {}


@given(tables, st.integers(1, 12))
def test_sums_are_those_of_each_series_up_to_a_limit(added: list[dict[Series, int]], most: int):
    sums, expected = CallSums(most), Counter[Series]()
    for counted in added:
        sums.add(table_of({series: Counts(ok=count) for series, count in counted.items()}))
        expected.update(counted)
    found = {series: each.ok for series, each in sums.table.counts().items()}
    assert len(found.keys() - {OTHER_SERIES}) == min(len(expected), most)
    assert sum(found.values()) == expected.total()
    assert (OTHER_SERIES in found) == (len(expected) > most)
    assert all(found[series] == expected[series] for series in found if series != OTHER_SERIES)


def test_a_copy_of_sums_is_added_to_by_itself():
    sums, one = CallSums(5), table_of({Series("a::b"): Counts(ok=1)})
    sums.add(one)
    copy = sums.copy()
    copy.add(one)
    copy.add(table_of({Series("c::d"): Counts(ok=1)}))
    assert [each.ok for each in sums.table.counts().values()] == [1]
    assert [each.ok for each in copy.table.counts().values()] == [2, 1]


def test_rows_with_one_place_are_added_together():
    sums = np.zeros((3, 1), np.uint64)
    for places in ([0, 0, 2], [1, 0, 2]):
        add_at(sums, np.array(places), np.ones((3, 1), np.uint64))
    assert sums[:, 0].tolist() == [3, 1, 2]
