"""Bytes that several arenas may have together."""

from __future__ import annotations

import contextlib
import gc
import threading

import pytest

from opdispatch_wire.lanes.lane_memory import CalleeLaneMemory
from opdispatch_wire.process_memory_limit import memory_limit
from opdispatch_wire.shared_memory.memory_budget import MemoryBudget
from opdispatch_wire.shared_memory.shared_mapping import PAGE
from opdispatch_wire.shared_memory.tensor_arena import TensorArena
from tests.waits import LONGEST_WAIT

MIB = 1 << 20


def test_no_more_is_taken_than_there_is():
    budget = MemoryBudget(10)
    budget.take(7)
    with pytest.raises(OSError, match="the limit of 10 bytes is reached"):
        budget.take(4)
    budget.take(3)
    assert budget.left == 0
    budget.give_back(3)
    assert budget.left == 3
    assert MemoryBudget().left == memory_limit() // 4 > PAGE


def test_arenas_share_one_and_give_back_what_they_have_when_they_end():
    budget = MemoryBudget(3 * MIB)
    one, two = (TensorArena(budget=budget, step=MIB) for _ in range(2))
    blocks = [one.allocate(MIB), one.allocate(MIB), two.allocate(MIB)]
    assert None not in blocks
    assert two.allocate(MIB) is None
    assert one.check_invariants() == two.check_invariants() == []
    one.close()
    assert budget.left == 2 * MIB
    assert two.allocate(MIB) is not None
    del two
    blocks.clear()
    assert budget.left == 3 * MIB


def test_an_arena_may_be_collected_while_another_one_is_refused():
    """It gives back what it has in that very thread: the collector strikes where it likes."""
    budget = MemoryBudget(10)

    def be_refused(allocations: int) -> None:
        CalleeLaneMemory(lambda *frame: None, budget)  # which refers to itself, with its arena
        gc.set_threshold(gc.get_count()[0] + allocations)
        gc.enable()
        with contextlib.suppress(OSError):
            budget.take(11)

    thresholds = gc.get_threshold()
    gc.disable()
    try:
        for allocations in range(10):
            refused = threading.Thread(target=be_refused, args=(allocations,), daemon=True)
            refused.start()
            refused.join(LONGEST_WAIT)
            gc.disable()
            assert not refused.is_alive()
    finally:
        gc.set_threshold(*thresholds)
        gc.enable()
