"""The free part of a region, beside a model that marks every unit."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from opdispatch_wire.shared_memory.free_extents import FreeExtents

SIZE = 40


@given(st.lists(st.tuples(st.booleans(), st.integers(1, SIZE), st.integers(0, 100))))
def test_free_extents_agree_with_a_bitmap(steps):
    free, marks, taken = FreeExtents(SIZE), [True] * SIZE, []
    for is_take, length, which in steps:
        if is_take:
            fits = [i for i in range(SIZE - length + 1) if all(marks[i : i + length])]
            place = free.take(length)
            assert place == (fits[0] if fits else None)
            if place is not None:
                marks[place : place + length] = [False] * length
                taken.append((place, length))
        elif taken:
            place, length = taken.pop(which % len(taken))
            part = min(length, 1 + which % length)
            free.give_back(place, part)
            marks[place : place + part] = [True] * part
            if part < length:
                taken.append((place + part, length - part))
        extents = free.extents()
        assert [i for start, stop in extents for i in range(start, stop)] == [
            i for i in range(SIZE) if marks[i]
        ]
        assert all(a[1] < b[0] for a, b in pairwise(extents)), "merged"
    for place, length in taken:
        free.give_back(place, length)
    assert free.extents() == [(0, SIZE)]
