"""TLS and mutual TLS at TCP ports: who gets in, what those hear who do not, and rotation."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import opdispatch_client as oc
from opdispatch_client import aio
from opdispatch_client.cli import main
from opdispatch_wire import secured_channel
from tests.service.certificates import Certificates
from tests.service.command_line import run_cli, running_cli
from tests.service.libraries import IMAGE
from tests.service.running_daemon import RunningDaemon, wait_for
from tests.service.tokens import LOOKING_OFTEN, Tokens, id_of
from tests.waits import LONGEST_WAIT, accept

X = np.arange(3.0)


class Secured:
    """A daemon with TLS and tokens at a port, which asks for client certificates at another one."""

    def __init__(self, folder: Path) -> None:
        self.certificates = Certificates(folder / "certs")
        self.foreign = Certificates(folder / "foreign", "another CA")
        self.tokens = Tokens(folder)
        self.token = self.tokens.add("admin", name="alice")

    def add(self, role: str) -> str:
        """Return a new token, once the running daemon, which looks now and then, knows it."""
        token = self.tokens.add(role)
        assert wait_for(lambda: id_of(token) in self.daemon.log())
        return token

    def start(self, folder: Path, *options: str) -> RunningDaemon:
        daemon = RunningDaemon(
            folder,
            *self.certificates.serve,
            *("--tokens", str(self.tokens.path)),
            *options,
            workers=1,
            listen=["127.0.0.1:0"],
            constants=LOOKING_OFTEN,
        )
        try:
            daemon.wait_until_ready()
            path = folder / "image.py"
            path.write_text(IMAGE)
            ca = self.certificates.client
            with oc.connect(daemon.address, token=self.token, lane="stream", **ca) as session:
                session.load(path)
        except BaseException:
            daemon.clean_up()
            raise
        self.address = daemon.address
        self.daemon = daemon
        return daemon


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    folder = tmp_path_factory.mktemp("tls")
    secured = Secured(folder)
    daemon = secured.start(folder)
    yield secured
    daemon.clean_up()


@pytest.fixture(scope="module")
def mutual(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    folder = tmp_path_factory.mktemp("mtls")
    secured = Secured(folder)
    daemon = secured.start(folder, "--tls-client-ca", secured.certificates.ca)
    yield secured
    daemon.clean_up()


def refusal_of(address: str, **options: Any) -> oc.DaemonUnavailableError:
    with pytest.raises(oc.DaemonUnavailableError) as caught:
        oc.connect(address, timeout=LONGEST_WAIT, **options)
    assert caught.value.facts["started"] == "no"
    return caught.value


@pytest.mark.parametrize("lane", ["stream", "grpc"])
def test_a_session_over_tls_calls_operators(secured: Secured, lane: Any):
    options = {"token": secured.token, "tls_ca": secured.certificates.ca, "lane": lane}
    with oc.connect(secured.address, **options) as session:
        np.testing.assert_array_equal(session.ops.image.pipeline(X), 1 - X * 3)
        np.testing.assert_array_equal(session.put(X).numpy(), X)

    async def call() -> Any:
        async with aio.connect(secured.address, **options) as asking:
            kept = await asking.put(X)
            return await asking.ops.image.pipeline(X) + await kept.numpy()

    np.testing.assert_array_equal(asyncio.run(call()), 1 - X * 2)


def test_tls_alone_is_no_token(secured: Secured):
    with pytest.raises(oc.UnauthenticatedError, match="no token came"):
        oc.connect(secured.address, tls_ca=secured.certificates.ca)


def test_the_environment_and_the_command_line(
    secured: Secured, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setenv("OPDISPATCH_TOKEN", secured.token)
    monkeypatch.setenv("OPDISPATCH_TLS_CA", secured.certificates.ca)
    for word in ("health", "libraries"):
        assert main([word, "--address", secured.address]) == 0
    assert "image" in capsys.readouterr().out


def test_a_client_without_tls_hears_that_the_daemon_may_want_it(secured: Secured):
    error = refusal_of(secured.address, token=secured.token)
    assert "it closed the connection during the handshake" in str(error)
    assert "OPDISPATCH_TLS_CA" in error.hint


def test_a_daemon_without_tls_is_recognized(secured: Secured):
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            connection = accept(listener)
            with connection:
                connection.recv(1000)
                connection.sendall(b"\0\0\0\4\0\0\0\0\0")  # HTTP/2 in clear
                connection.recv(1000)

        threading.Thread(target=answer, daemon=True).start()
        port = listener.getsockname()[1]
        error = refusal_of(f"127.0.0.1:{port}", tls_ca=secured.certificates.ca)
    assert "it does not speak TLS" in str(error)


def test_a_foreign_ca_is_refused_by_the_client(secured: Secured):
    error = refusal_of(secured.address, token=secured.token, tls_ca=secured.foreign.ca)
    assert "was not issued by the CA trusted here" in str(error)
    assert "tls_ca" in error.hint


@pytest.mark.parametrize("which", ["none", "foreign", "expired"])
def test_a_client_needs_a_certificate_of_the_client_ca(mutual: Secured, which: str):
    options = mutual.certificates.client
    if which == "none":
        options = {"tls_ca": mutual.certificates.ca}
    elif which == "foreign":
        options = {**mutual.foreign.client, "tls_ca": mutual.certificates.ca}
    else:
        mutual.certificates.issue_client(days=-1)
    error = refusal_of(mutual.address, token=mutual.token, **options)
    mutual.certificates.issue_client()
    assert "tls_cert" in error.hint
    good = mutual.certificates.client
    with oc.connect(mutual.address, token=mutual.token, lane="stream", **good) as session:
        np.testing.assert_array_equal(session.ops.image.pipeline(X), 1 - X * 3)


def test_a_client_certificate_is_no_token(mutual: Secured):
    with pytest.raises(oc.UnauthenticatedError, match="no token came"):
        oc.connect(mutual.address, **mutual.certificates.client)


def serves(secured: Secured) -> str:
    """Return the serial number of the certificate that the port shows now."""
    host, _, port = secured.address.rpartition(":")
    context = ssl.create_default_context(cafile=secured.certificates.ca)
    context.check_hostname = False
    with (
        socket.create_connection((host, int(port)), LONGEST_WAIT) as plain,
        context.wrap_socket(plain) as connection,
    ):
        return str(connection.getpeercert()["serialNumber"])


def test_certificates_are_read_again_and_broken_ones_change_nothing(tmp_path: Path):
    secured = Secured(tmp_path)
    daemon = secured.start(tmp_path)
    ca, folder = secured.certificates.ca, secured.certificates.folder
    options = {"token": secured.token, "tls_ca": ca, "lane": "stream"}
    try:
        with oc.connect(secured.address, **options) as session:
            first = serves(secured)
            secured.certificates.issue_server()
            second = serves(secured)
            assert second != first
            whole = (folder / "server.pem").read_bytes()
            (folder / "server.pem").write_bytes(whole[:100])
            assert serves(secured) == second
            (folder / "server.pem").write_bytes((folder / "client.pem").read_bytes())
            assert serves(secured) == second
            assert daemon.log().count("certificate_refused") == 2
            secured.certificates.issue_server(hosts=("daemon.example",))
            error = refusal_of(secured.address, **options)
            assert "its certificate is for another host" in str(error)
            secured.certificates.issue_server(days=-1)
            error = refusal_of(secured.address, **options)
            assert "its certificate has expired" in str(error)
            secured.certificates.issue_server()
            with oc.connect(secured.address, **options) as another:
                another.libraries()
            np.testing.assert_array_equal(session.ops.image.pipeline(X), 1 - X * 3)
    finally:
        daemon.clean_up()


def test_rotations_of_all_there_is_fail_no_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A hundred certificates of the server and of the client, and tokens, while calls go on."""
    monkeypatch.setattr(secured_channel, "FILE_CHECK_SECONDS", 0.01)
    secured = Secured(tmp_path)
    file = tmp_path / "token"
    file.write_text(secured.tokens.add("call"))
    daemon = secured.start(tmp_path, "--tls-client-ca", secured.certificates.ca)
    done, failures, calls = threading.Event(), [], [0, 0]
    options = {**secured.certificates.client, "token_file": file}

    def call(which: int, lane: Any) -> None:
        try:
            with oc.connect(secured.address, lane=lane, **options) as session:
                while not done.wait(0.002):  # or they would take most of the processor
                    np.testing.assert_array_equal(session.ops.image.pipeline(X), 1 - X * 3)
                    session.libraries()
                    calls[which] += 1
        except BaseException as error:
            failures.append(error)

    threads = [
        threading.Thread(target=call, args=(n, lane)) for n, lane in enumerate(("stream", "grpc"))
    ]
    try:
        for thread in threads:
            thread.start()
        for n in range(100):
            seen = sum(calls)
            secured.certificates.issue_server()
            secured.certificates.issue_client()
            if n % 10 == 0:
                fresh = secured.tokens.add("call")
                assert wait_for(lambda fresh=fresh: id_of(fresh) in daemon.log())
                file.write_text(fresh)
            assert wait_for(lambda seen=seen: failures or sum(calls) > seen)
            with oc.connect(secured.address, lane="grpc", **options) as session:
                session.libraries()
        done.set()
        for thread in threads:
            thread.join(LONGEST_WAIT)
        assert failures == []
        assert min(calls) > 10
    finally:
        done.set()
        daemon.clean_up()


