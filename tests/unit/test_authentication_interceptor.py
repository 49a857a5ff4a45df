"""The guard before the methods of a gRPC server, of every kind."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from opdispatch_server.access import roles
from opdispatch_server.access.authentication import CALLER, Authentication
from opdispatch_server.access.identity import OWNER
from opdispatch_server.access.roles import Role
from opdispatch_server.access.token_file import TokenFile
from opdispatch_server.serving.authentication_interceptor import AuthenticationInterceptor
from opdispatch_wire.asyncio_grpc import asyncio_channel, asyncio_server
from tests.service.tokens import Tokens
from tests.waits import LONGEST_WAIT

KINDS = ["unary_unary", "unary_stream", "unary_generator", "stream_stream", "stream_generator"]


class Service:
    """A method of each kind, which says what has come, and from whom; then it waits."""

    def __init__(self) -> None:
        self.parsed: list[bytes] = []
        self.ended: list[str] = []
        self.waits = False

    def parse(self, data: bytes) -> bytes:
        self.parsed.append(data)
        return data

    async def _say(self, request: bytes) -> bytes:
        try:
            if self.waits:
                await asyncio.sleep(3600)
        finally:
            self.ended.append("ended")
        return request + CALLER.get().role.encode()

    async def unary_unary(self, request: bytes, context: Any) -> bytes:
        return await self._say(request)

    async def unary_stream(self, request: bytes, context: Any) -> None:
        await context.write(await self._say(request))

    async def unary_generator(self, request: bytes, context: Any) -> AsyncIterator[bytes]:
        yield await self._say(request)

    async def stream_stream(self, requests: AsyncIterator[bytes], context: Any) -> None:
        async for request in requests:
            await context.write(await self._say(request))

    async def stream_generator(
        self, requests: AsyncIterator[bytes], context: Any
    ) -> AsyncIterator[bytes]:
        async for request in requests:
            yield await self._say(request)

    def handlers(self) -> Any:
        made = {
            "unary_unary": grpc.unary_unary_rpc_method_handler,
            "unary_stream": grpc.unary_stream_rpc_method_handler,
            "unary_generator": grpc.unary_stream_rpc_method_handler,
            "stream_stream": grpc.stream_stream_rpc_method_handler,
            "stream_generator": grpc.stream_stream_rpc_method_handler,
        }
        return grpc.method_handlers_generic_handler(
            "a.Service", {kind: made[kind](getattr(self, kind), self.parse) for kind in KINDS}
        )


@pytest.fixture
def tokens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tokens:
    """A file of tokens; the role call may call every method of the service but ``unary_unary``."""
    allowed = {(Role.CALL, f"/a.Service/{kind}") for kind in KINDS}
    monkeypatch.setattr(roles, "ALLOWED", frozenset(allowed))
    return Tokens(tmp_path)


class Served:
    """A server with the guard, at a port and at a unix socket."""

    def __init__(self, tokens: Tokens, folder: Path) -> None:
        self.service = Service()
        self.authentication = Authentication(TokenFile(tokens.path))
        self.server = asyncio_server([], [AuthenticationInterceptor(self.authentication)])
        self.server.add_generic_rpc_handlers((self.service.handlers(),))
        self.port = f"127.0.0.1:{self.server.add_insecure_port('127.0.0.1:0')}"
        self.unix = f"unix:{folder}/socket"
        self.server.add_insecure_port(self.unix)

    async def __aenter__(self) -> Served:
        await self.server.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.server.stop(None)

    async def ask(self, target: str, kind: str, token: str = "") -> list[bytes]:
        metadata = (("authorization", f"Bearer {token}"),) if token else ()
        async with asyncio_channel(target, []) as channel:
            if kind == "unary_unary":
                method = channel.unary_unary("/a.Service/unary_unary")
                return [await method(b"x", metadata=metadata, timeout=LONGEST_WAIT)]
            if kind.startswith("unary"):
                call = channel.unary_stream(f"/a.Service/{kind}")(
                    b"x", metadata=metadata, timeout=LONGEST_WAIT
                )
            else:
                call = channel.stream_stream(f"/a.Service/{kind}")(
                    iter([b"x"]), metadata=metadata, timeout=LONGEST_WAIT
                )
            return [reply async for reply in call]


@pytest.mark.parametrize("kind", KINDS)
async def test_method_is_served_to_permitted_identities(tokens: Tokens, tmp_path: Path, kind: str):
    token = tokens.add("call")
    async with Served(tokens, tmp_path) as served:
        assert await served.ask(served.port, kind, token) == [b"xcall"]
        assert await served.ask(served.unix, kind) == [b"xowner"]
        assert await served.ask(served.unix, kind, "wrong") == [b"xowner"]
        assert CALLER.get() is OWNER


@pytest.mark.parametrize("kind", KINDS)
async def test_refused_request_is_neither_parsed_nor_run(tokens: Tokens, tmp_path: Path, kind: str):
    other = tokens.add("admin")
    async with Served(tokens, tmp_path) as served:
        for token, code in (
            ("", grpc.StatusCode.UNAUTHENTICATED),
            ("wrong", grpc.StatusCode.UNAUTHENTICATED),
            (other, grpc.StatusCode.PERMISSION_DENIED),
        ):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await served.ask(served.port, kind, token)
            assert caught.value.code() is code
        assert served.service.parsed == []
        assert served.service.ended == []


@pytest.mark.parametrize("kind", KINDS)
async def test_a_method_under_way_ends_with_its_token(tokens: Tokens, tmp_path: Path, kind: str):
    token = tokens.add("call")
    async with Served(tokens, tmp_path) as served:
        served.service.waits = True
        asking = asyncio.create_task(served.ask(served.port, kind, token))
        while not served.service.parsed:
            await asyncio.sleep(0.01)
        served.authentication.revocation.look()
        assert not served.service.ended
        tokens.revoke(token)
        served.authentication.revocation.look()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await asking
        assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
        assert "is revoked, changed or expired" in (caught.value.details() or "")
        assert served.service.ended == ["ended"]


async def test_a_client_that_cancels_ends_its_method_as_ever(tokens: Tokens, tmp_path: Path):
    token = tokens.add("call")
    async with Served(tokens, tmp_path) as served:
        served.service.waits = True
        asking = asyncio.create_task(served.ask(served.port, "unary_stream", token))
        while not served.service.parsed:
            await asyncio.sleep(0.01)
        asking.cancel()
        while not served.service.ended:
            await asyncio.sleep(0.01)
        assert not served.authentication.revocation._under_way


async def test_an_unknown_method_is_unimplemented(tokens: Tokens, tmp_path: Path):
    async with Served(tokens, tmp_path) as served, asyncio_channel(served.port, []) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await channel.unary_unary("/a.Service/none")(b"", timeout=LONGEST_WAIT)
        assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
