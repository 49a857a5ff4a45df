"""The HTTP port over TLS: its certificates, and what ends with a token."""

from __future__ import annotations

import http.client
import json
import ssl
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import opdispatch_client as oc
from opdispatch_server.daemon.monitoring.page_calls import TOKEN_HEADER
from tests.service.doors import Doors, door_library
from tests.service.test_tls import Secured
from tests.waits import LONGEST_WAIT

X = np.arange(3.0)


@pytest.mark.parametrize("is_mutual", [False, True])
def test_http_speaks_tls_with_the_certificates_of_now(tmp_path: Path, is_mutual: bool):
    secured = Secured(tmp_path)
    certificates = secured.certificates
    more = ("--tls-client-ca", certificates.ca) if is_mutual else ()
    daemon = secured.start(tmp_path, "--http", "127.0.0.1:0", *more)

    def ask(path: str, *, shows: bool = True, token: str = "") -> tuple[int, str]:
        context = ssl.create_default_context(cafile=certificates.ca)
        if shows:
            folder = certificates.folder
            context.load_cert_chain(folder / "client.pem", folder / "client.key")
        headers = {"authorization": f"Bearer {token}"} if token else {}
        request = urllib.request.Request(daemon.url + path, headers=headers)
        try:
            with urllib.request.urlopen(request, timeout=LONGEST_WAIT, context=context) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    try:
        assert daemon.url.startswith("https://")
        assert ask("metrics")[0] == 401
        assert ask("livez")[0] == 200
        assert "opdispatch_" in ask("metrics", token=secured.token)[1]
        certificates.issue_server(days=-1)
        with pytest.raises(urllib.error.URLError, match="certificate has expired"):
            ask("livez")
        certificates.issue_server()
        assert ask("livez")[0] == 200
        if is_mutual:
            with pytest.raises((urllib.error.URLError, ssl.SSLError, ConnectionError)):
                ask("livez", shows=False)
        plain = daemon.url.replace("https://", "http://")
        with pytest.raises((urllib.error.URLError, ConnectionError, http.client.HTTPException)):
            urllib.request.urlopen(plain, timeout=LONGEST_WAIT)
    finally:
        daemon.clean_up()


def test_a_revoked_token_ends_what_a_page_reads_and_calls(tmp_path: Path, doors: Doors):
    secured = Secured(tmp_path)
    daemon = secured.start(tmp_path, "--http", "127.0.0.1:0")
    token, other = secured.add("call"), secured.add("call")
    (tmp_path / "door.py").write_text(door_library("door"))
    address = urllib.parse.urlsplit(daemon.url).netloc
    context = ssl.create_default_context(cafile=secured.certificates.ca)

    def begin(token: str, path: str, body: str | None = None) -> http.client.HTTPSConnection:
        made = http.client.HTTPSConnection(address, timeout=LONGEST_WAIT, context=context)
        headers = {"authorization": f"Bearer {token}", "content-type": "application/json"}
        made.request(
            "GET" if body is None else "POST", path, body, {**headers, TOKEN_HEADER: token}
        )
        return made

    try:
        with oc.connect(secured.address, **options_for(secured)) as session:
            session.load(tmp_path / "door.py")
            reading, kept = begin(token, "/events"), begin(other, "/events")
            events, others = reading.getresponse(), kept.getresponse()
            assert events.read(1)
            arguments = {"x": [1.0], "folder": doors.folder, "label": "page"}
            call = {"operator": "door::enter", "arguments": arguments}
            calling = begin(token, "/api/call", json.dumps(call))
            assert doors.next_inside() == "page"
            secured.tokens.revoke(token)
            answer = calling.getresponse()
            assert (answer.status, b"is revoked, changed or expired" in answer.read()) == (
                401,
                True,
            )
            while events.read1(65536):
                session.load(tmp_path / "door.py")  # there is something to tell
            doors.let_out(9)
            assert others.read(1)
            for each in (reading, kept, calling):
                each.close()
    finally:
        daemon.clean_up()


def options_for(secured: Secured) -> dict[str, Any]:
    return {"token": secured.token, "tls_ca": secured.certificates.ca, "lane": "stream"}