def test_beyond_loopback_tls_and_tokens_are_needed(tmp_path: Path):
    secured = Secured(tmp_path)
    tokens = ("--tokens", str(secured.tokens.path))
    options = ("serve", "--listen", "0.0.0.0:0", "--state", str(tmp_path / "s"), "--workers", "0")
    for given in ((), tokens, secured.certificates.serve):
        refused = run_cli(*options, *given)
        assert refused.returncode == 2
        assert "give --tls-cert, --tls-key and --tokens" in refused.stderr
    daemon = RunningDaemon(
        tmp_path, *tokens, *secured.certificates.serve, workers=0, listen=["0.0.0.0:0"]
    )
    try:
        daemon.wait_until_ready()
        assert "open to any" not in daemon.log()
    finally:
        daemon.clean_up()


def test_an_interpreter_joins_over_tls(secured: Secured, tmp_path: Path):
    file = tmp_path / "token"
    file.write_text(secured.add("worker"))
    words = ("worker", "--address", secured.address, "--name", "guest", "--reconnect", "5")
    words = (*words, "--token-file", str(file), "--tls-ca", secured.certificates.ca)
    options = {"token": secured.token, "tls_ca": secured.certificates.ca}
    with running_cli(*words), oc.connect(secured.address, **options) as session:
        assert wait_for(lambda: "guest" in [each.name for each in session.interpreters()])


