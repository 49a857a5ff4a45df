"""The pace of handshakes: how many begin, and who waits beyond that."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Callable, Iterator

import pytest

from opdispatch_server.serving import handshake_pace
from opdispatch_server.serving.connection_limits import ACCEPT_QUEUE
from opdispatch_server.serving.handshake_pace import (
    AT_ONCE,
    FLOOD_SHARE,
    HANDSHAKES_PER_CHECK,
    LONGEST,
    MOST_PLACES,
    PER_SECOND,
    SHORTEST,
    HandshakePace,
)
from tests.unit.test_address_filter import LOOPBACK, connected_from, is_open, port_of
from tests.waits import LONGEST_WAIT

PLACES = 40
# Twice the least: a port that one of the last flood had counts for no new connection.
FLOOD = 2 * int(FLOOD_SHARE * HANDSHAKES_PER_CHECK)
STRANGER, ANOTHER, NEIGHBOR = "127.0.0.2", "127.0.0.3", "127.0.0.4"


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        found.listen()
        yield found


class Time:
    """A clock that stands still, and what is to be called later."""

    def __init__(self) -> None:
        self.now = 100.0
        self.later: list[tuple[float, Callable[[], float | None]]] = []
        self.has_threads = True

    def pace(self, port: int) -> HandshakePace:
        pace = HandshakePace(PLACES, lambda: self.now, self.call_later)
        pace.port = port
        return pace

    def call_later(self, seconds: float, function: Callable[[], float | None]) -> None:
        if not self.has_threads:
            raise RuntimeError("can't start new thread")
        self.later.append((self.now + seconds, function))

    def pass_until_all_are_let_in(self) -> None:
        while self.later:
            self.pass_until_the_next()

    def pass_until_the_next(self) -> float:
        """Call what is to be called next; return how long that took."""
        before, (self.now, function) = self.now, self.later.pop(0)
        again = function()
        if again is not None:
            self.later.append((self.now + again, function))
        return self.now - before


def fail_without_descriptors(path: str) -> list[str]:
    raise OSError(24, "Too many open files")


def count(pace: HandshakePace, times: int) -> None:
    for _ in range(times):
        pace.count()


def test_address_that_floods_is_shut_out_and_no_other(listener: socket.socket):
    time = Time()
    pace = time.pace(port_of(listener))
    count(pace, AT_ONCE)
    with connected_from(listener, *[STRANGER] * FLOOD, ANOTHER):
        assert is_open(listener, STRANGER)
        count(pace, HANDSHAKES_PER_CHECK)
        assert not is_open(listener, STRANGER)
        assert is_open(listener, ANOTHER)
        assert is_open(listener, NEIGHBOR)
    time.pass_until_the_next()
    assert is_open(listener, STRANGER)


def test_flood_does_not_shut_out_connected_neighbors(listener: socket.socket):
    pace = Time().pace(port_of(listener))
    with connected_from(listener, *[NEIGHBOR] * 20):
        count(pace, AT_ONCE)
        with connected_from(listener, *[STRANGER] * FLOOD):
            count(pace, HANDSHAKES_PER_CHECK)
            assert is_open(listener, NEIGHBOR)
            assert not is_open(listener, STRANGER)


def test_second_flood_is_shut_out_beside_the_first(listener: socket.socket):
    time = Time()
    pace = time.pace(port_of(listener))
    count(pace, AT_ONCE)
    with contextlib.ExitStack() as stack:
        for flood in (STRANGER, ANOTHER):
            stack.enter_context(connected_from(listener, *[flood] * FLOOD))
            count(pace, ACCEPT_QUEUE + HANDSHAKES_PER_CHECK)
        assert [is_open(listener, each) for each in (STRANGER, ANOTHER, NEIGHBOR)] == [0, 0, 1]
        time.pass_until_the_next()
        assert [is_open(listener, each) for each in (STRANGER, ANOTHER, NEIGHBOR)] == [1, 0, 1]
        time.pass_until_the_next()
        assert [is_open(listener, each) for each in (STRANGER, ANOTHER, NEIGHBOR)] == [1, 1, 1]


@pytest.mark.parametrize("addresses", [[], [f"127.0.1.{host}" for host in range(9)]])
def test_flood_of_no_address_or_of_many_shuts_all_out(
    listener: socket.socket, addresses: list[str]
):
    time = Time()
    pace = time.pace(port_of(listener))
    with (
        connected_from(listener, NEIGHBOR) as [(before, other_end)],
    ):
        count(pace, AT_ONCE)
        with connected_from(listener, *addresses):
            count(pace, HANDSHAKES_PER_CHECK)
        assert not is_open(listener, NEIGHBOR)
        other_end.sendall(b"x")
        assert before.recv(1) == b"x", "a connection that there was notices nothing"
    time.pass_until_all_are_let_in()
    assert is_open(listener, LOOPBACK)


def test_flood_shuts_all_out_where_the_system_tells_no_addresses(
    listener: socket.socket, monkeypatch: pytest.MonkeyPatch
):
    def fail(port: int) -> Iterator[object]:
        raise OSError(93, "Protocol not supported")

    monkeypatch.setattr(handshake_pace, "port_connections", fail)
    time = Time()
    count(time.pace(port_of(listener)), AT_ONCE + HANDSHAKES_PER_CHECK)
    assert not is_open(listener, LOOPBACK)
    time.pass_until_all_are_let_in()
    assert is_open(listener, LOOPBACK)


def test_flood_is_shut_out_for_longer_the_more_came_meanwhile(listener: socket.socket):
    time = Time()
    pace = time.pace(port_of(listener))
    count(pace, AT_ONCE + HANDSHAKES_PER_CHECK + ACCEPT_QUEUE)
    assert time.pass_until_the_next() == pytest.approx(HANDSHAKES_PER_CHECK / PER_SECOND)
    time.pass_until_all_are_let_in()
    count(pace, HANDSHAKES_PER_CHECK)
    took = time.pass_until_the_next()
    assert took == pytest.approx((ACCEPT_QUEUE + HANDSHAKES_PER_CHECK) / PER_SECOND)


def test_flood_is_shut_out_for_no_longer_however_many_come_meanwhile(listener: socket.socket):
    time = Time()
    pace = time.pace(port_of(listener))
    count(pace, 5 * AT_ONCE)
    time.pass_until_all_are_let_in()
    count(pace, HANDSHAKES_PER_CHECK)
    assert LONGEST / 2 < time.pass_until_the_next() <= LONGEST + 0.01


def test_flood_that_could_not_be_shut_out_is_at_the_next_look(
    listener: socket.socket, monkeypatch: pytest.MonkeyPatch
):
    time = Time()
    pace = time.pace(port_of(listener))
    with monkeypatch.context() as patched:
        patched.setattr(os, "listdir", fail_without_descriptors)
        count(pace, AT_ONCE + HANDSHAKES_PER_CHECK)
    time.has_threads = False
    count(pace, ACCEPT_QUEUE + HANDSHAKES_PER_CHECK)
    assert is_open(listener, LOOPBACK)
    time.has_threads = True
    count(pace, HANDSHAKES_PER_CHECK)
    assert not is_open(listener, LOOPBACK)


def test_schedule_of_a_failed_shutting_out_lets_no_address_in_early(
    listener: socket.socket, monkeypatch: pytest.MonkeyPatch
):
    time = Time()
    pace = time.pace(port_of(listener))
    with monkeypatch.context() as patched:
        patched.setattr(os, "listdir", fail_without_descriptors)
        count(pace, AT_ONCE + HANDSHAKES_PER_CHECK)
    failed = len(time.later)
    assert failed
    time.now += SHORTEST / 2
    count(pace, AT_ONCE)
    assert not is_open(listener, LOOPBACK)
    for _ in range(failed):
        time.pass_until_the_next()
    assert not is_open(listener, LOOPBACK)
    time.pass_until_all_are_let_in()
    assert is_open(listener, LOOPBACK)


def test_address_is_let_in_again_though_no_thread_can_be_started(listener: socket.socket):
    time = Time()
    pace = time.pace(port_of(listener))
    with connected_from(listener, *[STRANGER] * int(MOST_PLACES * PLACES)):
        count(pace, HANDSHAKES_PER_CHECK)
        time.has_threads = False
        time.pass_until_the_next()
        assert not is_open(listener, STRANGER)
    time.pass_until_the_next()
    assert is_open(listener, STRANGER)


def test_function_is_called_later_as_often_as_it_asks_for():
    left, called = [0.0, 0.0, None], threading.Event()

    def function() -> float | None:
        again = left.pop(0)
        if not left:
            called.set()
        return again

    handshake_pace._call_later(0.0, function)
    assert called.wait(LONGEST_WAIT)


def test_address_that_floods_again_is_shut_out_for_twice_as_long(listener: socket.socket):
    time = Time()
    pace = time.pace(port_of(listener))

    def flood() -> float:
        """Return for how many seconds it is shut out."""
        while not time.later:
            with connected_from(listener, *[STRANGER] * FLOOD):
                count(pace, HANDSHAKES_PER_CHECK)
        return time.pass_until_the_next()

    first, *took = (flood() for _ in range(8))
    assert took[1:] == pytest.approx([min(2 * seconds, LONGEST) for seconds in took[:-1]])
    assert took[-1] == pytest.approx(LONGEST)
    time.now += 2 * LONGEST
    assert flood() <= first + 0.01


def test_unseen_flood_is_attributed_to_the_last_flooder(listener: socket.socket):
    time = Time()
    pace = time.pace(port_of(listener))
    while not time.later:
        with connected_from(listener, *[STRANGER] * FLOOD):
            count(pace, HANDSHAKES_PER_CHECK)
    time.pass_until_the_next()
    while not time.later:
        count(pace, HANDSHAKES_PER_CHECK)
    assert [is_open(listener, each) for each in (STRANGER, NEIGHBOR)] == [0, 1]
    count(pace, ACCEPT_QUEUE)  # its own, that waited
    assert is_open(listener, NEIGHBOR)
    count(pace, HANDSHAKES_PER_CHECK)
    assert [is_open(listener, each) for each in (STRANGER, NEIGHBOR)] == [0, 0], "it was another"


def test_slow_handshakes_shut_no_address_out(listener: socket.socket):
    time = Time()
    pace = time.pace(port_of(listener))
    with connected_from(listener, STRANGER):
        for _ in range(3 * AT_ONCE):
            time.now += 1.01 / PER_SECOND
            pace.count()
    assert not time.later
    assert is_open(listener, STRANGER)


def test_address_with_most_of_the_places_is_shut_out_until_it_has_fewer(listener: socket.socket):
    time = Time()
    pace = time.pace(port_of(listener))
    with connected_from(listener, *[STRANGER] * (int(MOST_PLACES * PLACES) - 1)):
        count(pace, HANDSHAKES_PER_CHECK)
        assert is_open(listener, STRANGER)
        with connected_from(listener, STRANGER):
            count(pace, HANDSHAKES_PER_CHECK)
            assert not is_open(listener, STRANGER)
            assert is_open(listener, NEIGHBOR)
            time.pass_until_the_next()
            assert not is_open(listener, STRANGER)
    time.pass_until_the_next()
    assert is_open(listener, STRANGER)
    assert not time.later


def test_port_is_opened_though_no_descriptor_is_left(
    listener: socket.socket, monkeypatch: pytest.MonkeyPatch
):
    time = Time()
    count(time.pace(port_of(listener)), AT_ONCE + HANDSHAKES_PER_CHECK)

    with monkeypatch.context() as patched:
        patched.setattr(os, "listdir", fail_without_descriptors)
        time.pass_until_the_next()
    assert not is_open(listener, LOOPBACK)
    time.pass_until_all_are_let_in()
    assert is_open(listener, LOOPBACK)
