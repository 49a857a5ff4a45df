"""The budget of bytes of large calls."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from opdispatch_server.daemon.calls.byte_budget import ByteBudget


def test_calls_within_the_budget_enter_at_once_and_others_in_order():
    budget = ByteBudget(100)
    came_in: list[str] = []
    assert budget.take(60, lambda: came_in.append("never"))
    assert not budget.take(50, lambda: came_in.append("first"))
    assert not budget.take(10, lambda: came_in.append("second"))  # it would fit, and has to wait
    budget.give_back(60)
    assert came_in == ["first", "second"]
    assert budget.used == 60


def test_one_that_is_larger_than_the_budget_is_let_in_alone():
    budget = ByteBudget(100)
    came_in: list[str] = []
    assert budget.take(10, lambda: None)
    assert not budget.take(1000, lambda: came_in.append("large"))
    budget.give_back(10)
    assert came_in == ["large"]
    assert not budget.take(1, lambda: came_in.append("small"))
    budget.give_back(1000)
    assert came_in == ["large", "small"]


def test_released_bytes_admit_the_next_waiter():
    budget = ByteBudget(100)
    came_in: list[str] = []

    def impatient() -> None:
        came_in.append("impatient")

    assert budget.take(90, lambda: None)
    assert not budget.take(20, impatient)
    assert not budget.take(10, lambda: came_in.append("patient"))
    budget.leave(impatient)
    assert came_in == ["patient"]
    assert budget.used == 100


@given(st.lists(st.tuples(st.integers(1, 150), st.integers(0, 3)), max_size=40))
def test_budget_is_exceeded_by_one_call_at_most_and_serves_all(steps):
    budget = ByteBudget(100)
    inside: list[int] = []
    waiting: list[int] = []
    for size, leaving in steps:

        def enter(size: int = size) -> None:
            waiting.remove(size)
            inside.append(size)

        waiting.append(size)
        if budget.take(size, enter):
            enter()
        for _ in range(min(leaving, len(inside))):
            budget.give_back(inside.pop(0))
        assert budget.used == sum(inside)
        assert sum(inside) <= 100 or len(inside) == 1
        assert inside or not waiting
    while inside:
        budget.give_back(inside.pop(0))
    assert not waiting