def test_an_interpreter_that_speaks_tls_needs_a_daemon_with_a_ca_for_it(
    secured: Secured, tmp_path: Path
):
    file = tmp_path / "token"
    file.write_text(secured.add("worker"))
    words = ("worker", "--address", secured.address, "--listen", "127.0.0.1:0", "--reconnect", "5")
    words = (*words, "--token-file", str(file), "--tls-ca", secured.certificates.ca)
    certificates = secured.certificates.serve
    refused = run_cli(*words, *certificates)
    assert refused.returncode in (1, 2)
    assert "has no CA to check its certificate against" in refused.stderr


def test_a_client_ca_that_is_swapped_amid_handshakes(tmp_path: Path):
    """Each handshake has one of them, whole; the old one lets nothing in that begins later."""
    secured = Secured(tmp_path)
    certificates, foreign = secured.certificates, secured.foreign
    ca = tmp_path / "client-ca.pem"
    ca.write_bytes(certificates.authority.pem)
    daemon = secured.start(tmp_path, "--tls-client-ca", str(ca))
    host, _, port = secured.address.rpartition(":")

    def begin() -> tuple[ssl.SSLObject, ssl.MemoryBIO, ssl.MemoryBIO, socket.socket]:
        context = ssl.create_default_context(cafile=certificates.ca)
        folder = certificates.folder
        context.load_cert_chain(folder / "client.pem", folder / "client.key")
        context.set_alpn_protocols(["h2"])
        came, goes = ssl.MemoryBIO(), ssl.MemoryBIO()
        plain = socket.create_connection((host, int(port)), LONGEST_WAIT)
        greeting = context.wrap_bio(came, goes, server_hostname=host)
        with contextlib.suppress(ssl.SSLWantReadError):
            greeting.do_handshake()
        return greeting, came, goes, plain

    def end(greeting: ssl.SSLObject, came: Any, goes: Any, plain: socket.socket) -> bool:
        """Return whether the server takes the certificate: then it says something."""
        with plain:
            while True:
                plain.sendall(goes.read())
                try:
                    greeting.do_handshake()
                    plain.sendall(goes.read())
                    return bool(greeting.read(1))
                except ssl.SSLWantReadError:
                    data = plain.recv(65536)
                    if not data:
                        return False
                    came.write(data)
                except ssl.SSLError:
                    return False

    old = {"token": secured.token, "lane": "stream", **certificates.client}
    new = {**old, **foreign.client, "tls_ca": certificates.ca}
    try:
        amid = begin()
        ca.write_bytes(foreign.authority.pem)
        end(*amid)  # either one of them
        assert not end(*begin())
        refusal_of(secured.address, **old)
        with oc.connect(secured.address, **new) as session:
            np.testing.assert_array_equal(session.ops.image.pipeline(X), 1 - X * 3)
            ca.write_bytes(certificates.authority.pem[:200])  # half of it changes nothing
            with oc.connect(secured.address, **new) as another:
                another.libraries()
            ca.write_bytes(certificates.authority.pem)
            assert end(*begin())
            np.testing.assert_array_equal(session.ops.image.pipeline(X), 1 - X * 3)
        refusal_of(secured.address, **new)
    finally:
        daemon.clean_up()


