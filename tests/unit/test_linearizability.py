"""The checker of histories: it accepts what has an order, and nothing else."""

from __future__ import annotations

import itertools
import math
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opdispatch_stress.linearizability import (
    UNKNOWN,
    Operation,
    UnexplainedError,
    check_linearizable,
)


def register(state, kind, argument, response):
    """A register: it has what was written last, and knows how to compare and swap."""
    if kind == "write":
        return [argument]
    if kind == "read":
        return [state] if response in (state, UNKNOWN) else []
    expected, new = argument
    swapped = state == expected
    return [new if swapped else state] if response in (swapped, UNKNOWN) else []


def history(*operations, name="x"):
    """From (kind, argument, response, invoked, returned)."""
    return [Operation(name, *operation) for operation in operations]


def is_linearizable(operations, looks=()):
    try:
        check_linearizable(operations, 0, register, looks=looks)
    except UnexplainedError:
        return False
    return True


ACCEPTED = {
    "nothing": [],
    "one after the other": [("write", 1, None, 0, 1), ("read", None, 1, 2, 3)],
    "the old value while it is overwritten": [
        ("write", 1, None, 0, 9),
        ("read", None, 0, 1, 2),
        ("read", None, 1, 3, 4),
    ],
    "a read that began before": [("write", 1, None, 2, 3), ("read", None, 0, 1, 9)],
    "a write without an answer that was read": [
        ("write", 1, UNKNOWN, 0, math.inf),
        ("read", None, 1, 5, 6),
    ],
    "a write without an answer that was lost": [
        ("write", 1, UNKNOWN, 0, math.inf),
        ("read", None, 0, 5, 6),
    ],
    "a write without an answer that was late": [
        ("write", 1, UNKNOWN, 0, math.inf),
        ("read", None, 0, 5, 6),
        ("read", None, 1, 7, 8),
    ],
    "one of two swaps": [("swap", (0, 1), True, 0, 5), ("swap", (0, 2), False, 0, 5)],
}
PLANTED = {
    "a value never written": [("read", None, 7, 0, 1)],
    "a lost update": [("write", 1, None, 0, 1), ("read", None, 0, 2, 3)],
    "a stale read after a fresh one": [
        ("write", 1, None, 0, 9),
        ("read", None, 1, 1, 2),
        ("read", None, 0, 3, 4),
    ],
    "two swaps from one value": [("swap", (0, 1), True, 0, 5), ("swap", (0, 2), True, 0, 5)],
    "readers who disagree on the order": [
        ("write", 1, None, 0, 1),
        ("write", 2, None, 2, 10),
        ("write", 3, None, 2, 10),
        ("read", None, 2, 3, 4),
        ("read", None, 3, 5, 6),
        ("read", None, 2, 7, 8),
    ],
    "an effect before its cause": [("read", None, 1, 0, 1), ("write", 1, UNKNOWN, 2, math.inf)],
}


@pytest.mark.parametrize("story", ACCEPTED)
def test_linearizable_history_is_accepted(story):
    check_linearizable(history(*ACCEPTED[story]), 0, register)


@pytest.mark.parametrize("story", PLANTED)
def test_a_planted_violation_is_found(story):
    with pytest.raises(UnexplainedError, match="operations on x fit no order"):
        check_linearizable(history(*PLANTED[story]), 0, register)


def test_objects_are_distinguished():
    fine = history(("write", 1, None, 0, 1), ("read", None, 1, 2, 3), name="a")
    wrong = history(("read", None, 1, 2, 3), name="b")
    with pytest.raises(UnexplainedError, match="1 operations on b"):
        check_linearizable([*fine, *wrong], 0, register)


def has_order(operations):
    """By brute force: any order of any of those without an answer, with all that have one."""
    known = [op for op in operations if op.response is not UNKNOWN]
    open_ended = [op for op in operations if op.response is UNKNOWN]
    return any(
        explains(order)
        for count in range(len(open_ended) + 1)
        for chosen in itertools.combinations(open_ended, count)
        for order in itertools.permutations([*known, *chosen])
    )


def explains(order):
    for place, operation in enumerate(order):
        if any(later.returned < operation.invoked for later in order[place:]):
            return False
    states = {0}
    for op in order:
        states = {s for state in states for s in register(state, op.kind, op.argument, op.response)}
    return bool(states)


values = st.integers(0, 2)


@st.composite
def operations(draw):
    kind = draw(st.sampled_from(["write", "read", "swap"]))
    invoked = draw(st.integers(0, 12))
    returned = invoked + draw(st.integers(0, 8)) + 0.5
    if kind == "write":
        argument, response = draw(values), draw(st.sampled_from([None, None, UNKNOWN]))
    elif kind == "read":
        argument, response = None, draw(values)
    else:
        argument = (draw(values), draw(values))
        response = draw(st.sampled_from([True, False, UNKNOWN]))
    if response is UNKNOWN:
        returned = math.inf
    return Operation("x", kind, argument, response, invoked, returned)


@pytest.mark.parametrize("looks", [(), {"read"}])
@given(st.lists(operations(), max_size=6))
def test_checker_agrees_with_brute_force(looks, found):
    assert is_linearizable(found, looks) == has_order(found)


def test_a_search_that_is_given_up_accuses_nothing():
    wrong = history(*PLANTED["readers who disagree on the order"])
    check_linearizable(wrong, 0, register, most=2)
    with pytest.raises(UnexplainedError):
        check_linearizable(wrong, 0, register, most=1000)


@pytest.mark.parametrize("seed", range(10))
def test_a_true_register_is_never_accused(seed):
    """Operations at known moments, whose times are widened at random, always pass."""
    random = Random(seed)
    state, done = 0, []
    for moment in range(400):
        kind = random.choice(["write", "read", "swap"])
        argument = {"write": random.randrange(3), "read": None}.get(
            kind, (random.randrange(3), random.randrange(3))
        )
        response = {"write": None, "read": state}.get(kind, kind == "swap" and state == argument[0])
        [state] = register(state, kind, argument, response)
        known = kind != "write" or random.random() < 0.95
        times = moment - random.expovariate(0.3), moment + random.expovariate(0.3)
        if known:
            done.append(Operation("x", kind, argument, response, *times))
        else:
            done.append(Operation("x", kind, argument, UNKNOWN, times[0], math.inf))
    random.shuffle(done)
    check_linearizable(done, 0, register)
    check_linearizable(done, 0, register, looks={"read"})


@pytest.mark.parametrize("seed", range(10))
def test_one_stale_read_among_many_is_found(seed):
    random = Random(seed)
    stale = random.randrange(2, 300)
    done = []
    for value in range(1, 300):
        done.append(Operation("x", "write", value, None, value, value + 0.5))
        for _ in range(3):
            invoked = value + random.random() * 0.5
            done.append(Operation("x", "read", None, value, invoked, value + 0.9))
    check_linearizable(done, 0, register)
    done.append(Operation("x", "read", None, stale - 2, stale + 0.1, stale + 0.2))
    assert not is_linearizable(done)
