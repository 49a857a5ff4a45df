"""Tokens at a TCP port: every role with every method that reflection finds, and what is refused."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

import opdispatch_client as oc
from opdispatch_client import aio
from opdispatch_client.cli import main
from opdispatch_server.access.roles import ALLOWED, GRANTABLE, LEAST_ROLE
from tests.service.command_line import run_cli, running_cli
from tests.service.conftest import StartDaemon
from tests.service.libraries import IMAGE
from tests.service.running_daemon import RunningDaemon, wait_for
from tests.service.tokens import LOOKING_OFTEN, Tokens, id_of
from tests.waits import LONGEST_WAIT


@dataclasses.dataclass
class Guarded:
    """A daemon that asks for tokens at its port, which is ``address``, and one of each role."""

    daemon: RunningDaemon
    tokens: Tokens
    of: dict[str, str]
    address: str
    unix: str

    def connect(self, role: str, **options: Any) -> oc.Session:
        return oc.connect(self.address, token=self.of[role], **options)


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    folder = tmp_path_factory.mktemp("tokens")
    tokens = Tokens(folder)
    of = {role: tokens.add(role, name=f"a {role}") for role in GRANTABLE}
    listen = ["127.0.0.1:0", f"unix://{folder}/daemon.sock"]
    options = ("--tokens", str(tokens.path))
    daemon = RunningDaemon(folder, *options, workers=1, listen=listen, constants=LOOKING_OFTEN)
    try:
        daemon.wait_until_ready()
        path = folder / "image.py"
        path.write_text(IMAGE)
        with oc.connect(daemon.addresses[1]) as session:
            session.load(path)
        yield Guarded(daemon, tokens, of, *daemon.addresses)
        for token in of.values():
            assert token.split("_", 2)[2] not in daemon.log()
    finally:
        daemon.clean_up()


def methods_of(target: str) -> dict[str, Any]:
    """Return every method that reflection finds, with its descriptor."""
    with grpc.insecure_channel(target) as channel:
        info = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo

        def ask(**question: str) -> Any:
            request = reflection_pb2.ServerReflectionRequest(**question)
            (reply,) = info(iter([request]), timeout=LONGEST_WAIT)
            return reply

        found = {}
        for service in ask(list_services="").list_services_response.service:
            reply = ask(file_containing_symbol=service.name).file_descriptor_response
            for data in reply.file_descriptor_proto:
                file = FileDescriptorProto.FromString(data)
                for each in file.service:
                    if f"{file.package}.{each.name}" == service.name:
                        for method in each.method:
                            name = f"/{service.name}/{method.name}"
                            found[name] = method
        return found


def outcome_of(channel: grpc.Channel, method: str, kind: Any, token: str | None) -> Any:
    """Return the status that an empty request ends with, or OK if anything comes back."""
    metadata = [] if token is None else [("authorization", f"Bearer {token}")]
    requests = [] if kind.client_streaming else [b""]
    call = channel.stream_stream(method)(iter(requests), timeout=LONGEST_WAIT, metadata=metadata)
    try:
        next(call, None)
        if not kind.server_streaming:
            next(call, None)  # an empty reply comes before a status that is an error
    except grpc.RpcError as error:
        return error.code(), error.details()
    finally:
        call.cancel()
    return grpc.StatusCode.OK, ""


def test_every_method_that_reflection_finds_has_a_row(guarded: Guarded):
    found = methods_of(guarded.unix.replace("unix://", "unix:"))
    assert len(found) > 20
    assert not found.keys() - LEAST_ROLE.keys()
    # Which older versions of the health service do not have.
    assert LEAST_ROLE.keys() - found.keys() <= {"/grpc.health.v1.Health/List"}


@pytest.mark.parametrize("role", GRANTABLE)
def test_each_role_may_call_its_methods_and_no_others(guarded: Guarded, role: str):
    methods = methods_of(guarded.unix.replace("unix://", "unix:"))
    with grpc.insecure_channel(guarded.address) as channel:
        for method, kind in methods.items():
            code, details = outcome_of(channel, method, kind, guarded.of[role])
            if (role, method) == ("worker", "/opdispatch.v1.ExecutionService/Call"):
                assert code is grpc.StatusCode.PERMISSION_DENIED
                assert details.endswith("other calls need the role call")
            elif (role, method) in ALLOWED:
                assert code not in (
                    grpc.StatusCode.PERMISSION_DENIED,
                    grpc.StatusCode.UNAUTHENTICATED,
                ), method
            else:
                least, name = LEAST_ROLE[method], method.rpartition("/")[2]
                assert code is grpc.StatusCode.PERMISSION_DENIED, method
                assert details.endswith(f"has the role {role}, and {name} needs {least}")


def test_without_a_token_that_is_valid_every_method_is_refused(guarded: Guarded):
    methods = methods_of(guarded.unix.replace("unix://", "unix:"))
    good = guarded.of["admin"]
    wrong = [None, "", "x", good[:-1], good.swapcase(), f"opd1_{'0' * 16}_{'x' * 43}"]
    with grpc.insecure_channel(guarded.address) as channel:
        for method, kind in methods.items():
            for token in wrong:
                code, details = outcome_of(channel, method, kind, token)
                assert code is grpc.StatusCode.UNAUTHENTICATED, (method, token)
                name, least = method.rpartition("/")[2], LEAST_ROLE[method]
                assert f"{name} needs one with the role {least}" in details
                assert not token or token == "x" or token not in details


def test_a_request_of_a_stranger_is_not_parsed(guarded: Guarded):
    method = "/opdispatch.v1.RegistryService/ListOperators"
    with grpc.insecure_channel(guarded.address) as channel:
        call = channel.unary_unary(method)
        with pytest.raises(grpc.RpcError) as caught:
            call(b"\xff" * 1000, timeout=LONGEST_WAIT)
    assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED


@pytest.mark.parametrize("lane", ["stream", "grpc"])
def test_a_session_with_a_token_calls_operators(guarded: Guarded, lane: str):
    x = np.arange(3.0)
    with guarded.connect("call", lane=lane) as session:
        for _ in range(3):
            np.testing.assert_array_equal(session.ops.image.pipeline(x), 1 - x * 3)
        kept = session.put(x)
        np.testing.assert_array_equal(kept.numpy(), x)
        with pytest.raises(oc.PermissionDeniedError, match="UnloadLibrary needs load") as caught:
            session.unload("image")
        assert "token create --role load" in caught.value.hint


def test_an_asyncio_session_with_a_token_calls_operators(guarded: Guarded):
    async def call() -> Any:
        async with aio.connect(guarded.address, token=guarded.of["call"]) as session:
            kept = await session.put(np.arange(3.0))
            assert len(await session.libraries()) == 1
            await kept.numpy()
            return await session.ops.image.pipeline(np.arange(3.0))

    np.testing.assert_array_equal(asyncio.run(call()), 1 - np.arange(3.0) * 3)


def test_a_library_is_loaded_over_the_port_by_the_role_load(guarded: Guarded, tmp_path: Path):
    path = tmp_path / "extra.py"
    path.write_text(
        'from opdispatch import Library\nlib = Library("extra", "DEF")\n'
        'lib.define("one() -> int")\nlib.impl("one", lambda: 1, "CompositeExplicitAutograd")\n'
        f"# {'x' * 3_000_000}\n"  # large enough to be uploaded in chunks
    )
    with guarded.connect("load") as session:
        loaded = session.load(path)
        assert loaded.loaded_by == f"token {id_of(guarded.of['load'])} (a load)"
        assert session.ops.extra.one() == 1
        session.unload("extra")
    records = [each for each in guarded.daemon.log_records() if each.get("library") == "extra"]
    events = [(each["event"], each.get("action"), each.get("outcome")) for each in records]
    assert ("audit", "load", "done") in events
    assert ("audit", "unload", "done") in events
    identity = f"token {id_of(guarded.of['load'])} (a load) from 127.0.0.1"
    assert all(each["identity"].startswith(identity) for each in records)


def test_the_daemons_user_needs_no_token_at_the_unix_socket(guarded: Guarded):
    with oc.connect(guarded.unix) as session:
        assert session.lane == "local"
        assert session.check_invariants() == []
    with oc.connect(guarded.unix, token="of another daemon") as session:
        assert session.lane == "local"


def test_a_token_that_expires_is_not_taken_any_more(guarded: Guarded):
    token = guarded.tokens.add("call", name="brief", lifetime=0.0)
    assert wait_for(lambda: id_of(token) in guarded.daemon.log())
    with pytest.raises(oc.UnauthenticatedError, match=r"\(brief\) has expired at"):
        oc.connect(guarded.address, token=token)


def is_refused(call: Callable[..., Any], *args: Any) -> bool:
    try:
        call(*args)
    except oc.UnauthenticatedError:
        return True
    return False


def test_a_revoked_token_ends_what_is_open_and_no_other(guarded: Guarded):
    token = guarded.tokens.add("call", name="mallory")
    assert wait_for(lambda: id_of(token) in guarded.daemon.log())
    x = np.arange(3.0)
    with (
        guarded.connect("call", lane="stream") as good,
        oc.connect(guarded.address, token=token, lane="stream") as bad,
    ):
        kept = good.put(x)
        with grpc.insecure_channel(guarded.address) as channel:
            metadata = [("authorization", f"Bearer {token}")]
            watch = channel.unary_stream("/grpc.health.v1.Health/Watch")
            watching = watch(b"", metadata=metadata, timeout=LONGEST_WAIT)
            next(watching)
            bad.ops.image.pipeline(x)
            good.ops.image.pipeline(x)
            guarded.tokens.revoke(token)
            with pytest.raises(grpc.RpcError) as caught:
                next(watching)
        assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
        assert "is revoked, changed or expired" in caught.value.details()
        # An interpreter ends its stream when it hears of it, perhaps a moment after the daemon.
        assert wait_for(lambda: is_refused(bad.ops.image.pipeline, x))
        with pytest.raises(oc.UnauthenticatedError, match="needs one with the role call"):
            bad.libraries()
        np.testing.assert_array_equal(good.ops.image.pipeline(x), 1 - x * 3)
        np.testing.assert_array_equal(kept.numpy(), x)


def test_a_half_written_file_leaves_the_tokens_in_force(guarded: Guarded):
    whole = guarded.tokens.path.read_bytes()
    guarded.daemon.expects_errors = True
    guarded.tokens.path.write_bytes(whole[:100])
    try:
        assert wait_for(lambda: "tokens_refused" in guarded.daemon.log())
        with guarded.connect("call") as session:
            assert session.operators()
    finally:
        guarded.tokens.path.write_bytes(whole)


def test_the_command_line_takes_a_token_from_a_file_or_the_environment(
    guarded: Guarded,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    file, token = tmp_path / "token", guarded.of["call"]
    file.write_text(token + "\n")
    at = ("--address", guarded.address)
    for word in ("health", "libraries"):
        assert main([word, *at, "--token-file", str(file)]) == 0
        assert main(["--token-file", str(file), word, *at]) == 0
        with monkeypatch.context() as variables:
            variables.setenv("OPDISPATCH_TOKEN", token)
            assert main([word, *at]) == 0
        with monkeypatch.context() as variables:
            variables.setenv("OPDISPATCH_TOKEN_FILE", str(file))
            assert main([word, *at]) == 0
        capsys.readouterr()
        assert main([word, *at]) == 1
        refused = capsys.readouterr().err
        assert "no token came with the request" in refused
        assert "OPDISPATCH_TOKEN" in refused
        assert main([word, *at, "--token-file", str(tmp_path / "none")]) == 1
        assert "none cannot be used: No such file" in capsys.readouterr().err


def test_an_interpreter_joins_with_a_workers_token_alone(guarded: Guarded, tmp_path: Path):
    file = tmp_path / "token"
    file.write_text(guarded.of["admin"])
    at = ("--address", guarded.address, "--token-file", str(file), "--name", "guest")
    refused = run_cli("worker", *at, "--reconnect", "0")
    assert refused.returncode == 1
    assert "has the role admin, and Session needs worker" in refused.stderr
    file.write_text(guarded.of["worker"])
    with running_cli("worker", *at), guarded.connect("call") as session:
        assert wait_for(lambda: "guest" in [each.name for each in session.interpreters()])


def test_a_token_is_not_sent_in_clear_beyond_this_machine():
    for address in ("192.0.2.1:50051", "dns:///daemon.example:50051"):
        with pytest.raises(oc.UnsafeAddressError, match="would be sent in clear"):
            oc.connect(address, token="opd1_secret")


def test_a_secret_is_in_no_text_of_a_session(guarded: Guarded):
    with guarded.connect("call") as session:
        secret = guarded.of["call"]
        assert secret not in repr(session) + repr(session._endpoint) + repr(vars(session))
    with pytest.raises(oc.UnauthenticatedError) as caught:
        oc.connect(guarded.address, token="two words\n")
    assert "two words" not in str(caught.value)


def test_a_daemon_does_not_start_with_tokens_that_it_cannot_read(tmp_path: Path):
    path = tmp_path / "tokens.json"
    path.write_text('{"version": 1, "tokens": [7]}')
    options = ("--listen", "127.0.0.1:0", "--state", str(tmp_path / "state"), "--workers", "0")
    refused = run_cli("serve", *options, "--tokens", str(path))
    assert refused.returncode == 1
    assert str(path) in refused.stderr
    assert "Traceback" not in refused.stderr


def test_a_thousand_streams_with_a_wrong_token_leave_others_alone(guarded: Guarded):
    x = np.arange(3.0)
    with (
        guarded.connect("call", lane="stream") as good,
        grpc.insecure_channel(guarded.address) as channel,
    ):
        method = channel.stream_stream("/opdispatch.v1.ExecutionService/CallStream")
        metadata = [("authorization", f"Bearer opd1_{'0' * 16}_{'x' * 43}")]
        calls = [method(iter(()), metadata=metadata, timeout=LONGEST_WAIT) for _ in range(1000)]
        np.testing.assert_array_equal(good.ops.image.pipeline(x), 1 - x * 3)
        assert {call.code() for call in calls} == {grpc.StatusCode.UNAUTHENTICATED}


def test_a_port_that_asks_for_tokens_gets_no_warning(start_daemon: StartDaemon, tmp_path: Path):
    tokens = Tokens(tmp_path)
    daemon = start_daemon("--tokens", str(tokens.path), workers=0, listen=["127.0.0.1:0"])
    assert "open to any" not in daemon.log()
