"""A peer's regions: arguments in place, copies of what outlives its call, and results."""

import gc
import os
import resource
import threading
from collections import deque
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from opdispatch_wire.errors import WireError
from opdispatch_wire.shared_memory.memory_region import OwnedRegion
from opdispatch_wire.shared_memory.peer_memory import LentMemory, PeerMemory
from opdispatch_wire.shared_memory.shared_mapping import PAGE
from opdispatch_wire.v1.values_pb2 import SharedMemory
from tests.shared_memory_lane import own_mappings
from tests.waits import join

U8 = np.dtype(np.uint8)
F32 = np.dtype(np.float32)
PAGES = 8


class Pair:
    """An owner's region 1, and a receiver that has it mapped."""

    def __init__(self):
        self.region = OwnedRegion(PAGES * PAGE)
        window = self.region.mapping.window(0, self.region.size, writable=True)
        self.owner = window.array((self.region.size,), U8)
        self.peer = PeerMemory()
        self.peer.add_region(1, os.dup(self.region.descriptor))
        self.released = deque()

    def lend(self, *, writes=False):
        call = LentMemory(self.peer, self.on_release)
        call.writes = writes
        return call

    def on_release(self, region, offset):
        self.released.append((region, offset))

    def received(self, offset, length):
        message = SharedMemory(region=1, offset=offset, length=length)
        return self.peer.received(message, (length,), U8, on_release=self.on_release, at="$")


@pytest.fixture
def pair():
    before = own_mappings()
    made = Pair()
    yield made
    made.peer.close()
    made.region.close()
    del made.owner
    gc.collect()
    assert own_mappings() == before