FEW_DESCRIPTORS = """
import resource, sys
from opdispatch_client.cli import main
resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
sys.exit(main())
"""


def test_silent_strangers_leave_descriptors_to_others(tmp_path: Path):
    certificates = Certificates(tmp_path / "certs")
    daemon = RunningDaemon(
        tmp_path,
        *certificates.serve,
        *("--tokens", str(Tokens(tmp_path).path), "--http", "127.0.0.1:0"),
        workers=1,
        listen=[f"unix://{tmp_path}/daemon.sock", "127.0.0.1:0"],
        program=("-c", FEW_DESCRIPTORS, "serve"),
    )
    with contextlib.ExitStack() as strangers:
        strangers.callback(daemon.clean_up)
        daemon.wait_until_ready()
        ports = (int(address.strip("/").rpartition(":")[2]) for address in daemon.addresses[1:])
        for port in ports:
            for _ in range(300):
                stranger = strangers.enter_context(socket.socket())
                stranger.bind(("127.0.0.2", 0))
                stranger.setblocking(False)  # not all of them get in
                stranger.connect_ex(("127.0.0.1", port))
        assert wait_for(lambda: "new ones of 127.0.0.2/32 wait" in daemon.log())
        (tmp_path / "image.py").write_text(IMAGE)
        with daemon.connect() as owner:
            owner.load(tmp_path / "image.py")
            np.testing.assert_array_equal(owner.ops.image.pipeline(X), 1 - X * 3)
