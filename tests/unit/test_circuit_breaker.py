"""When calls of an operator are refused."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from opdispatch_server.blame.circuit_breaker import LONGEST_PAUSE, PROBE_PATIENCE, CircuitBreaker


def test_one_death_does_not_open_a_circuit():
    circuit = CircuitBreaker()
    circuit.note_death(0.0)
    assert [circuit.try_pass(0.0) for _ in range(3)] == [0.0, 0.0, 0.0]


def test_circuit_opens_for_a_time_that_doubles():
    circuit, now, pauses = CircuitBreaker(), 0.0, []
    circuit.note_death(now)
    for _ in range(9):
        circuit.note_death(now)
        pauses.append(circuit.try_pass(now))
        now += pauses[-1]
        assert circuit.try_pass(now) == 0.0
    assert pauses == [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0, 60.0]


def test_one_probe_is_let_through_and_closes_the_circuit_if_it_goes_well():
    circuit = CircuitBreaker()
    circuit.note_death(0.0)
    circuit.note_death(0.0)
    assert circuit.try_pass(0.5) == 0.5
    assert circuit.try_pass(1.0) == 0.0
    assert circuit.try_pass(1.0) > 0
    circuit.note_success()
    assert circuit.try_pass(1.0) == circuit.try_pass(1.0) == 0.0


def test_probe_that_comes_to_nothing_makes_room_for_another_one():
    circuit = CircuitBreaker()
    circuit.note_death(0.0)
    circuit.note_death(0.0)
    assert circuit.try_pass(1.0) == 0.0
    circuit.note_nothing()
    assert circuit.try_pass(1.0) == 0.0
    assert circuit.try_pass(1.0) > 0
    assert circuit.try_pass(1.0 + PROBE_PATIENCE) == 0.0


@given(
    st.lists(st.tuples(st.sampled_from(["death", "success", "nothing", "call"]), st.floats(0, 99)))
)
def test_no_call_is_ever_refused_for_longer_than_the_limit(story):
    circuit, now = CircuitBreaker(), 0.0
    for what, pause in story:
        now += pause
        if what == "death":
            circuit.note_death(now)
        elif what == "success":
            circuit.note_success()
        elif what == "nothing":
            circuit.note_nothing()
        else:
            assert 0.0 <= circuit.try_pass(now) <= LONGEST_PAUSE
    assert circuit.try_pass(now + LONGEST_PAUSE + PROBE_PATIENCE) == 0.0
