"""Join tokens, tokens of interpreters, and that secrets are in nothing that is kept."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import opdispatch_client as oc
from opdispatch_wire.join_token import make_join_token
from tests.service.command_line import run_cli, running_cli
from tests.service.running_daemon import wait_for
from tests.service.test_tls import Secured
from tests.service.tokens import id_of
from tests.waits import LONGEST_WAIT

X = np.arange(3.0)


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    folder = tmp_path_factory.mktemp("join")
    secured = Secured(folder)
    daemon = secured.start(folder)
    yield secured
    daemon.clean_up()


def joined(secured: Secured, role: str) -> str:
    """Return a join token, made as people do."""
    words = ("token", "create", "--tokens", str(secured.tokens.path), "--role", role)
    made = run_cli(*words, "--tls-ca", secured.certificates.ca)
    token = made.stdout.strip()
    assert wait_for(lambda: f"add token {token.split('_')[1]}" in secured.daemon.log())
    return token


def test_a_join_token_is_all_that_a_client_needs(secured: Secured):
    token = joined(secured, "call")
    assert token.startswith("opdj1.")
    with oc.connect(secured.address, token=token, lane="stream") as session:
        for _ in range(50):
            np.testing.assert_array_equal(session.ops.image.pipeline(X), 1 - X * 3)
    foreign = make_join_token(token.rpartition(".")[2], Path(secured.foreign.ca).read_text())
    with pytest.raises(oc.UnauthenticatedError, match="not present the CA certificate") as caught:
        oc.connect(secured.address, token=foreign)
    assert token.split("_", 2)[2] not in str(caught.value)


def test_an_interpreter_joins_with_a_join_token_and_no_client_does(
    secured: Secured, tmp_path: Path
):
    token = joined(secured, "worker")
    file = tmp_path / "token"
    file.write_text(token)
    words = ("worker", "--address", secured.address, "--reconnect", "5", "--token-file", str(file))
    options = {"token": secured.token, "tls_ca": secured.certificates.ca}
    with running_cli(*words, "--name", "joined"), oc.connect(secured.address, **options) as session:
        assert wait_for(lambda: "joined" in [each.name for each in session.interpreters()])
    for lane in ("stream", "grpc"):
        with oc.connect(secured.address, token=token, lane=lane) as session:
            with pytest.raises(oc.PermissionDeniedError, match="other calls need the role call"):
                session.call("image::pipeline", X)
            with pytest.raises(oc.PermissionDeniedError, match=r"role worker, and .* needs call"):
                session.operators()
            with pytest.raises(oc.PermissionDeniedError, match="HoldValues needs call"):
                session.put(X)


def test_a_clients_token_joins_no_interpreter(secured: Secured, tmp_path: Path):
    file = tmp_path / "token"
    for role in ("call", "load", "admin"):
        file.write_text(secured.add(role))
        words = ("worker", "--address", secured.address, "--reconnect", "5")
        refused = run_cli(*words, "--token-file", str(file), "--tls-ca", secured.certificates.ca)
        assert refused.returncode == 1
        assert f"has the role {role}, and Session needs worker" in refused.stderr
        assert "opdispatch token create --role worker" in refused.stderr


def test_secrets_are_in_nothing_that_is_logged_listed_or_kept(tmp_path: Path):
    secured = Secured(tmp_path)
    daemon = secured.start(tmp_path)
    role_of = {role: joined(secured, role) for role in ("call", "admin", "worker")}
    file = tmp_path / "worker-token"
    file.write_text(role_of["worker"])
    words = ("worker", "--address", secured.address, "--reconnect", "5", "--token-file", str(file))
    worker = subprocess.Popen(
        [sys.executable, "-m", "opdispatch_client.cli", *words, "--name", "guest"],
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        with oc.connect(secured.address, token=role_of["admin"], lane="stream") as session:
            assert wait_for(lambda: "guest" in [each.name for each in session.interpreters()])
            session.ops.image.pipeline(X)
            with pytest.raises(oc.UnauthenticatedError):
                oc.connect(secured.address, token=role_of["call"][:-1])
            words = ("libraries", "--address", secured.address)
            listed = run_cli(*words, OPDISPATCH_TOKEN=role_of["call"])
            assert listed.returncode == 0
            commands = [
                path.read_bytes()
                for pid in (*daemon.processes(), worker.pid)
                if (path := Path(f"/proc/{pid}/cmdline")).exists()
            ]
            said = repr(session.interpreters()) + repr(session.libraries())
    finally:
        worker.terminate()
        _, errors = worker.communicate(timeout=LONGEST_WAIT)
        daemon.clean_up()
    exported = tmp_path / "exported"
    state = ("--state", str(tmp_path / "state"))
    assert run_cli("state", "export", str(exported), *state).returncode == 0
    kept = [path.read_bytes() for path in (tmp_path / "state").rglob("*") if path.is_file()]
    everything = b"\n".join(
        [
            *commands,
            *kept,
            exported.read_bytes(),
            secured.tokens.path.read_bytes(),
            daemon.log().encode(),
            errors.encode(),
            listed.stdout.encode() + listed.stderr.encode(),
            said.encode(),
        ]
    )
    assert id_of(secured.token).encode() in everything
    for token in (secured.token, *role_of.values()):
        assert token.split("_", 2)[2].encode() not in everything
