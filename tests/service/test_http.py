"""The daemon's HTTP port: probes, access, and connections that say nothing."""

from __future__ import annotations

import base64
import contextlib
import http.client
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.service.conftest import StartDaemon
from tests.service.running_daemon import RunningDaemon
from tests.service.scrapes import get
from tests.service.tokens import Tokens
from tests.waits import LONGEST_WAIT


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningDaemon]:
    """A daemon for tests that load nothing and call nothing."""
    daemon = RunningDaemon(tmp_path_factory.mktemp("asked"), "--http", "127.0.0.1:0", workers=1)
    try:
        daemon.wait_until_ready()
        yield daemon
    finally:
        daemon.clean_up()


def test_probes_tell_readiness_from_liveness(asked: RunningDaemon):
    assert get(asked.url, "livez") == (200, "ok\n")
    assert get(asked.url, "readyz") == (200, "ok\n")
    asked.signal(signal.SIGSTOP)
    try:
        connection = http.client.HTTPConnection(urlsplit(asked.url).netloc, timeout=0.2)
        with contextlib.closing(connection):
            connection.request("GET", "/livez")
            with pytest.raises(TimeoutError):
                connection.getresponse()
    finally:
        asked.signal(signal.SIGCONT)
    assert get(asked.url, "livez") == (200, "ok\n")


def test_a_request_under_another_name_is_refused(asked: RunningDaemon):
    assert get(asked.url, "metrics", Host="attacker.example")[0] == 400
    assert get(asked.url, "metrics", Host="localhost:1")[0] == 200


def test_tokens_are_asked_for_where_the_daemon_has_them(start_daemon: StartDaemon, tmp_path: Path):
    tokens = Tokens(tmp_path)
    token, worker = tokens.add("call"), tokens.add("worker")
    daemon = start_daemon("--http", "127.0.0.1:0", "--tokens", str(tokens.path), workers=1)
    password = base64.b64encode(f"me:{token}".encode()).decode()
    assert get(daemon.url, "livez")[0] == 200, "probes tell nothing"
    assert get(daemon.url, "metrics")[0] == 401
    assert get(daemon.url, "metrics", Authorization="Bearer nothing")[0] == 401
    assert get(daemon.url, "metrics", Authorization="Basic !!!")[0] == 401
    assert get(daemon.url, "metrics", Authorization=f"Bearer {worker}")[0] == 403
    assert get(daemon.url, "metrics", Authorization=f"Bearer {token}")[0] == 200
    assert get(daemon.url, "metrics", Authorization=f"Basic {password}")[0] == 200


def test_http_refuses_changing_methods(asked: RunningDaemon):
    address = urlsplit(asked.url).netloc
    for method in ("POST", "PUT", "DELETE", "PATCH"):
        for path in ("/", "/metrics", "/livez"):
            connection = http.client.HTTPConnection(address, timeout=LONGEST_WAIT)
            with contextlib.closing(connection):
                connection.request(method, path)
                assert connection.getresponse().status in (404, 405)


def test_a_scrape_of_a_daemon_that_is_stopping_ends(start_daemon: StartDaemon):
    daemon = start_daemon("--http", "127.0.0.1:0", workers=1)
    errors: list[BaseException] = []

    def scrape_until_gone() -> None:
        try:
            while True:
                status, text = get(daemon.url, "metrics")
                assert status == 200 or "stopped" in text or "answered" in text, text
        except (OSError, http.client.HTTPException):
            return
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=scrape_until_gone)
    thread.start()
    assert daemon.stop() == 0
    thread.join(LONGEST_WAIT)
    assert not thread.is_alive()
    assert errors == []


def test_an_address_that_others_reach_needs_to_be_asked_for(start_daemon: StartDaemon):
    with pytest.raises(RuntimeError, match="can be reached from other machines"):
        start_daemon("--http", "0.0.0.0:0", workers=1)


@contextlib.contextmanager
def idle_connections(url: str, count: int) -> Iterator[None]:
    address = urlsplit(url).netloc
    connections = [http.client.HTTPConnection(address, timeout=LONGEST_WAIT) for _ in range(count)]
    try:
        for connection in connections:
            connection.connect()
        yield
    finally:
        for connection in connections:
            connection.close()


def test_connections_that_say_nothing_do_not_hold_up_others(asked: RunningDaemon):
    with idle_connections(asked.url, 100):
        assert get(asked.url, "livez")[0] == 200
