"""How much one identity may keep in interpreters, whatever number of sessions it opens."""

from __future__ import annotations

import pytest

from opdispatch_server.access.authentication import ANYBODY
from opdispatch_server.access.identity import OWNER, Identity
from opdispatch_server.access.roles import Role
from opdispatch_server.daemon.calls.quotas import QuotaLimits, Quotas
from opdispatch_server.daemon.interpreters.session import InterpreterSession
from opdispatch_server.daemon.values.grants import ValueLimits
from opdispatch_server.daemon.values.identity_quota import ValueQuota
from opdispatch_server.daemon.values.table import RemoteValueTable
from opdispatch_wire.errors import QueueFullError, RemoteLimitError
from opdispatch_wire.v1 import interpreter_pb2
from tests.unit.test_remote_value_table import _kept

ALICE = Identity("token 01 (alice)", Role.CALL, token="01")
BOB = Identity("token 02 (bob)", Role.CALL, token="02")


@pytest.fixture
async def home(tmp_path):
    hello = interpreter_pb2.Hello(name="w", pid=7, address=f"unix:{tmp_path}/w")
    session = InterpreterSession(hello, "w", supervised=False, max_message_bytes=1 << 20)
    yield session
    session.end("the test is over", hung=True)
    await session.close()


async def test_the_sessions_of_one_identity_share_its_quota(home: InterpreterSession):
    quotas = Quotas(QuotaLimits(values=2, value_bytes=100))
    table = RemoteValueTable(ValueLimits(values=10, bytes=1000))
    one, two = (table.open(quotas.values_of(ALICE)) for _ in range(2))
    other = table.open(quotas.values_of(BOB))
    assert one.quota is two.quota is not other.quota
    table.add_all(one, home, _kept(b"a" * 12))
    table.check_room(two, 68)
    with pytest.raises(QueueFullError, match=r"\(alice\) keeps 1 remote values of 32") as caught:
        table.check_room(two, 69)
    assert "2 values and 100 bytes" in caught.value.message
    assert caught.value.facts["started"] == "no"
    with pytest.raises(RemoteLimitError, match="has no room for 2 more of 64 bytes"):
        table.add_all(two, home, _kept(b"b" * 12, 2))
    table.add_all(two, home, _kept(b"c" * 12))
    with pytest.raises(QueueFullError):
        table.check_room(one)
    table.check_room(other, 100)
    table.close(two)
    table.check_room(one)
    table.close(one)
    assert not one.quota.holders
    assert table.check_invariants() == []


def test_a_quota_of_bytes_alone(home: InterpreterSession):
    table = RemoteValueTable(ValueLimits(values=10, bytes=1000))
    holder = table.open(ValueQuota("alice", None, 64))
    table.add_all(holder, home, _kept(b"a" * 12, 2))
    with pytest.raises(QueueFullError, match="its quota is 64 bytes"):
        table.check_room(holder)


def test_the_daemons_user_has_none():
    quotas = Quotas(QuotaLimits(values=1))
    for free in (OWNER, ANYBODY, Identity("w", Role.WORKER)):
        assert quotas.values_of(free) is None
    assert Quotas(QuotaLimits(calls=1)).values_of(ALICE) is None
    assert quotas.values_of(ALICE) is not None


@pytest.mark.parametrize(("share", "most"), [(None, None), (100, 64), (25, 16), (1, 1)])
def test_a_share_of_a_queue_is_one_call_at_least(share: int | None, most: int | None):
    assert QuotaLimits(queue_share=share).calls_of_one(64) == most


def test_calls_that_are_counted_do_not_go_past_the_daemon():
    for limits in (QuotaLimits(calls=1), QuotaLimits(bytes=1), QuotaLimits(queue_share=5)):
        assert Quotas(limits).counts_calls_of(ALICE)
        assert not Quotas(limits).counts_calls_of(OWNER)
    assert not Quotas(QuotaLimits(uploads=1, sessions=1, values=1)).counts_calls_of(ALICE)
