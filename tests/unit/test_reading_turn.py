"""The right to read a lane: one thread has it, and none that is busy keeps it."""

from __future__ import annotations

import threading
import time

import pytest

from opdispatch_server.serving import reading_turn
from opdispatch_server.serving.reading_turn import PATIENCE, ReadingTurn, hand_over_turn
from opdispatch_server.worker.incoming.turn_watch import TurnWatch
from tests.waits import LONGEST_WAIT

LONG_AGO = 1.0
"""A thread that runs kernels since then has run them for too long."""


@pytest.fixture
def started() -> list[int]:
    return []


@pytest.fixture
def turn(started: list[int]) -> ReadingTurn:
    return ReadingTurn(started.append)


def test_another_thread_reads_when_a_kernel_takes_too_long(turn: ReadingTurn, started: list[int]):
    turn.begin_kernel(1, LONG_AGO)
    assert turn.hand_over_if_stuck()
    assert started == [2]
    assert not turn.is_at(1)
    assert turn.is_at(2)


def test_thread_that_has_lost_the_turn_is_away_until_it_rests(turn: ReadingTurn):
    assert turn.away == 0
    turn.hand_over(1)
    assert turn.away == 1
    turn.hand_over(2)
    assert turn.away == 2
    turn.close()
    assert turn.rest() is None
    assert turn.away == 1


def test_many_short_kernels_take_as_long_as_a_long_one(turn: ReadingTurn, started: list[int]):
    turn.begin_kernel(1, time.monotonic() - 2 * PATIENCE)
    turn.begin_kernel(1, time.monotonic())
    turn.hand_over_if_stuck()
    assert started == [2]


def test_thread_that_reads_between_kernels_keeps_the_turn(turn: ReadingTurn, started: list[int]):
    turn.begin_kernel(1, LONG_AGO)
    turn.end_kernels(1)
    turn.begin_kernel(1, time.monotonic() + 1)
    turn.hand_over_if_stuck()
    assert started == []


def test_reading_thread_keeps_the_turn(turn: ReadingTurn, started: list[int]):
    turn.begin_kernel(1, LONG_AGO)
    turn.end_kernels(1)
    assert turn.hand_over_if_stuck()  # it was busy
    assert not turn.hand_over_if_stuck()  # and is not any more
    assert started == []


def test_thread_without_the_turn_does_not_affect_its_owner(turn: ReadingTurn, started: list[int]):
    turn.hand_over(1)
    turn.begin_kernel(1, LONG_AGO)
    assert not turn.hand_over_if_stuck()
    turn.begin_kernel(2, LONG_AGO)
    turn.end_kernels(1)
    turn.hand_over(1)
    assert started == [2]
    turn.hand_over_if_stuck()
    assert started == [2, 3]


def test_on_pass_runs_before_the_next_thread_reads():
    seen: list[object] = []
    turn = ReadingTurn(seen.append, on_pass=lambda: seen.append("passed"))
    turn.hand_over(1)
    assert seen == ["passed", 2]


def test_a_kernel_that_waits_lets_others_read(turn: ReadingTurn, started: list[int]):
    turn.become_mine(1)
    hand_over_turn()
    hand_over_turn()
    assert started == [2]


def test_a_thread_that_rests_reads_before_one_is_started(turn: ReadingTurn, started: list[int]):
    turns: list[int | None] = []
    resting = threading.Thread(target=lambda: turns.append(turn.rest()))
    resting.start()
    while not turn._resting:
        time.sleep(0.001)
    turn.hand_over(1)
    resting.join(LONGEST_WAIT)
    assert turns == [2]
    assert started == []


def test_no_turn_follows_the_end(turn: ReadingTurn, started: list[int]):
    turns: list[int | None] = []
    resting = threading.Thread(target=lambda: turns.append(turn.rest()))
    resting.start()
    while not turn._resting:
        time.sleep(0.001)
    turn.close()
    resting.join(LONGEST_WAIT)
    turn.hand_over(1)
    assert turns == [None]
    assert turn.rest() is None
    assert started == []


def test_thread_does_not_read_if_the_turn_is_taken_meanwhile(
    turn: ReadingTurn, started: list[int], monkeypatch: pytest.MonkeyPatch
):
    reads: list[bool] = []

    def read_on() -> None:
        turn.end_kernels(1)
        reads.append(turn.is_at(1))

    def now() -> float:
        """In the middle of the decision, the kernel ends."""
        reader.start()
        reader.join(0.1)
        return 2 * LONG_AGO

    reader = threading.Thread(target=read_on)
    monkeypatch.setattr("opdispatch_server.serving.reading_turn.time.monotonic", now)
    turn.begin_kernel(1, LONG_AGO)
    turn.hand_over_if_stuck()
    monkeypatch.undo()
    reader.join(LONGEST_WAIT)
    assert started == [2]
    assert reads == [False]


def test_watch_takes_the_turn_from_a_busy_thread():
    given = threading.Event()
    taken: list[int] = []

    def start(number: int) -> None:
        taken.append(number)
        given.set()

    watch = TurnWatch()
    turn = ReadingTurn(start)
    watch.add(turn)
    turn.begin_kernel(1, time.monotonic())
    watch.notice()
    assert given.wait(LONGEST_WAIT)
    watch.remove(turn)
    watch.stop()
    assert taken == [2]


class Threads:
    """Starts threads while there ``are_any``."""

    def __init__(self) -> None:
        self.started: list[int] = []
        self.tries = 0
        self.are_any = True

    def start(self, turn: int) -> None:
        self.tries += 1
        if not self.are_any:
            raise RuntimeError("can't start new thread")
        self.started.append(turn)


@pytest.fixture
def threads() -> Threads:
    return Threads()


@pytest.fixture
def scarce_turn(threads: Threads) -> ReadingTurn:
    """A turn whose first thread runs a kernel, and for which no other can be started."""
    turn = ReadingTurn(threads.start)
    threads.are_any = False
    turn.hand_over(1)
    return turn


def test_thread_takes_a_vacant_turn_after_its_kernel(scarce_turn: ReadingTurn):
    assert not scarce_turn.is_at(1)
    assert scarce_turn.rest() == 2
    assert scarce_turn.is_at(2)


def test_free_turn_is_given_to_one_thread_only(scarce_turn: ReadingTurn):
    assert scarce_turn.rest() == 2
    scarce_turn.close()
    assert scarce_turn.rest() is None


@pytest.mark.parametrize("seconds", [0, 3600])
def test_a_thread_is_tried_for_now_and_then(
    threads: Threads, monkeypatch: pytest.MonkeyPatch, seconds: int
):
    monkeypatch.setattr(reading_turn, "_TRY_AGAIN", seconds)
    turn = ReadingTurn(threads.start)
    threads.are_any = False
    turn.hand_over(1)
    threads.are_any = True
    is_vacant = turn.hand_over_if_stuck()  # look again if so
    assert (is_vacant, threads.started) == ((True, []) if seconds else (False, [2]))


def test_lack_of_threads_is_logged_once(
    threads: Threads, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr(reading_turn, "_TRY_AGAIN", 0)
    turn = ReadingTurn(threads.start)
    threads.are_any = False
    turn.hand_over(1)
    turn.hand_over_if_stuck()
    turn.hand_over_if_stuck()
    assert threads.tries == 3
    assert len(caplog.records) == 1


def test_closed_free_turn_stays_free(scarce_turn: ReadingTurn, threads: Threads):
    scarce_turn.close()
    threads.are_any = True
    scarce_turn.hand_over_if_stuck()
    assert threads.started == []
