"""A blocking session's lane to its daemon when it breaks, with a peer that the test plays."""

from __future__ import annotations

import select
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest

from opdispatch_client.endpoint import resolve_endpoint
from opdispatch_client.lanes.to_daemon import DaemonLane
from opdispatch_client.listings import ServerInfo
from opdispatch_wire.errors import DaemonUnavailableError
from tests.service.running_daemon import Background, wait_for
from tests.unit.lane_peer import LIMIT, Peer
from tests.unit.scarce_threads import ScarceThreads
from tests.waits import LONGEST_WAIT, join


class Daemon:
    """It says who it is when the test lets it: each time, or with an error."""

    def __init__(self, path: Path, peer: Peer) -> None:
        self.peer = peer
        self.asked = 0
        self.is_asked = threading.Event()
        self.may_answer = threading.Event()
        self.error: Exception | None = None
        address = f"unix://{path.with_name('daemon')}"
        self.info = ServerInfo(1, "1", LIMIT, 1, 1, (address,), str(path))
        self._channel = grpc.insecure_channel(f"unix:{path.with_name('daemon')}")
        endpoint = resolve_endpoint(address, timeout=None, max_message_bytes=None, lane="local")
        self.lane = DaemonLane(endpoint, self._channel, self._introduce)

    def _introduce(self) -> tuple[ServerInfo, int]:
        self.asked += 1
        self.is_asked.set()
        assert self.may_answer.wait(60)
        if self.error is not None:
            raise self.error
        return self.info, LIMIT

    @contextmanager
    def accepting(self) -> Iterator[None]:
        """The other side of the one lane that is opened meanwhile."""
        accepting = threading.Thread(target=self.peer.accept)
        accepting.start()
        yield
        join(accepting)

    def has_hung_up(self, seconds: float = 0) -> bool:
        """Whether the side under test ends the lane in time."""
        assert self.peer.connection is not None
        is_readable = bool(select.select([self.peer.connection], [], [], seconds)[0])
        return is_readable and self.peer.connection.recv(1) == b""

    def hang_up(self) -> None:
        assert self.peer.connection is not None
        self.peer.connection.close()

    def close(self) -> None:
        self.may_answer.set()
        self.lane.close()
        self._channel.close()


@pytest.fixture
def daemon(peer: Peer, tmp_path: Path) -> Iterator[Daemon]:
    """One whose lane has just broken."""
    daemon = Daemon(tmp_path / "lane", peer)
    with daemon.accepting():
        daemon.lane.open(daemon.info, LIMIT)
    daemon.hang_up()
    yield daemon
    daemon.close()


class Waiter(threading.Thread):
    """A thread that needs the lane."""

    def __init__(self, daemon: Daemon) -> None:
        super().__init__(daemon=True)
        self.outcome: object = None
        self._lane = daemon.lane
        self.start()

    def run(self) -> None:
        try:
            self.outcome = self._lane.get(None)
        except Exception as error:
            self.outcome = error

    @property
    def waits(self) -> bool:
        """Whether it waits for an attempt that goes on without it."""
        frame = sys._current_frames().get(self.ident or 0)
        return frame is not None and frame.f_code is threading.Condition.wait.__code__


def waiters(daemon: Daemon, count: int) -> list[Waiter]:
    """That many, which all wait."""
    threads = [Waiter(daemon) for _ in range(count)]
    assert wait_for(lambda: all(each.waits for each in threads))
    return threads


def outcomes(threads: list[Waiter]) -> list[object]:
    for each in threads:
        each.join(LONGEST_WAIT)
    return [each.outcome for each in threads]


def test_wait_for_a_new_lane_ends_at_the_deadline(daemon: Daemon):
    waiters(daemon, 1)
    for _ in range(2):
        with pytest.raises(TimeoutError):
            daemon.lane.get(time.monotonic() + 0.01)
    assert daemon.asked == 1


