"""Turns in several libraries at once: no call waits for ever, and none runs beside another."""

from __future__ import annotations

import random
import threading

from opdispatch_server.worker.libraries.loaded import LoadedLibrary
from opdispatch_server.worker.libraries.several_turns import turns_of_all
from tests.waits import LONGEST_WAIT


def _libraries(count: int, limit: int = 1) -> list[LoadedLibrary]:
    return [
        LoadedLibrary(number, f"library {number}", [], max_concurrency=limit)
        for number in range(1, count + 1)
    ]


class _Call:
    """A call of one library that waits in a queue, and whom it is given back to."""

    size = 1

    def __init__(self, operator: str) -> None:
        self.operator = operator
        self.source = operator
        self.started = threading.Event()

    def start(self, turns: object) -> None:
        self.started.set()


def test_call_behind_a_program_starts_when_the_program_ends():
    one, two = _libraries(2)
    call = _Call("a::b")
    with turns_of_all([two, one], "a program"):
        assert not two.turns.begin(call, 1)
        assert not call.started.is_set()
    assert call.started.is_set()
    assert two.turns.end() is None
    assert one.turns.begin(call, 1), "its turns are free again"


def test_a_program_waits_for_the_call_before_it():
    one, two = _libraries(2)
    first = _Call("a::b")
    assert two.turns.begin(first, 1)
    inside = threading.Event()

    def run() -> None:
        with turns_of_all([one, two], "a program"):
            inside.set()

    thread = threading.Thread(target=run)
    thread.start()
    assert not inside.wait(0.05)
    waiting = two.turns.end()
    assert waiting is not None
    waiting.start(two.turns)
    assert inside.wait(LONGEST_WAIT)
    thread.join(LONGEST_WAIT)


def test_many_programs_with_libraries_in_any_order_all_end():
    libraries = _libraries(5)
    running: dict[int, int] = dict.fromkeys(range(1, 6), 0)
    wrong: list[int] = []
    barrier = threading.Barrier(8)

    def run(seed: int) -> None:
        randomness = random.Random(seed)
        barrier.wait(LONGEST_WAIT)
        for _ in range(100):
            mine = randomness.sample(libraries, 3)
            with turns_of_all(mine, "a program"):
                for library in mine:
                    running[library.load_id] += 1
                    if running[library.load_id] != 1:
                        wrong.append(library.load_id)
                for library in mine:
                    running[library.load_id] -= 1

    threads = [threading.Thread(target=run, args=(seed,), daemon=True) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LONGEST_WAIT)
        assert not thread.is_alive(), "two programs wait for each other"
    assert wrong == []


def test_a_turn_is_given_back_when_the_program_fails():
    one, two = _libraries(2)
    try:
        with turns_of_all([one, two], "a program"):
            raise ZeroDivisionError
    except ZeroDivisionError:
        pass
    for library in (one, two):
        assert library.turns.begin(_Call("a::b"), 1)
