"""Quotas: what one identity may use, and that nothing stays counted."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from opdispatch_server.access.authentication import ANYBODY
from opdispatch_server.access.identity import OWNER, Identity
from opdispatch_server.access.roles import Role
from opdispatch_server.call_context import CallContext
from opdispatch_server.daemon.calls.quotas import QuotaLimits, Quotas
from opdispatch_wire.errors import QueueFullError
from opdispatch_wire.v1 import execution_pb2

ALICE = Identity("token 01 (alice)", Role.CALL, token="01")
BOB = Identity("token 02 (bob)", Role.CALL, token="02")
REQUEST = execution_pb2.CallRequest(operator="a::f")


class Runner:
    """A runner whose calls go on until they are ended."""

    def __init__(self) -> None:
        self.quick = True
        self.ends: list[Any] = []
        self.abandoned = 0
        self.goes_on = asyncio.Event()

    def begin(self, request: Any, context: Any, on_reply: Any) -> Any:
        if not self.quick:
            return None
        self.ends.append(on_reply)
        return self

    def abandon(self) -> None:
        self.abandoned += 1

    async def call(self, request: Any, context: Any, broken: Any = None) -> Any:
        await self.goes_on.wait()
        return execution_pb2.CallReply()


@pytest.mark.parametrize("identity", [OWNER, ANYBODY, Identity("token 03", Role.WORKER)])
def test_some_have_no_quota(identity: Identity):
    runner, quotas = Runner(), Quotas(QuotaLimits(calls=1))
    assert quotas.runner_for(identity, runner) is runner
    with quotas.session(identity), quotas.session(identity), quotas.upload(identity):
        assert quotas.check_invariants() == []


def test_without_limits_nothing_is_counted():
    runner = Runner()
    assert Quotas(QuotaLimits()).runner_for(ALICE, runner) is runner


async def test_calls_over_the_quota_are_refused_and_others_are_not():
    runner, quotas = Runner(), Quotas(QuotaLimits(calls=2))
    alice, bob = quotas.runner_for(ALICE, runner), quotas.runner_for(BOB, runner)
    replies: list[Any] = []
    first = alice.begin(REQUEST, CallContext(), replies.append)
    second = asyncio.create_task(alice.call(REQUEST, CallContext()))
    await asyncio.sleep(0)
    assert first is not None
    assert alice.begin(REQUEST, CallContext(), replies.append) is None
    with pytest.raises(QueueFullError) as caught:
        await alice.call(REQUEST, CallContext())
    error = caught.value
    assert error.message == (
        "token 01 (alice) has 2 calls under way, which is its quota; the call of a::f never started"
    )
    assert (error.facts["started"], error.facts["retry_after"]) == ("no", "0.100")
    assert bob.begin(REQUEST, CallContext(), replies.append) is not None
    # One that has had room, and lost its interpreter, is no new one.
    third = asyncio.create_task(alice.call(REQUEST, CallContext(), object()))
    runner.goes_on.set()
    await asyncio.gather(second, third)
    assert alice.begin(REQUEST, CallContext(), replies.append) is not None
    for end in runner.ends:
        end("reply")
    assert replies == ["reply"] * 3
    assert quotas.check_invariants() == []
    assert not quotas._usage


async def test_bytes_over_the_quota_are_refused_but_one_call_has_room():
    runner, quotas = Runner(), Quotas(QuotaLimits(bytes=100))
    alice = quotas.runner_for(ALICE, runner)
    large = execution_pb2.CallRequest(operator="a::" + "x" * 1000)
    call = alice.begin(large, CallContext(), lambda reply: None)
    assert call is not None
    with pytest.raises(QueueFullError, match=r"calls of 10\d\d bytes under way"):
        await alice.call(REQUEST, CallContext())
    call.abandon()
    call.abandon()
    assert runner.abandoned == 2
    runner.ends[0]("late")
    assert not quotas._usage
    assert alice.begin(REQUEST, CallContext(), lambda reply: None) is not None


async def test_a_call_that_does_not_begin_or_fails_is_not_counted():
    runner, quotas = Runner(), Quotas(QuotaLimits(calls=1))
    alice = quotas.runner_for(ALICE, runner)
    runner.quick = False
    assert alice.begin(REQUEST, CallContext(), lambda reply: None) is None
    calling = asyncio.create_task(alice.call(REQUEST, CallContext()))
    await asyncio.sleep(0)
    calling.cancel()
    await asyncio.gather(calling, return_exceptions=True)
    assert not quotas._usage


def test_sessions_and_uploads_have_quotas_of_their_own():
    quotas = Quotas(QuotaLimits(sessions=1, uploads=2))
    with quotas.session(ALICE), quotas.upload(ALICE), quotas.upload(ALICE):
        with pytest.raises(QueueFullError, match="1 sessions with values"), quotas.session(ALICE):
            pass
        with pytest.raises(QueueFullError, match="2 uploads under way"), quotas.upload(ALICE):
            pass
        with quotas.session(BOB):
            assert quotas.check_invariants() == []
    assert not quotas._usage
