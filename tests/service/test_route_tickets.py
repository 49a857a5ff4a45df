"""Ports of interpreters whose daemon asks for tokens: they ask for tickets of the daemon's."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

import opdispatch_client as oc
from opdispatch_client.lanes import direct_streams
from opdispatch_wire.calls import call_request
from opdispatch_wire.credentials import Credentials
from opdispatch_wire.v1 import execution_pb2, execution_pb2_grpc
from tests.service.doors import Doors, door_library
from tests.service.libraries import constant
from tests.service.openings import Openings
from tests.service.running_daemon import Background, wait_for
from tests.service.test_direct_calls import stopped
from tests.service.test_interpreters import worker
from tests.service.test_tls import Secured
from tests.service.tokens import id_of
from tests.waits import LONGEST_WAIT

X = np.arange(3.0)
LARGE = np.arange(1_000_000.0)
NESTED = """\
from opdispatch import Library, ops

lib = Library("nested", "DEF")
lib.define("sixfold(Tensor x) -> Tensor")
lib.impl("sixfold", lambda x: ops.image.scale(ops.image.scale(x, 2.0), 3.0), "CPU")
"""
DIRECTLY = "calls go to interpreter worker-1 directly"


@pytest.fixture(scope="module", params=["tls", "mutual TLS"])
def secured(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[Secured]:
    """A daemon with one interpreter, which all tests here change the tokens of."""
    folder = tmp_path_factory.mktemp("tickets")
    secured = Secured(folder)
    ca = secured.certificates.ca
    options = ("--tls-client-ca", ca) if request.param == "mutual TLS" else ()
    daemon = secured.start(folder, *options)
    yield secured
    daemon.clean_up()
    for text in (secured.token, "Ticket "):
        assert text not in daemon.log()


def options_of(secured: Secured, token: str = "") -> dict[str, Any]:
    certificates = secured.certificates.client
    return {"token": token or secured.token, "lane": "stream", "timeout": LONGEST_WAIT} | (
        certificates
    )


def route_of(secured: Secured, token: str) -> execution_pb2.Route:
    """Return the route that the daemon gives for a call."""
    request = call_request("image::scale", [X, 2.0], {}, request_id=1)
    request.wants_route = True
    credentials = Credentials(token=token, **secured.certificates.client)
    with credentials.channel(secured.address, ()) as channel:
        return execution_pb2_grpc.ExecutionServiceStub(channel).Call(request).route


def at_port(secured: Secured, port: int, authorization: str) -> tuple[grpc.StatusCode, str]:
    """Return the status that a stream to an interpreter's port ends with."""
    host = secured.address.rpartition(":")[0]
    credentials = Credentials(**secured.certificates.client)
    metadata = [("authorization", authorization)] if authorization else []
    with credentials.channel(f"{host}:{port}", ()) as channel:
        stream = channel.stream_stream("/opdispatch.v1.ExecutionService/CallStream")
        call = stream(iter(()), metadata=metadata, timeout=LONGEST_WAIT)
        return call.code(), call.details()


def test_calls_go_past_the_daemon_over_tls(secured: Secured, openings: Openings):
    with oc.connect(secured.address, **options_of(secured)) as session:
        scale = session.ops.image.scale
        scale(X, 1.0)
        assert openings.next() == DIRECTLY
        with stopped(secured.daemon, **options_of(secured)):
            for n in range(20):
                np.testing.assert_array_equal(scale(X, float(n)), X * n)
                np.testing.assert_array_equal(scale(LARGE, float(n)), LARGE * n)

    async def call() -> None:
        async with oc.aio.connect(secured.address, **options_of(secured)) as asking:
            await asking.ops.image.scale(X, 1.0)
            assert await asyncio.to_thread(openings.next) == DIRECTLY
            with stopped(secured.daemon, **options_of(secured)):
                np.testing.assert_array_equal(await asking.ops.image.scale(X, 3.0), X * 3)

    asyncio.run(call())


def test_a_session_with_a_token_gets_no_local_lane(secured: Secured):
    route = route_of(secured, secured.token)
    assert [(target.lane, bool(target.ports)) for target in route.targets] == [("", True)]
    options = {**options_of(secured), "lane": "auto"}
    with oc.connect(secured.address, **options) as session:
        assert session.lane == "stream"
    with pytest.raises(oc.DaemonUnavailableError, match="the daemon has none"):
        oc.connect(secured.address, **{**options, "lane": "local"})


