"""The daemon's table of remote values: whose they are, where they are, and when they go."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import numpy as np
import pytest

from opdispatch_server.call_context import CallContext
from opdispatch_server.daemon.event_loop.slices import SLICE
from opdispatch_server.daemon.interpreters.session import InterpreterSession
from opdispatch_server.daemon.values.grants import ValueLimits
from opdispatch_server.daemon.values.remote_part import Keeping, RemotePart
from opdispatch_server.daemon.values.table import (
    HeldValue,
    RemoteValueTable,
    ValueHolder,
    kept_in,
)
from opdispatch_wire.errors import (
    InterpreterDiedError,
    RemoteLimitError,
    RemoteValueGoneError,
    WireError,
)
from opdispatch_wire.remote_values import RemoteFacts, store_key, value_id
from opdispatch_wire.v1 import execution_pb2, interpreter_pb2, remote_pb2, values_pb2

MakeSession = Callable[[str], InterpreterSession]
X = np.zeros(4)  # 32 bytes


@pytest.fixture
async def make_session(tmp_path) -> AsyncIterator[MakeSession]:
    """Sessions of interpreters that never answer; their messages stay in their outbox."""
    made = []

    def make(name: str) -> InterpreterSession:
        hello = interpreter_pb2.Hello(name=name, pid=7, address=f"unix:{tmp_path}/{name}")
        made.append(InterpreterSession(hello, name, supervised=False, max_message_bytes=1 << 20))
        return made[-1]

    yield make
    for session in made:
        session.end("the test is over", hung=True)
        await session.close()


@pytest.fixture
def table() -> RemoteValueTable:
    return RemoteValueTable(ValueLimits(values=3, bytes=100))


def _kept(prefix: bytes, count: int = 1) -> list[values_pb2.RemoteTensor]:
    """Return the descriptions of so many kept arrays of 32 bytes."""
    messages = []
    for place in range(count):
        message = values_pb2.RemoteTensor(id=value_id(prefix, place), interpreter="w")
        RemoteFacts.of(X, at="$").write_to(message)
        messages.append(message)
    return messages


def _find(table: RemoteValueTable, holder: ValueHolder, number: bytes) -> HeldValue:
    return table.find(values_pb2.RemoteTensor(session=holder.name, id=number), "$.args[0]")


def _told(session: InterpreterSession) -> list[remote_pb2.ReleaseValues]:
    told = []
    while not session._outbox.empty():
        told.append(session._outbox.get_nowait().release_values)
    return told


A, B = b"a" * 12, b"b" * 12


async def test_a_value_is_found_by_its_session_alone(table, make_session):
    home = make_session("w")
    mine, other = table.open(), table.open()
    table.add_all(mine, home, _kept(A))
    value = _find(table, mine, value_id(A, 0))
    assert (value.shape, value.dtype, value.device, value.nbytes) == ((4,), X.dtype, "cpu", 32)
    assert table.count_at(home) == (1, 32)
    for holder in (other, ValueHolder(bytes(16))):
        with pytest.raises(RemoteValueGoneError, match=r"\$\.args\[0\]: there is no remote tensor"):
            _find(table, holder, value_id(A, 0))
    assert table.check_invariants() == []


async def test_releasing_tells_the_interpreter_once(table, make_session):
    home = make_session("w")
    holder = table.open()
    table.add_all(holder, home, _kept(A, 2))
    table.add_all(holder, home, _kept(B))
    table.release(holder, [value_id(B, 0), value_id(B, 0), b"?" * 16])
    table.release(holder, [A])
    first, second = _told(home)
    assert (first.session, list(first.ids)) == (holder.name, [store_key(value_id(B, 0), 0)])
    assert set(second.ids) == {store_key(value_id(A, n), 0) for n in (0, 1)}
    assert table.count_at(home) == (0, 0)
    assert holder.bytes == 0
    with pytest.raises(RemoteValueGoneError, match="it was released, or never was"):
        _find(table, holder, value_id(A, 0))
    assert table.check_invariants() == []


async def test_the_end_of_a_client_lets_go_of_all_that_it_kept(table, make_session):
    one, two = make_session("one"), make_session("two")
    holder, other = table.open(), table.open()
    table.add_all(holder, one, _kept(A))
    table.add_all(holder, two, _kept(B))
    table.add_all(other, two, _kept(A))
    table.close(holder)
    assert [list(told.ids) for told in _told(one)] == [[]]
    assert [told.session for told in _told(two)] == [holder.name]
    assert table.count_at(two) == (1, 32)
    with pytest.raises(
        RemoteValueGoneError, match=r"the session that kept it has ended, .* another daemon's"
    ):
        _find(table, holder, value_id(A, 0))
    with pytest.raises(RemoteValueGoneError, match="knows of no such session"):
        table.get_holder(remote_pb2.Keep(session=holder.name, prefix=A))
    assert table.check_invariants() == []


async def test_values_used_by_a_call_are_released_when_it_ends(table, make_session):
    home = make_session("w")
    holder = table.open()
    table.add_all(holder, home, _kept(A))
    value = _find(table, holder, value_id(A, 0))
    value.uses = 2
    table.release(holder, [value_id(A, 0)])
    table.unpin([value])
    assert _told(home) == []
    table.unpin([value])
    assert [list(told.ids) for told in _told(home)] == [[store_key(value_id(A, 0), 0)]]
    assert table.check_invariants() == []


async def test_limits_count_values_and_bytes_and_name_the_option(table, make_session):
    home = make_session("w")
    holder = table.open()
    with pytest.raises(RemoteLimitError, match="has 0 remote values, and may have 3") as caught:
        table.add_all(holder, home, _kept(A, 4))
    assert "--remote-values" in caught.value.hint
    assert caught.value.facts["limit"] == "3"
    assert (holder.values, holder.bytes) == ({}, 0)
    table.add_all(holder, home, _kept(A, 3))
    with pytest.raises(RemoteLimitError, match="has 3 remote values"):
        table.check_room(holder)
    table.release(holder, [value_id(A, 0)])
    table.check_room(holder, 36)
    with pytest.raises(RemoteLimitError, match="has 64 bytes in remote values, and may have 100"):
        table.check_room(holder, 37)
    other = table.open()
    table.check_room(other, 100)
    assert table.check_invariants() == []


async def test_an_id_that_is_there_already_is_refused(table, make_session):
    home = make_session("w")
    holder = table.open()
    table.add_all(holder, home, _kept(A))
    with pytest.raises(WireError, match="values that are there already"):
        table.add_all(holder, home, _kept(A))
    assert table.check_invariants() == []


async def test_an_interpreter_takes_its_values_with_it_and_the_error_says_so(table, make_session):
    home, late = make_session("worker-7"), make_session("late")
    holder = table.open()
    table.add_all(holder, home, _kept(A))
    home.end("its process was killed by SIGKILL", hung=True)
    with pytest.raises(RemoteValueGoneError) as caught:
        _find(table, holder, value_id(A, 0))
    assert "interpreter worker-7 (pid 7) went away: its process was killed" in str(caught.value)
    assert caught.value.facts["interpreter"] == "worker-7"
    assert caught.value.facts["value"] == value_id(A, 0).hex()
    assert (holder.bytes, table.count_at(home)) == (0, (0, 0))
    late.end("gone", hung=True)
    table.add_all(holder, late, _kept(B))  # a reply that came with its last breath
    assert holder.bytes == 0
    assert table.check_invariants() == []
    table.release(holder, [A, B])
    assert holder.values == {}


async def test_a_value_that_has_moved_is_counted_where_it_is(table, make_session):
    before, after = make_session("before"), make_session("after")
    holder = table.open()
    table.add_all(holder, before, _kept(A))
    value = _find(table, holder, value_id(A, 0))
    table.has_moved(value, after, 1)
    assert value.home is after
    assert (table.count_at(before), table.count_at(after)) == ((0, 0), (1, 32))
    assert [list(told.ids) for told in _told(before)] == [[store_key(value_id(A, 0), 0)]]
    assert table.check_invariants() == []
    table.close(holder)
    _told(after)
    table.has_moved(value, before, 2)  # its client went while it was on its way
    assert [list(told.ids) for told in _told(before)] == [[store_key(value_id(A, 0), 2)]]
    assert table.check_invariants() == []


async def test_both_homes_learn_of_a_move_that_has_failed(table, make_session):
    before, after = make_session("before"), make_session("after")
    holder = table.open()
    table.add_all(holder, before, _kept(A))
    part = RemotePart(table, execution_pb2.CallRequest())
    message = values_pb2.RemoteTensor(session=holder.name, id=value_id(A, 0))
    value = part.find(message, "$.args[0]", writable=False)
    with pytest.raises(InterpreterDiedError, match="it was fetching remote tensors"):
        async with part.at(after, CallContext()):  # which has no lane
            pytest.fail("the call began")
    for session in (before, after):
        assert [list(told.ids) for told in _told(session)] == [[store_key(value_id(A, 0), 1)]]
    assert (value.home, value.uses, value.moving) == (before, 0, None)
    assert table.check_invariants() == []


def test_values_in_lists_of_a_reply_are_found():
    reply = execution_pb2.CallReply()
    reply.returns.add().integer = 3
    reply.returns.add().remote.id = b"1"
    items = reply.returns.add().list.items
    items.add().remote.id = b"2"
    items.add().list.items.add().remote.id = b"3"
    assert [message.id for message in kept_in(reply)] == [b"1", b"2", b"3"]


async def test_many_values_of_a_client_that_goes_are_forgotten_in_several_steps(make_session):
    table, home = RemoteValueTable(ValueLimits(values=10_000, bytes=1 << 30)), make_session("w")
    holder, count = table.open(), 3 * SLICE
    table.add_all(holder, home, _kept(A, count))
    table.close(holder)
    assert [(each.session, [*each.ids]) for each in _told(home)] == [(holder.name, [])]
    counts = []
    while (left := table.count_at(home)[0]) != 0:
        counts.append(left)
        assert table.check_invariants() == []
        with pytest.raises(RemoteValueGoneError, match="the session that kept it has ended"):
            _find(table, holder, value_id(A, count - 1))
        with pytest.raises(RemoteValueGoneError, match="no such session"):
            table.get_holder(remote_pb2.Keep(session=holder.name, prefix=B))
        await asyncio.sleep(0)
    assert sorted({*counts}, reverse=True) == [count, count - SLICE, count - 2 * SLICE]


async def test_value_that_arrives_after_its_client_has_gone_is_released(make_session):
    table = RemoteValueTable(ValueLimits(values=10_000, bytes=1 << 30))
    here, there = make_session("here"), make_session("there")
    holder = table.open()
    table.add_all(holder, here, _kept(A, 2 * SLICE))
    value = _find(table, holder, value_id(A, 2 * SLICE - 1))
    table.close(holder)
    assert holder.values  # which are being forgotten
    table.has_moved(value, there, 1)
    assert [[*each.ids] for each in _told(there)] == [[store_key(value.number, 1)]]


@pytest.mark.parametrize("ending", ["the caller gives up", "the client goes"])
async def test_kept_values_are_added_in_slices_and_released_if_unwanted(make_session, ending):
    table, home = RemoteValueTable(ValueLimits(values=10_000, bytes=1 << 30)), make_session("w")
    holder = table.open()
    keep = remote_pb2.Keep(session=holder.name, prefix=A)
    keeping = Keeping(table, holder, keep, home)
    reply = execution_pb2.CallReply()
    for message in _kept(A, 3 * SLICE):
        reply.returns.add().list.items.add().remote.CopyFrom(message)
    keeping.take(reply)
    noting = asyncio.create_task(keeping.note())
    while not holder.values:
        await asyncio.sleep(0)
    assert len(holder.values) < 3 * SLICE
    if ending == "the client goes":
        table.close(holder)
        with pytest.raises(RemoteValueGoneError, match="the session that was to keep them"):
            await noting
    else:
        noting.cancel()
    keeping.abandon()
    assert A in [number for each in _told(home) for number in each.ids]
    assert not holder.values
    assert table.check_invariants() == []