def test_attempt_outlives_the_deadline_of_its_beginner_and_serves_others(daemon: Daemon):
    with pytest.raises(TimeoutError):
        daemon.lane.get(time.monotonic())
    threads = waiters(daemon, 2)
    with daemon.accepting():
        daemon.may_answer.set()
    lane = daemon.lane.get(None)
    assert outcomes(threads) == [lane, lane]
    assert not lane.is_closed
    assert daemon.asked == 1


def test_a_peer_that_takes_a_lane_and_does_not_answer_is_not_waited_for(daemon: Daemon):
    daemon.may_answer.set()
    with pytest.raises(TimeoutError):
        daemon.lane.get(time.monotonic() + 0.01)
    daemon.peer.accept_without_answer()
    assert not daemon.has_hung_up()
    daemon.peer.welcome()
    assert not daemon.lane.get(None).is_closed
    assert daemon.asked == 1


def test_waiters_share_the_error_of_one_attempt_and_the_next_retries(daemon: Daemon):
    threads = waiters(daemon, 8)
    daemon.error = DaemonUnavailableError("it is away", hint="wait", address="here")
    daemon.may_answer.set()
    errors = outcomes(threads)
    assert daemon.asked == 1
    for error in errors:
        assert isinstance(error, DaemonUnavailableError)
        assert (str(error), error.facts) == ("it is away (wait)", {"address": "here"})
    assert len({id(error) for error in [daemon.error, *errors]}) == 9  # each raises its own
    daemon.error = None
    with daemon.accepting():
        assert not daemon.lane.get(None).is_closed
    assert daemon.asked == 2


def test_the_error_of_an_attempt_says_where_it_came_up(daemon: Daemon):
    daemon.error = ValueError("a bug")
    daemon.may_answer.set()
    with pytest.raises(ValueError, match="a bug") as why:
        daemon.lane.get(None)
    assert why.traceback[-1].name == "_introduce"


def test_close_fails_waiters_at_once_and_ends_the_new_lane(daemon: Daemon):
    threads = waiters(daemon, 2)
    daemon.lane.close()
    for error in outcomes(threads):
        assert isinstance(error, DaemonUnavailableError)
        assert "is closed" in str(error)
    with daemon.accepting():
        daemon.may_answer.set()
    assert daemon.has_hung_up(20)
    with pytest.raises(DaemonUnavailableError, match="is closed"):
        daemon.lane.get(None)
    assert daemon.asked == 1


def test_without_a_thread_to_spare_each_caller_opens_it_itself(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch
):
    ScarceThreads(monkeypatch, "lane-opening")
    daemon.may_answer.set()
    with daemon.accepting():
        lane = daemon.lane.get(None)
    assert daemon.lane.get(None) is lane
    assert daemon.asked == 1
    daemon.hang_up()
    daemon.error = DaemonUnavailableError("it is away")
    with pytest.raises(DaemonUnavailableError, match="it is away"):
        daemon.lane.get(None)


def test_without_a_thread_to_spare_a_lane_that_comes_after_the_end_is_closed(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch
):
    ScarceThreads(monkeypatch, "lane-opening")
    with Background(daemon.lane.get, None) as call:
        assert daemon.is_asked.wait(LONGEST_WAIT)
        daemon.lane.close()
        with daemon.accepting():
            daemon.may_answer.set()
        with pytest.raises(DaemonUnavailableError, match="is closed"):
            call.result()
    assert daemon.has_hung_up(20)


def test_without_a_thread_to_spare_all_use_the_lane_of_the_quickest(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch
):
    ScarceThreads(monkeypatch, "lane-opening")
    threads = [Waiter(daemon) for _ in range(2)]
    assert wait_for(lambda: daemon.asked == 2)
    daemon.may_answer.set()
    connections = []
    for _ in threads:
        daemon.peer.accept()
        assert daemon.peer.connection is not None
        connections.append(daemon.peer.connection)
    lane, same = outcomes(threads)
    assert lane is same
    assert daemon.lane.get(None) is lane
    (left,) = select.select(connections, [], [], LONGEST_WAIT)[0]
    assert left.recv(1) == b""
    for connection in connections:
        connection.close()