def test_a_port_wants_a_ticket_of_now_and_no_token(secured: Secured):
    route = route_of(secured, secured.add("call"))
    (target,) = route.targets
    port, good = target.ports[0], f"Ticket {target.ticket}"
    assert at_port(secured, port, good) == (grpc.StatusCode.OK, "")
    wrong = {
        "": "no route ticket came",
        f"Bearer {secured.token}": "no route ticket came",
        f"Ticket {target.ticket[::-1]}": "invalid, or for another session",
        f"Ticket {'A' * 200}": "invalid, or for another session",
    }
    for authorization, words in wrong.items():
        code, details = at_port(secured, port, authorization)
        assert code is grpc.StatusCode.UNAUTHENTICATED
        assert words in details
        assert secured.token not in details
    with oc.connect(secured.address, **options_of(secured)) as session:
        path = secured.daemon.folder / "const.py"
        path.write_text(constant(1))
        session.load(path)
        session.unload("const")
    code, details = at_port(secured, port, good)
    assert code is grpc.StatusCode.UNAUTHENTICATED
    assert "the registry has changed" in details


def test_a_port_has_no_method_but_the_stream_of_calls(secured: Secured):
    (target,) = route_of(secured, secured.token).targets
    host = secured.address.rpartition(":")[0]
    credentials = Credentials(**secured.certificates.client)
    metadata = [("authorization", f"Ticket {target.ticket}")]
    with credentials.channel(f"{host}:{target.ports[0]}", ()) as channel:
        for method in ("ExecutionService/Call", "ExecutionService/HoldValues"):
            call = channel.unary_unary(f"/opdispatch.v1.{method}")
            with pytest.raises(grpc.RpcError) as caught:
                call(b"", metadata=metadata, timeout=LONGEST_WAIT)
            assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


def test_a_revoked_token_ends_the_streams_past_the_daemon(
    secured: Secured, openings: Openings, doors: Doors
):
    path = secured.daemon.folder / "door.py"
    path.write_text(door_library("door", max_concurrency=2))
    token = secured.add("call")
    with (
        oc.connect(secured.address, **options_of(secured)) as good,
        oc.connect(secured.address, **options_of(secured, token)) as bad,
    ):
        good.load(path)
        for session in (good, bad):
            doors.let_out()
            session.ops.door.enter(X, doors.folder, "first")
            assert doors.next_inside() == "first"
            assert openings.next() == DIRECTLY
        with (
            Background(bad.ops.door.enter, X, doors.folder, "bad") as lost,
            Background(good.ops.door.enter, X, doors.folder, "good") as kept,
        ):
            assert {doors.next_inside(), doors.next_inside()} == {"bad", "good"}
            secured.tokens.revoke(token)
            with pytest.raises(oc.UnauthenticatedError):
                lost.result()
            doors.let_out(2)
            assert kept.result() == "good"
        with pytest.raises(oc.UnauthenticatedError):
            bad.ops.image.scale(X, 1.0)
        good.unload("door")


def test_a_ticket_that_has_expired_is_replaced(
    secured: Secured, openings: Openings, monkeypatch: pytest.MonkeyPatch
):
    """A session whose stream was cut asks the daemon before it opens another one."""
    monkeypatch.setattr(direct_streams, "_REFUSAL_LASTS", 0.1)
    with oc.connect(secured.address, **options_of(secured)) as session:
        session.ops.image.scale(X, 1.0)
        assert openings.next() == DIRECTLY
        streams = session._calls._direct_streams
        assert isinstance(streams, direct_streams.BlockingDirectStreams)
        route = next(iter(session._calls._routes._routes.values()))
        for target in route.targets:
            target.ticket = f"{'A' * 200}"
        route.tickets_until = 0.0
        for stream in list(streams._streams.values()):
            stream.close()
        assert wait_for(lambda: session.ops.image.scale(X, 1.0) is not None and openings.has_next())
        assert openings.next() == DIRECTLY


