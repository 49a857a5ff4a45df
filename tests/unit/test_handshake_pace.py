"""The pace of handshakes: how many begin, and what happens to those beyond."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator

import pytest

from opdispatch_server.serving import handshake_pace
from opdispatch_server.serving.handshake_pace import AT_ONCE, PER_SECOND, HandshakePace, listening
from tests.waits import LONGEST_WAIT, accept


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
        self.later: list[tuple[float, Callable[[], None]]] = []

    def pace(self, port: int) -> HandshakePace:
        pace = HandshakePace(lambda: self.now, self.call_later)
        pace.port = port
        return pace

    def call_later(self, seconds: float, function: Callable[[], None]) -> None:
        self.later.append((self.now + seconds, function))

    def pass_until_the_next(self) -> float:
        """Call what is to be called next; return how long that took."""
        before, (self.now, function) = self.now, self.later.pop(0)
        function()
        return self.now - before


def is_open(listener: socket.socket) -> bool:
    """Return whether a connection can be made at once."""
    with socket.socket() as client:
        client.setblocking(False)
        client.connect_ex(listener.getsockname())
        try:
            client.getpeername()
        except OSError:
            return False
        accept(listener).close()
        return True


def port_of(listener: socket.socket) -> int:
    port: int = listener.getsockname()[1]
    return port


def test_port_is_shut_beyond_the_pace_and_opened_again(listener: socket.socket):
    time = Time()
    pace = time.pace(port_of(listener))
    with (
        socket.create_connection(listener.getsockname(), LONGEST_WAIT) as before,
        accept(listener) as other_end,
    ):
        for _ in range(AT_ONCE - 1):
            pace.count()
        assert is_open(listener)
        for _ in range(50):
            pace.count()  # those that were on their way
        assert not is_open(listener)
        other_end.sendall(b"x")
        assert before.recv(1) == b"x", "a connection that there was notices nothing"
    assert len(time.later) == 1
    time.pass_until_the_next()
    assert is_open(listener)


def test_port_is_shut_for_longer_the_more_come_meanwhile(listener: socket.socket):
    time = Time()
    pace = time.pace(port_of(listener))
    for _ in range(AT_ONCE + 200):
        pace.count()
    time.pass_until_the_next()
    pace.count()
    took = time.pass_until_the_next()
    assert took == pytest.approx((200 + 1) / PER_SECOND - handshake_pace.SHORTEST, abs=0.02)


def test_slow_handshakes_never_shut_it(listener: socket.socket):
    time = Time()
    pace = time.pace(port_of(listener))
    for _ in range(3 * AT_ONCE):
        time.now += 1.01 / PER_SECOND
        pace.count()
    assert not time.later
    assert is_open(listener)


def test_port_is_opened_though_no_descriptor_is_left(
    listener: socket.socket, monkeypatch: pytest.MonkeyPatch
):
    time = Time()
    pace = time.pace(port_of(listener))
    for _ in range(AT_ONCE + 1):
        pace.count()

    def fail(path: str) -> list[str]:
        raise OSError(24, "Too many open files")

    with monkeypatch.context() as patched:
        patched.setattr(os, "listdir", fail)
        time.pass_until_the_next()
    assert not is_open(listener)
    time.pass_until_the_next()
    assert is_open(listener)


def test_sockets_that_are_found_stay_their_owners(listener: socket.socket):
    assert [found.fileno() for found in listening(port_of(listener))] == [listener.fileno()]
    assert is_open(listener)
