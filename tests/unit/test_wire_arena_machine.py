"""The arena under any order of what can be done to it: no block ever sees another's bytes."""

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from opdispatch_wire.shared_memory.memory_budget import MemoryBudget
from opdispatch_wire.shared_memory.shared_mapping import PAGE
from opdispatch_wire.shared_memory.tensor_arena import TensorArena

MIB = 1 << 20


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


def fill(block, byte):
    block.array((block.size,), np.dtype(np.uint8))[:] = byte


def address_of(array):
    return array.__array_interface__["data"][0]


class ArenaMachine(RuleBasedStateMachine):
    """Every block keeps what was written to it; in the end all is free and whole again."""

    def __init__(self):
        super().__init__()
        self.clock = Clock()
        self.dropped = []
        self.arena = TensorArena(
            budget=MemoryBudget(2 * MIB),
            step=MIB // 4,
            clock=self.clock,
            on_drop=self.dropped.append,
        )
        self.arena._warned = True
        self.held = []
        self.count = 0

    @rule(pages=st.integers(1, 40), less=st.integers(0, PAGE - 1))
    def allocate(self, pages, less):
        nbytes = pages * PAGE - less
        block = self.arena.allocate(nbytes)
        if block is None:
            return
        assert block.size >= nbytes
        assert block.offset % PAGE == 0 == block.address % 64
        self.count = (self.count + 1) % 256
        fill(block, self.count)
        self.held.append((block, self.count))

    @rule(pages=st.integers(1, 20))
    def empty(self, pages):
        array = self.arena.empty((pages * PAGE,), np.dtype(np.uint8))
        block = self.arena.find(address_of(array), array.nbytes)
        if block is not None:
            self.count = (self.count + 1) % 256
            fill(block, self.count)
            self.held.append((block, self.count))

    @rule(which=st.integers(0, 1000), collect=st.booleans())
    def free(self, which, collect):
        if self.held:
            block, byte = self.held.pop(which % len(self.held))
            assert (block.array((block.size,), np.dtype(np.uint8)) == byte).all()
            if not collect:
                block.release()

    @rule(seconds=st.floats(0, 40))
    def wait(self, seconds):
        self.clock.now += seconds
        self.arena.trim(idle_seconds=30)

    @rule(which=st.integers(0, 1000))
    def abandon(self, which):
        if self.held:
            self.arena.abandon([self.held[which % len(self.held)][0].region])

    @invariant()
    def nothing_is_wrong(self):
        assert self.arena.check_invariants() == []
        assert {block.region for block, _ in self.held} <= set(self.arena.regions)

    def teardown(self):
        for block, byte in self.held:
            assert (block.array((block.size,), np.dtype(np.uint8)) == byte).all()
        block = None
        self.held.clear()
        assert self.arena.check_invariants() == []
        whole = max(self.arena.regions.values(), default=0)
        if whole and not any(region.abandoned for region in self.arena._regions.values()):
            before = self.arena.regions
            assert self.arena.allocate(whole) is not None  # all that was free has merged
            assert self.arena.regions == before
        self.arena.trim()
        assert self.arena.regions == {}
        assert len(set(self.dropped)) == len(self.dropped)


TestArenaMachine = ArenaMachine.TestCase
TestArenaMachine.settings = settings(deadline=None, stateful_step_count=30)
