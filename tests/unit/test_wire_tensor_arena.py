"""The arena: blocks that never overlap, reused warm, and given back."""

import errno
import gc
import os
import re
import subprocess
import sys
import threading

import ml_dtypes
import numpy as np
import pytest

from opdispatch_wire.shared_memory.memory_budget import MemoryBudget
from opdispatch_wire.shared_memory.shared_mapping import PAGE
from opdispatch_wire.shared_memory.tensor_arena import TensorArena, block_size
from tests.shared_memory_lane import own_mappings
from tests.waits import LONGEST_WAIT, join

MIB = 1 << 20
F32 = np.dtype(np.float32)


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def arena():
    made = TensorArena(budget=MemoryBudget(64 * MIB), step=MIB)
    yield made
    assert made.check_invariants() == []


def fill(block, byte):
    block.array((block.size,), np.dtype(np.uint8))[:] = byte


def test_block_sizes_are_pages_and_at_most_a_sixteenth_too_large():
    sizes = [block_size(n) for n in range(0, 64 * MIB, 77_777)]
    assert all(size % PAGE == 0 for size in sizes)
    assert sizes == sorted(sizes)
    for n in (0, 1, PAGE, PAGE + 1, 10_000_000, 10 * MIB, 10 * MIB + 1, 2**40 + 1):
        assert max(n, 1) <= block_size(n) <= max(PAGE, n * 17 // 16 + PAGE)


def test_freed_blocks_are_handed_out_again_the_most_recently_freed_first(arena):
    one, two, other = arena.allocate(MIB // 4), arena.allocate(MIB // 4), arena.allocate(PAGE)
    places = [(block.region, block.offset) for block in (one, two)]
    one.release()
    two.release()
    two.release()  # once is enough
    other.release()
    again = [arena.allocate(MIB // 4) for _ in range(3)]
    assert [(block.region, block.offset) for block in again[:2]] == places[::-1]
    assert (again[2].region, again[2].offset) not in places


def test_a_collected_block_is_free(arena):
    block = arena.allocate(PAGE)
    place = (block.region, block.offset)
    del block
    block = arena.allocate(PAGE)
    assert (block.region, block.offset) == place


def test_regions_grow_in_steps_and_not_for_each_call(arena):
    for _ in range(100):
        blocks = [arena.allocate(MIB // 8) for _ in range(8)]
        del blocks
    assert list(arena.regions.values()) == [MIB]
    blocks = [arena.allocate(MIB // 2) for _ in range(16)]
    assert list(arena.regions.values()) == [MIB, MIB, 2 * MIB, 4 * MIB]
    large = arena.allocate(20 * MIB)
    assert max(arena.regions.values()) == 20 * MIB
    assert len({(block.region, block.offset) for block in [*blocks, large]}) == 17


def test_blocks_of_other_sizes_make_room_before_the_arena_grows(arena):
    blocks = [arena.allocate(PAGE * n) for n in (1, 2, 4, 8, 16, 32, 64)]
    for block in blocks:
        block.release()
    assert arena.allocate(MIB).offset == 0
    assert len(arena.regions) == 1


def test_at_the_limit_there_is_no_block_and_one_warning(caplog):
    arena = TensorArena(budget=MemoryBudget(2 * MIB), step=MIB)
    blocks = [arena.allocate(MIB), arena.allocate(MIB)]
    assert arena.allocate(PAGE) is None
    assert arena.allocate(PAGE) is None
    (warning,) = caplog.messages
    assert re.search("no shared memory .* limit of 2097152 bytes .* inline", warning)
    assert arena.empty((MIB,), F32).flags.owndata
    blocks.pop()
    assert arena.allocate(PAGE) is not None
    with_less = TensorArena(budget=MemoryBudget(PAGE))
    assert with_less.allocate(1) is not None
    assert arena.check_invariants() == with_less.check_invariants() == []


@pytest.mark.parametrize("name", ["posix_fallocate", "memfd_create", "ftruncate"])
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.ENOMEM, errno.EMFILE])
def test_arena_allocates_nothing_if_memory_is_exhausted(caplog, monkeypatch, arena, name, number):
    held = arena.allocate(MIB // 2)

    def refuse(*_):
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        patch.setattr(os, name, refuse)
        assert arena.allocate(MIB) is None
        assert os.strerror(number) in caplog.text
        assert arena.check_invariants() == []
    block = arena.allocate(MIB)  # as soon as there is memory again
    fill(block, 1)
    fill(held, 2)


EXHAUSTED = """
import logging, os, resource
from opdispatch_wire.shared_memory.tensor_arena import TensorArena

arena = TensorArena(step=1 << 20)
assert arena.allocate(1) is not None
{limit}
caught = []
logging.getLogger("opdispatch.memory").addFilter(caught.append)
blocks = []
while (block := arena.allocate(64 << 20)) is not None:
    blocks.append(block)
assert arena.allocate(64 << 20) is None
print(len(caught), caught[0].getMessage())
"""
LIMITS = {
    "Too many open files": "resource.setrlimit(resource.RLIMIT_NOFILE, (8, 8))",
    "Cannot allocate memory": "resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))",
}


@pytest.mark.parametrize("message", LIMITS)
def test_a_process_at_its_real_limits_gets_no_block_and_lives_on(message):
    text = EXHAUSTED.format(limit=LIMITS[message])
    process = subprocess.run(
        [sys.executable, "-c", text], capture_output=True, text=True, timeout=LONGEST_WAIT
    )
    assert process.returncode == 0, process.stderr
    assert process.stdout.startswith("1 no shared memory is left")
    assert message in process.stdout


# -- giving back ----------------------------------------------------------------------------------


def test_idle_regions_are_returned_and_reported():
    clock, dropped = Clock(), []
    arena = TensorArena(step=MIB, idle_seconds=30, on_drop=dropped.append, clock=clock)
    blocks = [arena.allocate(MIB) for _ in range(3)]
    descriptors = [arena.descriptor(block.region) for block in blocks]
    blocks[0].release()
    blocks[1].release()
    clock.now = 29
    arena.trim(idle_seconds=30)
    assert dropped == []
    arena.allocate(MIB).release()  # the freed last is used; the idle time of the first runs on
    clock.now = 59.5
    again = arena.allocate(MIB)
    assert dropped == [1]
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptors[0])
    again.release()
    arena.trim()
    assert dropped == [1, 2]
    assert list(arena.regions) == [3]
    in_use = blocks[2].array((MIB,), np.dtype(np.uint8))
    in_use[:] = 3
    arena.close()
    assert dropped == [1, 2, 3]
    assert (in_use == 3).all(), "readers of a block may go on"
    blocks.clear()
    arena.trim()
    assert arena.allocate(1) is None
    assert arena.check_invariants() == []


def test_abandoned_pages_are_never_handed_out_again():
    dropped = []
    arena = TensorArena(step=MIB, on_drop=dropped.append)
    lost, other = arena.allocate(PAGE), arena.allocate(PAGE)
    arena.allocate(2 * PAGE).release()  # binned in the same region
    arena.abandon([lost.region])
    lost.release()
    assert arena.allocate(PAGE).region != lost.region
    assert arena.allocate(2 * PAGE).region != lost.region
    fill(other, 3)
    assert arena.check_invariants() == []
    other.release()
    arena.trim(idle_seconds=1000)
    assert dropped == [lost.region]
    arena.abandon([lost.region])  # gone already


def test_arrays_outlive_their_arena():
    arena = TensorArena(step=MIB)
    array = arena.empty((PAGE,), F32)
    arena.close()
    arena.trim()
    array[:] = 2
    arena.abandon(arena.regions)
    assert array.sum() == 2 * PAGE
    del arena
    assert array[-1] == 2


def test_an_arena_that_is_collected_leaves_no_descriptor():
    before = own_mappings()
    arena = TensorArena(step=MIB)
    array = arena.empty((PAGE,), F32)
    del arena
    assert own_mappings()["descriptors"] == before["descriptors"]
    array[:] = 2
    del array
    assert own_mappings() == before


# -- empty ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.float32, np.complex128, ">i4", ml_dtypes.bfloat16, bool])
def test_an_empty_array_is_an_array_in_the_arena(arena, dtype):
    array = arena.empty((3, PAGE), np.dtype(dtype))
    assert type(array) is np.ndarray
    assert (array.shape, array.dtype) == ((3, PAGE), dtype)
    assert array.flags.c_contiguous
    assert array.flags.writeable
    assert array.flags.aligned
    address = array.__array_interface__["data"][0]
    assert address % PAGE == 0
    array[...] = 1
    assert arena.find(address, array.nbytes) is not None


def test_tiny_and_odd_arrays_are_ordinary():
    arena = TensorArena()
    assert arena.empty((3,), F32).flags.owndata
    assert arena.empty((0, PAGE), F32).shape == (0, PAGE)
    assert arena.empty((PAGE,), np.dtype(object)).flags.owndata
    assert arena.empty((), np.dtype(float)).shape == ()
    assert arena.regions == {}


def address_of(array):
    return array.__array_interface__["data"][0]


def test_slices_are_recognised_and_other_memory_is_not(arena):
    one, two = arena.empty((2 * PAGE,), F32), arena.empty((PAGE,), F32)
    copy = arena.allocate(PAGE)
    for view, size in ((one, one.nbytes), (one[5:9], 16), (one.reshape(2, -1)[1], 4), (two, 1)):
        block = arena.find(address_of(view), size)
        assert block.address <= address_of(view) < block.address + block.size
    assert arena.find(address_of(one), one.nbytes) is not arena.find(address_of(two), 1)
    end = address_of(one) + one.nbytes
    assert arena.find(end - 1, 2) is None
    assert arena.find(copy.address, 1) is None  # no array of `empty`
    assert arena.find(address_of(np.empty(10)), 1) is None
    assert arena.find(0, 1) is None
    del one, view, block
    assert arena.find(end - PAGE, 1) is None


def test_a_block_is_free_when_the_last_view_of_any_kind_is_gone(arena):
    array = arena.empty((PAGE,), F32)
    place = address_of(array)
    views = [array[1:], memoryview(array), np.from_dlpack(array), array.view(np.uint8).T]
    del array
    while views:
        assert address_of(arena.empty((PAGE,), F32)) != place
        views.pop()
    assert address_of(arena.empty((PAGE,), F32)) == place


def test_the_collector_may_free_blocks_while_the_lock_is_held(arena):
    array = arena.empty((PAGE,), F32)
    cycle = [array]
    cycle.append(cycle)
    del array, cycle
    with arena._lock:
        gc.collect()
    assert arena.check_invariants() == []


# -- threads and processes ------------------------------------------------------------------------


def test_threads_get_blocks_of_their_own(arena):
    faults = []

    def work(number):
        for i in range(150):
            blocks = [arena.allocate(PAGE * (1 + (i * number) % 7)) for _ in range(4)]
            arrays = [b.array((b.size,), np.dtype(np.uint8)) for b in blocks]
            for array in arrays:
                array[:] = number
            if any((array != number).any() for array in arrays):
                faults.append(number)
            del arrays
            for block in blocks[::2]:
                block.release()

    threads = [threading.Thread(target=work, args=(n,)) for n in range(1, 7)]
    for thread in threads:
        thread.start()
    for thread in threads:
        join(thread)
    assert faults == []


FORKED = """
import os
import re
from opdispatch_wire.shared_memory.tensor_arena import TensorArena

arena = TensorArena()
arena.allocate(1).release()
if not os.fork():
    os._exit(0 if arena.allocate(1) is None else 3)
assert os.waitstatus_to_exitcode(os.wait()[1]) == 0
assert arena.allocate(1) is not None
"""


def test_a_forked_child_takes_no_blocks_of_its_parent():
    subprocess.run([sys.executable, "-W", "error", "-c", FORKED], check=True, timeout=LONGEST_WAIT)