def borrow(call, offset, length, *, writable=False, dtype=U8):
    message = SharedMemory(region=1, offset=offset, length=length)
    return call.array(message, (length // dtype.itemsize,), dtype, writable=writable, at="$.x")


def test_arguments_are_in_place_and_read_only(pair):
    call = pair.lend()
    array = borrow(call, PAGE, 100)
    pair.owner[PAGE : PAGE + 100] = 7
    assert (array == 7).all()
    assert not array.flags.writeable
    with pytest.raises(ValueError, match="cannot set WRITEABLE"):
        array.flags.writeable = True
    del array
    assert call.release() == []
    assert call.release() == []


def test_a_call_that_writes_writes_in_place(pair):
    call = pair.lend(writes=True)
    array, other = borrow(call, PAGE, 100, writable=True), borrow(call, PAGE, 200)
    array[:] = 9
    assert (pair.owner[PAGE : PAGE + 100] == 9).all()
    assert not other.flags.writeable
    assert np.shares_memory(array, other), "what overlaps there overlaps here"
    del array, other
    assert call.release() == []


def test_mappings_are_made_once_for_many_calls(pair):
    for writes in (False, True):
        for _ in range(20):
            call = pair.lend(writes=writes)
            borrow(call, 0, PAGE)
            assert call.release() == []
    assert own_mappings() == {
        "descriptors": 1,
        "mappings": 4,
    }  # the owner's, ours, to read, to write


@pytest.mark.parametrize("writes", [False, True])
@pytest.mark.parametrize(
    "keep",
    [lambda a: a, lambda a: a[50:60], memoryview, np.from_dlpack, lambda a: a[::-2].view(np.int8)],
    ids=["array", "slice", "memoryview", "dlpack", "strides"],
)
def test_a_view_that_outlives_its_call_is_a_copy(pair, keep, writes):
    pair.owner[:] = 1
    call = pair.lend(writes=writes)
    array = borrow(call, PAGE + 64, 200, writable=writes)
    kept = keep(array)
    del array
    assert call.release() == []
    pair.owner[:] = 2  # the caller's next call
    assert set(np.asarray(kept).tolist()) == {1}
    later = pair.lend(writes=writes)
    assert borrow(later, PAGE + 64, 200).tolist() == [2] * 200
    if writes and isinstance(kept, np.ndarray) and kept.flags.writeable:
        kept[...] = 5
        assert (pair.owner == 2).all(), "what was kept is its keeper's alone"
    assert later.release() == []
    assert set(np.asarray(kept).tolist()) <= {1, 5}


def test_kept_views_are_copies_outside_the_region(pair):
    kept = []
    for i in range(10):
        pair.owner[:] = i
        call = pair.lend()
        kept.append(borrow(call, PAGE * (i % PAGES), PAGE // 2))
        assert call.release() == []
    assert own_mappings()["mappings"] == 2  # the owner's and the receiver's first
    pair.owner[:] = 99
    assert [int(view[0]) for view in kept] == list(range(10))
    before = len(Path("/proc/self/maps").read_text().splitlines())
    kept.clear()
    assert len(Path("/proc/self/maps").read_text().splitlines()) < before - 15


def test_calls_side_by_side_do_not_see_that_one_of_them_kept_a_view(pair):
    pair.owner[:] = 1
    one, two = pair.lend(), pair.lend()
    kept, other = borrow(one, 0, PAGE), borrow(two, PAGE, PAGE)
    assert one.release() == []
    pair.owner[:PAGE] = 2
    pair.owner[PAGE:] = 3
    assert (kept == 1).all()
    assert (other == 3).all(), "its pages are still the caller's"
    del other
    assert two.release() == []
    assert own_mappings()["mappings"] == 2


def test_writes_of_a_call_beside_one_that_keeps_reach_the_caller(pair):
    """Even in the same page, of which the first call's view gets a copy."""
    one, two = pair.lend(writes=True), pair.lend(writes=True)
    kept, other = borrow(one, 0, 64, writable=True), borrow(two, 64, 64, writable=True)
    kept[:] = 1
    assert one.release() == []
    other[:] = 2
    assert pair.owner[:128].tolist() == [1] * 64 + [2] * 64
    kept[:] = 3
    assert pair.owner[:128].tolist() == [1] * 64 + [2] * 64
    del other
    assert two.release() == []


def test_the_same_argument_twice_may_be_kept_twice(pair):
    pair.owner[:] = 1
    call = pair.lend()
    kept = [borrow(call, 0, 2 * PAGE), borrow(call, PAGE, 2 * PAGE)]
    assert call.release() == []
    pair.owner[:] = 2
    assert all((view == 1).all() for view in kept)


def test_callee_reports_extents_still_in_use_when_a_copy_has_no_room(pair):
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    pair.owner[:] = 1
    call = pair.lend()
    view = borrow(call, PAGE, 100)
    try:
        resource.setrlimit(resource.RLIMIT_AS, (1, hard))
        kept = call.release()
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
    assert [(m.region, m.offset, m.length) for m in kept] == [(1, PAGE, 100)]
    assert not pair.released
    assert (view == 1).all()
    del view
    assert list(pair.released) == [(1, PAGE)]


def test_threads_lend_keep_and_write_at_once(pair):
    """Each owns a page; what one keeps, and what others write, stays apart."""
    faults = []

    def work(page):
        place, kept = page * PAGE, []
        for i in range(100):
            value = (page * 31 + i) % 256
            call = pair.lend(writes=bool(i % 3))
            view = borrow(call, place, PAGE, writable=bool(i % 3))
            if i % 3:
                view[:] = value
            else:
                pair.owner[place : place + PAGE] = value
            if (view != value).any() or (pair.owner[place : place + PAGE] != value).any():
                faults.append((page, i))
            if i % 5 == 0:
                kept.append((view, value))
            del view
            if call.release():
                faults.append((page, i, "stuck"))
            pair.owner[place : place + PAGE] = 255 - value
        faults.extend((page, "kept") for view, value in kept if (view != value).any())

    threads = [threading.Thread(target=work, args=(page,)) for page in range(PAGES)]
    for thread in threads:
        thread.start()
    for thread in threads:
        join(thread)
    assert faults == []


# -- results --------------------------------------------------------------------------------------


def test_result_is_writable_and_released_with_its_last_view(pair):
    pair.owner[:] = 4
    array = pair.received(2 * PAGE, 10)
    array[3] = 5
    assert pair.owner[2 * PAGE + 3] == 5
    view = memoryview(array[2:])
    del array
    assert not pair.released
    del view
    assert list(pair.released) == [(1, 2 * PAGE)]


def test_results_outlive_the_regions_the_peer_and_the_lane(pair):
    pair.owner[:] = 4
    array = pair.received(0, 10)
    pair.peer.drop_region(1)
    assert len(pair.peer) == 0
    assert (array == 4).all()
    with pytest.raises(WireError, match=r"region is 1, which the peer has not passed"):
        pair.received(0, 10)
    with pytest.raises(WireError, match="cannot drop region 1"):
        pair.peer.drop_region(1)


# -- what is not the peer's -----------------------------------------------------------------------


def test_regions_that_were_not_passed_and_bytes_outside_are_refused(pair):
    call = pair.lend()
    wrong = {
        r"^\$\.x\.memory\.region is 2, which": {"region": 2, "length": 4},
        r"^\$\.x\.memory\.region is 0, which": {"region": 0, "length": 4},
        r"^\$\.x\.memory: 8 bytes at offset 32764 exceed": {
            "region": 1,
            "offset": 32764,
            "length": 8,
        },
        r"^\$\.x\.memory: .*exceed the region": {
            "region": 1,
            "offset": 2**64 - 1,
            "length": 2**64 - 1,
        },
        r"^\$\.x\.memory\.offset is 2; float32 is aligned": {"region": 1, "offset": 2, "length": 4},
    }
    for message, fields in wrong.items():
        with pytest.raises(WireError, match=message):
            call.array(SharedMemory(**fields), (1,), F32, writable=False, at="$.x")
    assert call.release() == []


def test_a_number_stands_for_one_region_and_there_are_not_too_many(pair):
    def descriptor():
        return os.dup(pair.region.descriptor)

    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(WireError, match="region 1 was passed before"):
        pair.peer.add_region(1, descriptor())
    few = PeerMemory(max_regions=2)
    few.add_region(1, descriptor())
    few.add_region(2, descriptor())
    with pytest.raises(WireError, match="region 3 exceeds the limit of 2 regions"):
        few.add_region(3, descriptor())
    small = PeerMemory(max_bytes=PAGES * PAGE)
    small.add_region(1, descriptor())
    with pytest.raises(WireError, match="region 2 exceeds the limit of 32768 bytes in all"):
        small.add_region(2, descriptor())
    small.drop_region(1)
    small.add_region(2, descriptor())
    assert len(os.listdir("/proc/self/fd")) == before


@given(
    st.integers(0, 3),
    st.one_of(st.integers(0, PAGES * PAGE + 9), st.integers(0, 2**64 - 1)),
    st.one_of(st.integers(1, PAGES * PAGE + 9), st.integers(1, 2**64 - 1)),
    st.booleans(),
)
def test_any_place_gives_its_own_bytes_or_an_error(region, offset, length, writes):
    pair = Pair()
    call = pair.lend(writes=writes)
    message = SharedMemory(region=region, offset=offset, length=length)
    try:
        array = call.array(message, (length,), U8, writable=writes, at="$")
    except WireError:
        assert region != 1 or offset + length > PAGES * PAGE
    else:
        pair.owner[offset : offset + length] = 1
        assert int(array.sum(dtype=np.int64)) == length
        del array
    assert call.release() == []
    pair.region.close()