def test_an_interpreter_that_has_lost_its_daemon_ends_these_streams(
    tmp_path: Path, openings: Openings
):
    """It would not hear of a token that is revoked."""
    secured = Secured(tmp_path)
    daemon = secured.start(tmp_path)
    daemon.expects_errors = True
    file = tmp_path / "token"
    file.write_text(secured.add("worker"))
    words = ("--token-file", str(file), "--tls-ca", secured.certificates.ca, "--name", "guest")
    try:
        with (
            worker(daemon, *words, "--reconnect", str(LONGEST_WAIT)),
            oc.connect(secured.address, wait=0, **options_of(secured)) as session,
        ):
            assert wait_for(lambda: "guest" in [each.name for each in session.interpreters()])
            path = tmp_path / "const.py"
            path.write_text(constant(1))
            session.load(path, interpreter="guest")
            session.ops.const.get(X)
            assert openings.next() == "calls go to interpreter guest directly"
            daemon.process.kill()
            daemon.wait()
            assert wait_for(lambda: _fails(session))
    finally:
        daemon.clean_up()


def _fails(session: oc.Session) -> bool:
    try:
        session.ops.const.get(X)
    except (oc.DaemonUnavailableError, oc.InterpreterDiedError):
        return True
    return False


def test_with_a_quota_of_calls_the_daemon_sees_each(tmp_path: Path):
    secured = Secured(tmp_path)
    daemon = secured.start(tmp_path, "--quota-calls", "2")
    try:
        assert not route_of(secured, secured.token).targets
    finally:
        daemon.clean_up()


def test_tokens_come_before_tickets(secured: Secured):
    """The ticket of a token that was revoked while it was good opens nothing."""
    token = secured.add("call")
    (target,) = route_of(secured, token).targets
    secured.tokens.revoke(token)
    assert wait_for(lambda: f"revoke token {id_of(token)}" in secured.daemon.log())
    good = f"Ticket {target.ticket}"
    closed = (grpc.StatusCode.UNAUTHENTICATED,)
    assert wait_for(lambda: at_port(secured, target.ports[0], good)[0] in closed)


def test_an_interpreter_at_its_own_port_speaks_tls_and_wants_the_daemons_ticket(tmp_path: Path):
    secured = Secured(tmp_path)
    certificates = secured.certificates
    daemon = secured.start(tmp_path, "--tls-client-ca", certificates.ca)
    file = tmp_path / "token"
    file.write_text(secured.add("worker"))
    words = ("--token-file", str(file), "--tls-ca", certificates.ca, *certificates.serve)
    far = ("--name", "far", "--listen", "127.0.0.1:0", "--reconnect", "0")
    try:
        with (
            worker(daemon, *words, *far) as process,
            oc.connect(secured.address, **options_of(secured)) as session,
        ):
            assert wait_for(lambda: "far" in [each.name for each in session.interpreters()])
            path = tmp_path / "const.py"
            path.write_text(constant(7))
            session.load(path, interpreter="far")
            assert session.ops.const.get(X) == 7
            path.write_text(NESTED)
            session.load(path, name="nested", interpreter="far")
            np.testing.assert_array_equal(session.ops.nested.sixfold(X), X * 6)
            # From one interpreter to the other, past the daemon, and back to the client.
            kept = session.put(LARGE, on="far")
            (route,) = {target.interpreter for target in route_of(secured, secured.token).targets}
            assert route == "worker-1"
            np.testing.assert_array_equal(session.ops.image.scale(kept, 2.0), LARGE * 2)
            (port,) = ports_of(process.pid)
            (target,) = route_of(secured, secured.token).targets
            for authorization in ("", f"Bearer {secured.token}", f"Ticket {target.ticket}"):
                code, _ = at_port(secured, port, authorization)
                assert code is grpc.StatusCode.UNAUTHENTICATED
            foreign = Credentials(**{**secured.foreign.client, "tls_ca": certificates.ca})
            for stranger in (Credentials(), Credentials(tls_ca=certificates.ca), foreign):
                with stranger.channel(f"127.0.0.1:{port}", ()) as channel:
                    call = channel.unary_unary("/opdispatch.v1.ExecutionService/Call")
                    with pytest.raises(grpc.RpcError) as caught:
                        call(b"", timeout=LONGEST_WAIT)
                    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
            certificates.issue_server()
            assert session.ops.const.get(X) == 7
    finally:
        daemon.clean_up()


def ports_of(process: int) -> list[int]:
    """Return the TCP ports at which a process listens."""
    found = subprocess.run(
        ["ss", "-Hltnp"], capture_output=True, text=True, check=True, timeout=LONGEST_WAIT
    )
    lines = [line for line in found.stdout.splitlines() if f"pid={process}," in line]
    return sorted({int(line.split()[3].rpartition(":")[2]) for line in lines})
