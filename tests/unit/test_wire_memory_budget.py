"""Bytes that several arenas may have together."""

from __future__ import annotations

import pytest

from opdispatch_wire.memory_budget import MemoryBudget, quarter_of_memory
from opdispatch_wire.shared_mapping import PAGE
from opdispatch_wire.tensor_arena import TensorArena

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
    assert MemoryBudget().left == quarter_of_memory() > PAGE


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
