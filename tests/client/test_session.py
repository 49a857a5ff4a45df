"""The blocking session."""

from __future__ import annotations

import copy
import pickle
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import opdispatch_client as oc
from opdispatch_client.endpoint import LaneChoice
from tests.service.running_daemon import RunningDaemon, wait_for
from tests.waits import LONGEST_WAIT

pytestmark = pytest.mark.smoke

NOWHERE = "unix:///nowhere/daemon.sock"


def test_an_operator_may_have_arguments_of_any_name(session: oc.Session):
    x, y = np.arange(2), np.arange(3)
    for call in (session.ops.park.move, lambda **kwargs: session.call("park::move", **kwargs)):
        moved, operator, timeout = call(self=x, operator=y, timeout=7)
        assert (moved.tolist(), operator.tolist(), timeout) == ([0, 1], [0, 1, 2], 7)
    assert session.trace("park::move", x, operator=y)[0][2] == 0


def test_an_array_that_is_written_to_is_the_callers_own(session: oc.Session):
    x = np.zeros(3)
    assert session.ops.park.increase_(x) is x
    assert x.tolist() == [1, 1, 1]


def test_many_threads_share_a_session(session: oc.Session):
    def call(number: int) -> bool:
        return bool((session.ops.park.double(np.full(10, number)) == 2 * number).all())

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(call, range(200)))


def test_session_shows_server_info(daemon: RunningDaemon, session: oc.Session):
    info = session.server_info
    assert (info.pid, info.protocol_version) == (daemon.process.pid, 1)
    assert info.max_message_bytes == 1 << 20
    assert info.addresses == tuple(daemon.addresses)
    assert session.refresh_server_info().epoch >= info.epoch
    assert repr(session) == f"<opdispatch_client.Session {daemon.address} [open]>"
    [library] = session.libraries()
    assert (library.name, library.version, library.active) == ("park", 1, True)
    assert library.loaded_at is not None
    assert library.loaded_at.tzinfo is not None
    assert "double" in dir(session.ops.park)


def test_a_request_over_the_limit_is_not_sent(daemon: RunningDaemon, session: oc.Session):
    with pytest.raises(oc.MessageTooLargeError, match=r"park::wait has 10486\d\d bytes"):
        session.call("park::wait", "x" * (1 << 20))
    with (
        daemon.connect(max_message_bytes=1000, lane="grpc") as small,
        pytest.raises(oc.MessageTooLargeError, match="the limit is 1000 bytes"),
    ):
        small.ops.park.double(np.zeros(1000, np.uint8))


def test_a_reply_over_the_limit_is_an_error_too(daemon: RunningDaemon):
    with daemon.connect(lane="grpc") as session:
        with pytest.raises(oc.MessageTooLargeError):
            session.ops.park.repeat(np.zeros(1000, np.uint8), 2000)
        assert session.ops.park.repeat(np.zeros(1000, np.uint8), 2).shape == (2000,)


def test_a_late_answer_is_an_error(daemon: RunningDaemon, tmp_path: Path):
    with daemon.connect(timeout=0.3) as session:
        with pytest.raises(oc.DeadlineExceededError):
            session.call("park::wait", str(tmp_path))
        (tmp_path / "leave").touch()
        assert session.timeout == 0.3


def test_closing_ends_the_calls_of_other_threads(daemon: RunningDaemon, tmp_path: Path):
    session = daemon.connect()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(session.call, "park::wait", str(tmp_path))
        assert wait_for((tmp_path / "entered").exists)
        session.close()
        with pytest.raises(oc.DaemonUnavailableError, match="is closed"):
            waiting.result(LONGEST_WAIT)
    (tmp_path / "leave").touch()


def test_a_closed_session_says_so(daemon: RunningDaemon):
    with daemon.connect() as session:
        pass
    session.close()
    assert repr(session).endswith("[closed]>")
    with pytest.raises(oc.DaemonUnavailableError, match=r"is closed \(open a new one"):
        session.call("park::double", np.zeros(1))
    with pytest.raises(oc.DaemonUnavailableError, match="is closed"):
        session.operators()


def test_a_session_is_not_copied(session: oc.Session):
    for duplicate in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match="a Session can be neither pickled nor copied: it is"):
            duplicate(session)


def test_a_closed_session_keeps_no_values(daemon: RunningDaemon):
    with daemon.connect() as session:
        kept = session.put(np.zeros(1))
    for ask in (
        lambda: session.put(np.zeros(1)),
        lambda: kept + 1,
        lambda: session.grad(kept, kept),
        lambda: session.with_options(remote=True).ops.park.double(np.zeros(1)),
    ):
        with pytest.raises(oc.DaemonUnavailableError, match="is closed"):
            ask()


def test_error_without_a_daemon_says_how_to_start_one():
    with pytest.raises(oc.DaemonUnavailableError, match="start one with `opdispatch serve`"):
        oc.connect(NOWHERE)


def test_silent_listener_raises_daemon_unavailable(tmp_path: Path):
    """Something that listens, and never says a word."""
    import socket

    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(tmp_path / "silent.sock"))
        silent.listen()
        with pytest.raises(oc.DaemonUnavailableError, match="no daemon answers"):
            oc.connect(f"unix://{tmp_path}/silent.sock", timeout=0.5)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"timeout": 0}, "timeout is 0"),
        ({"timeout": -1.0}, "timeout is -1.0"),
        ({"max_message_bytes": 0}, "message limit is 0"),
        ({"max_message_bytes": 1 << 40}, "message limit is 1099511627776"),
    ],
)
def test_wrong_options_are_refused(options, problem):
    for connect in (oc.connect, oc.aio.connect):
        with pytest.raises(ValueError, match=problem):
            connect(NOWHERE, **options)
        with pytest.raises(oc.AddressError, match="is not understood"):
            connect("what")


@pytest.mark.parametrize("timeout", [1e7, 1e12, float("inf")])
@pytest.mark.parametrize("lane", ["local", "stream", "grpc"])
def test_a_timeout_may_be_as_long_as_one_likes(
    daemon: RunningDaemon, timeout: float, lane: LaneChoice
):
    with daemon.connect(timeout=timeout, lane=lane) as session:
        assert session.ops.park.double(np.ones(2)).tolist() == [2, 2]
        assert session.submit("park::double", np.ones(2)).result(LONGEST_WAIT).tolist() == [2, 2]


def test_the_address_comes_from_the_environment(daemon: RunningDaemon, monkeypatch):
    monkeypatch.setenv("OPDISPATCH_ADDRESS", daemon.address)
    with oc.connect() as session:
        assert session.address == daemon.address


_INTERRUPTED = """
import sys
import opdispatch_client as oc
session = oc.connect(sys.argv[1], timeout=None)
try:
    session.call("park::wait", sys.argv[2])
except KeyboardInterrupt:
    print("interrupted", session.libraries()[0].name)
session.close()
"""


def test_ctrl_c_cancels_the_call(daemon: RunningDaemon, tmp_path: Path):
    process = subprocess.Popen(
        [sys.executable, "-c", _INTERRUPTED, daemon.address, str(tmp_path)],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert wait_for((tmp_path / "entered").exists)
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=LONGEST_WAIT)
    (tmp_path / "leave").touch()
    assert (process.returncode, out) == (0, "interrupted park\n")


def test_sessions_leave_no_threads(daemon: RunningDaemon):
    daemon.connect().close()
    before = threading.active_count()
    for _ in range(5):
        with daemon.connect() as session:
            session.operators()
    assert threading.active_count() <= before
