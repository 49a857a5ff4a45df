"""Calls of operators over HTTP, as the page makes them."""

from __future__ import annotations

import base64
import contextlib
import glob
import http.client
import json
import stat
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pytest

from tests.service.conftest import StartDaemon, WriteLibrary
from tests.service.running_daemon import RunningDaemon
from tests.service.tokens import Tokens
from tests.waits import LONGEST_WAIT

pytest.importorskip("prometheus_client", reason="opdispatch[http] is not installed")
pytest.importorskip("starlette", reason="opdispatch[http] is not installed")
pytest.importorskip("uvicorn", reason="opdispatch[http] is not installed")

from opdispatch_server.daemon.monitoring.page_calls import MOST_BYTES, TOKEN_HEADER

PAINT = """\
import numpy as np
from opdispatch import Library

lib = Library("paint", "DEF")
lib.define("invert(Tensor x, *, int by=255) -> Tensor")
lib.define("names(str text) -> str")
lib.define("stack(Tensor[] all) -> (Tensor, int)")
lib.impl("invert", lambda x, *, by=255: (by - x).astype(x.dtype), "CPU")
lib.impl("names", lambda text: f"<b>{text}</b>\\x1b[2J", "CompositeExplicitAutograd")
lib.impl("stack", lambda all: (np.stack(all), len(all)), "CPU")
"""


def secret_of(daemon: RunningDaemon) -> str:
    """Return the secret of a daemon without tokens, as its user finds it."""
    with daemon.connect() as session:
        lane = Path(session.server_info.lane)
    path = lane.parent / "http-token"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    return path.read_text().strip()


def post(url: str, body: Any, token: str, **headers: str) -> tuple[int, Any]:
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=LONGEST_WAIT)
    with contextlib.closing(connection):
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        sent = {"content-type": "application/json", TOKEN_HEADER: token}
        sent |= {name.replace("_", "-"): value for name, value in headers.items()}
        with contextlib.suppress(BrokenPipeError):  # a body that is too long is not read to its end
            connection.request("POST", "/api/call", data, sent)
        reply = connection.getresponse()
        text = reply.read().decode()
        is_json = reply.headers["content-type"].startswith("application/json")
        return reply.status, json.loads(text) if is_json else text


@pytest.fixture
def painting(start_daemon: StartDaemon, write_library: WriteLibrary) -> RunningDaemon:
    daemon = start_daemon("--http", "127.0.0.1:0", workers=1)
    daemon.expects_errors = True
    with daemon.connect() as session:
        session.load(str(write_library("paint", PAINT)))
    return daemon


def test_numbers_and_pictures_go_in_and_come_out(painting: RunningDaemon):
    token = secret_of(painting)

    def call(operator: str, **arguments: Any) -> list[Any]:
        body = {"operator": operator, "arguments": arguments}
        status, found = post(painting.url, body, token)
        assert status == 200, found
        results: list[Any] = found["results"]
        return results

    [result] = call("paint::invert", x=[[1.5, 2.0]], by=3)
    assert result["text"].splitlines() == ["float64 [1, 2]", "[[1.5 1. ]]"]
    assert "pixels" not in result
    picture = np.arange(10 * 12 * 3, dtype=np.uint8).reshape(10, 12, 3)
    sent = {"shape": picture.shape, "pixels": base64.b64encode(picture.tobytes()).decode()}
    [result] = call("paint::invert", x=sent)
    assert result["shape"] == [10, 12, 4]
    pixels = np.frombuffer(base64.b64decode(result["pixels"]), np.uint8).reshape(10, 12, 4)
    assert np.array_equal(pixels[..., :3], 255 - picture)
    assert (pixels[..., 3] == 255).all()
    assert call("paint::names", text="a")[0]["text"] == "'<b>a</b>\\x1b[2J'"
    tensor, count = call("paint::stack", all=[[1], [2]])
    assert tensor["text"].startswith("int64 [2, 1]")
    assert count["text"] == "2"


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"{", "not valid JSON"),
        (b"[" * 100_000, "not valid JSON"),
        ([], "is not like"),
        ({"operator": "paint::invert"}, "is not like"),
        ({"operator": "paint::nothing", "arguments": {}}, "there is no operator"),
        ({"operator": "paint::invert", "arguments": {}}, "x"),
        ({"operator": "paint::invert", "arguments": {"x": "text"}}, "neither numbers nor"),
        ({"operator": "paint::invert", "arguments": {"x": [[1], [2, 3]]}}, "neither numbers nor"),
        ({"operator": "paint::invert", "arguments": {"x": {"shape": [2], "pixels": "!"}}}, "x is"),
        (
            {"operator": "paint::invert", "arguments": {"x": {"shape": [-1, 7], "pixels": "AA=="}}},
            "neither numbers nor",
        ),
        ({"operator": "paint::invert", "arguments": {"y\u001b": 1}}, "y"),
    ],
)
def test_malformed_http_call_is_refused_with_a_reason(
    painting: RunningDaemon, body: Any, said: str
):
    status, found = post(painting.url, body, secret_of(painting))
    assert status == 422, found
    assert said in found["error"]
    assert "\x1b" not in found["error"]


def test_no_call_comes_without_its_token_or_from_another_site(painting: RunningDaemon):
    body = {"operator": "paint::invert", "arguments": {"x": [1]}}
    token = secret_of(painting)
    status, said = post(painting.url, body, "")
    assert (status, "http-token" in said) == (401, True), "it says where the secret is"
    assert post(painting.url, body, "x" * 43)[0] == 401
    assert post(painting.url, body, token, sec_fetch_site="cross-site")[0] == 403
    for kind in ("text/plain", "multipart/form-data", "application/x-www-form-urlencoded"):
        assert post(painting.url, body, token, content_type=kind)[0] == 415, "what forms can send"
    assert post(painting.url, body, token, host="attacker.example")[0] == 400
    assert post(painting.url, body, token, sec_fetch_site="same-origin")[0] == 200


def test_a_request_that_is_too_long_is_not_read(painting: RunningDaemon):
    assert post(painting.url, b" " * (MOST_BYTES + 1), secret_of(painting))[0] == 413


def test_a_daemon_with_tokens_wants_one_in_the_header(
    start_daemon: StartDaemon, write_library: WriteLibrary, tmp_path: Path
):
    tokens = Tokens(tmp_path)
    caller = tokens.add("call")
    daemon = start_daemon("--http", "127.0.0.1:0", "--tokens", str(tokens.path), workers=1)
    with daemon.connect() as session:
        session.load(str(write_library("paint", PAINT)))
        assert not glob.glob(str(Path(session.server_info.lane).parent / "http-token"))
    password = base64.b64encode(f"me:{caller}".encode()).decode()
    reads = {"authorization": f"Basic {password}"}
    body = {"operator": "paint::invert", "arguments": {"x": [1]}}
    assert post(daemon.url, body, caller, **reads)[0] == 200
    assert post(daemon.url, body, "", **reads)[0] == 401, "a browser's password is not enough"
    assert post(daemon.url, body, "another", **reads)[0] == 401
    assert post(daemon.url, body, caller)[0] == 401, "and the page is not read without one"
