"""Values that direct calls keep: until the daemon hears of them, and how it does."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import AsyncIterator

import numpy as np
import pytest

from opdispatch_server.daemon.interpreters.session import InterpreterSession
from opdispatch_server.daemon.values.direct_keeps import MOST_PENDING, DirectKeeps
from opdispatch_server.daemon.values.grants import ValueLimits, part_of
from opdispatch_server.daemon.values.identity_quota import ValueQuota
from opdispatch_server.daemon.values.table import RemoteValueTable, ValueHolder
from opdispatch_server.process_watch import describe_exit
from opdispatch_server.worker.execution.planned_keeps import note_kept
from opdispatch_server.worker.values.store import KeptResults, ValueStore
from opdispatch_wire.errors import RefusedError, RemoteValueGoneError
from opdispatch_wire.remote_values import value_id
from opdispatch_wire.v1 import execution_pb2, interpreter_pb2, remote_pb2, values_pb2
from opdispatch_wire.values import fill_value

A, B, C = b"a" * 12, b"b" * 12, b"c" * 12


def settle(
    store: ValueStore, session: bytes, values: int, nbytes: int, *release: bytes
) -> list[bytes]:
    """Ask an interpreter, and return the ids of which it says that they were kept."""
    question = remote_pb2.SettleValues(
        session=session, release=release, values=values, bytes=nbytes
    )
    return [each.id for each in store.keeps.settle(question).values]


def keep(store: ValueStore, session: bytes, prefix: bytes, count: int = 1) -> bool:
    """Keep arrays of 32 bytes, as a direct call does; return whether they stay."""
    results = [np.zeros(4) for _ in range(count)]
    kept = KeptResults(store, session, prefix, "w")
    for place in range(count):
        kept.take(results, place)
    assert kept.nbytes == 32 * count
    return store.keeps.note(session, prefix, kept.kept, kept.nbytes)


# -- in the interpreter -----------------------------------------------------------------------

ME, OTHER = b"m" * 16, b"o" * 16


def test_direct_call_without_a_grant_keeps_no_value():
    store = ValueStore()
    assert not store.keeps.has_room(ME)
    assert not keep(store, ME, A)
    assert store.count() == 0
    settle(store, OTHER, 5, 1000)
    assert not store.keeps.has_room(ME)
    settle(store, ME, 0, 1000)
    assert not store.keeps.has_room(ME)


def test_a_grant_is_used_up_by_values_and_by_bytes():
    store = ValueStore()
    settle(store, ME, 3, 1000)
    assert keep(store, ME, A, 2)
    assert not keep(store, ME, B, 2)
    assert keep(store, ME, C)
    assert not store.keeps.has_room(ME)
    assert store.count() == 3
    assert settle(store, ME, 9, 40) == [value_id(A, 0), value_id(A, 1), value_id(C, 0)]
    assert keep(store, ME, B)
    assert not keep(store, ME, b"d" * 12)
    assert store.count() == 4
    assert settle(store, ME, 0, 0) == [value_id(B, 0)]
    assert settle(store, ME, 0, 0) == []


def test_the_daemon_never_hears_of_what_is_released_before():
    store = ValueStore()
    settle(store, ME, 9, 1000)
    assert keep(store, ME, A, 2)
    assert keep(store, ME, B, 2)
    assert settle(store, ME, 9, 1000, value_id(A, 0), B, b"?" * 16) == [value_id(A, 1)]
    assert store.count() == 1
    assert settle(store, ME, 9, 1000, value_id(A, 1)) == []  # the daemon releases that
    assert store.count() == 1


def test_a_call_keeps_nothing_whose_caller_has_given_up():
    store = ValueStore()
    settle(store, ME, 9, 1000, A)
    assert not keep(store, ME, A)
    assert keep(store, ME, B)
    assert store.count() == 1
    for number in range(1100):  # only so many are remembered
        settle(store, ME, 9, 1000, number.to_bytes(12))
    assert keep(store, ME, A)
    assert not keep(store, ME, (1099).to_bytes(12))


def test_released_session_keeps_no_grant():
    store = ValueStore()
    settle(store, ME, 9, 1000)
    settle(store, OTHER, 9, 1000)
    assert keep(store, ME, A)
    store.release(remote_pb2.ReleaseValues(session=ME))
    assert not store.keeps.has_room(ME)
    assert not keep(store, ME, B)
    assert store.count() == 0
    assert keep(store, OTHER, A)
    store.clear()
    assert not store.keeps.has_room(OTHER)


def test_a_reply_says_what_was_kept():
    store = ValueStore()
    settle(store, ME, 1, 1000)
    message = remote_pb2.Keep(session=ME, prefix=A)
    for number, is_kept in ((A, True), (B, False)):
        results = [np.zeros(4)]
        kept = KeptResults(store, ME, number, "w")
        reply = execution_pb2.CallReply()
        fill_value(reply.returns.add(), kept.take(results, 0), at="$")
        message.prefix = number
        if is_kept:
            note_kept(store, message, reply)
        else:
            with pytest.raises(RefusedError):
                note_kept(store, message, reply)
    assert settle(store, ME, 1, 1000) == [value_id(A, 0)]
    assert store.count() == 1


# -- in the daemon ----------------------------------------------------------------------------


class Interpreter:
    """A session whose interpreter answers for ``store``, once it may."""

    def __init__(self, name: str, folder: object) -> None:
        hello = interpreter_pb2.Hello(name=name, pid=7, address=f"unix:{folder}/{name}")
        self.session = InterpreterSession(
            hello, name, supervised=False, max_message_bytes=1 << 20, direct_lane="lane"
        )
        self.store = ValueStore()
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self.questions = 0
        self._task = asyncio.create_task(self._serve())

    async def _serve(self) -> None:
        while True:
            message = await self.session._outbox.get()
            await self.may_answer.wait()
            if message.HasField("release_values"):
                self.store.release(message.release_values)
                continue
            self.questions += 1
            settled = self.store.keeps.settle(message.settle_values)
            answer = interpreter_pb2.InterpreterMessage(settled_values=settled)
            self.session._answers[message.instruction_id].set_result(answer)

    async def close(self) -> None:
        self._task.cancel()
        self.session.end("the test is over", hung=True)
        await self.session.close()


@pytest.fixture
async def there(tmp_path: object) -> AsyncIterator[Interpreter]:
    interpreter = Interpreter("w", tmp_path)
    yield interpreter
    await interpreter.close()


@pytest.fixture
def table() -> RemoteValueTable:
    return RemoteValueTable(ValueLimits(values=80, bytes=100_000))


@pytest.fixture
def keeps(table: RemoteValueTable) -> DirectKeeps:
    return DirectKeeps(table)


async def granted(table: RemoteValueTable, keeps: DirectKeeps, there: Interpreter) -> ValueHolder:
    """A client whose direct calls may keep values."""
    holder = table.open()
    assert await keeps.grant(remote_pb2.Keep(session=holder.name), there.session)
    return holder


def call_with(holder: ValueHolder, *numbers: bytes) -> execution_pb2.CallRequest:
    request = execution_pb2.CallRequest()
    for number in numbers:
        remote = request.args.add().remote
        remote.session, remote.id, remote.interpreter = holder.name, number, "w"
    return request


def is_found(table: RemoteValueTable, holder: ValueHolder, number: bytes) -> bool:
    message = values_pb2.RemoteTensor(session=holder.name, id=number, interpreter="w")
    try:
        return table.find(message, "$").number == number
    except RemoteValueGoneError:
        return False


async def test_the_daemon_hears_of_a_value_that_a_call_names(table, keeps, there):
    holder = await granted(table, keeps, there)
    assert keep(there.store, holder.name, A)
    assert not is_found(table, holder, value_id(A, 0))
    await keeps.prepare(call_with(holder, value_id(A, 0)))
    assert is_found(table, holder, value_id(A, 0))
    assert table.count_at(there.session) == (1, 32)
    asked = there.questions
    await keeps.prepare(call_with(holder, value_id(A, 0)))
    assert there.questions == asked, "it knows that one already"
    assert table.check_invariants() == []


async def test_a_value_is_found_among_many_arguments(table, keeps, there):
    holder = await granted(table, keeps, there)
    assert keep(there.store, holder.name, A)
    request = call_with(holder, value_id(A, 0))
    request.args.add().text = "x" * (1 << 20)
    await keeps.prepare(request)
    assert is_found(table, holder, value_id(A, 0))


async def test_hear_all_counts_every_kept_value(table, keeps, there):
    holder = await granted(table, keeps, there)
    assert keep(there.store, holder.name, A, 3)
    await keeps.hear_all()
    assert table.count_at(there.session) == (3, 96)


async def test_an_interpreter_that_hangs_is_not_waited_for_then(table, keeps, there):
    holder = await granted(table, keeps, there)
    assert keep(there.store, holder.name, A)
    there.may_answer.clear()
    await keeps.hear_all()
    assert table.count_at(there.session) == (0, 0)
    there.may_answer.set()
    await keeps.prepare(call_with(holder, value_id(A, 0)))
    assert table.count_at(there.session) == (1, 32)


async def test_released_values_are_dropped_heard_of_or_not(table, keeps, there):
    holder = await granted(table, keeps, there)
    assert keep(there.store, holder.name, A, 2)
    await keeps.hear_all()
    assert keep(there.store, holder.name, B, 2)
    ids = [value_id(A, 0), value_id(B, 0)]
    table.release(holder, ids)
    await keeps.release(holder, ids)
    await keeps.hear_all()
    await asyncio.gather(*keeps._tasks)
    await keeps.hear_all()
    assert set(holder.values) == {value_id(A, 1), value_id(B, 1)}
    assert there.store.count() == 2


async def test_a_value_of_which_it_hears_while_it_is_released_goes(table, keeps, there):
    holder = await granted(table, keeps, there)
    assert keep(there.store, holder.name, A)
    there.may_answer.clear()
    hearing = asyncio.create_task(keeps.prepare(call_with(holder, value_id(A, 0))))
    await asyncio.sleep(0)
    await keeps.release(holder, [value_id(A, 0)])
    there.may_answer.set()
    await hearing
    await asyncio.gather(*keeps._tasks)
    await keeps.hear_all()
    assert not holder.values
    assert there.store.count() == 0


async def test_grants_are_a_part_of_what_may_still_be_kept(table, keeps, there):
    holder = await granted(table, keeps, there)
    assert holder.grants[there.session].values == part_of(80, 0).values == 10
    assert not table.has_room(holder, 71)
    assert keep(there.store, holder.name, A, 10)
    assert not there.store.keeps.has_room(holder.name)
    await keeps.hear_all()
    assert len(holder.values) == 10
    assert holder.grants[there.session].values == 8  # of 70, of which 10 were granted then
    assert table.has_room(holder, 62)
    assert not table.has_room(holder, 63)


async def test_grant_is_withdrawn_if_the_table_is_full(table, keeps, there):
    holder = await granted(table, keeps, there)
    table.limits = ValueLimits(12, 100_000)
    assert keep(there.store, holder.name, A, 2)
    request = execution_pb2.CallRequest()
    request.keep.session, request.keep.prefix = holder.name, B
    await keeps.prepare(request)
    assert len(holder.values) == 0, "there is room for one more, whatever was granted"
    table.limits = ValueLimits(10, 100_000)
    await keeps.prepare(request)
    assert len(holder.values) == 2
    assert not there.store.keeps.has_room(holder.name)
    assert table.has_room(holder, 8)
    table.limits = ValueLimits(9, 100_000)
    assert not await keeps.grant(request.keep, there.session), "an eighth of so few is none"


async def test_a_call_that_was_lost_keeps_nothing_any_more(table, keeps, there):
    holder = await granted(table, keeps, there)
    request = execution_pb2.CallRequest()
    request.keep.session, request.keep.prefix = holder.name, A
    request.lost.session = 3
    await keeps.prepare(request)
    assert not keep(there.store, holder.name, A)


async def test_session_with_a_shared_quota_gets_no_grant(table, keeps, there):
    holder = table.open(ValueQuota("alice", 5, None))
    assert not await keeps.grant(remote_pb2.Keep(session=holder.name), there.session)
    assert not await keeps.grant(remote_pb2.Keep(session=bytes(16)), there.session)
    assert not table.granted


async def test_the_end_of_a_client_ends_its_grants(table, keeps, there):
    holder = await granted(table, keeps, there)
    assert keep(there.store, holder.name, A)
    table.close(holder)
    await keeps.prepare(call_with(holder, value_id(A, 0)))
    other = await granted(table, keeps, there)  # after the interpreter has heard of the end
    assert there.store.count() == 0
    assert not there.store.keeps.has_room(holder.name)
    assert list(table.granted) == [other]


async def ask_one(
    keeps: DirectKeeps, holder: ValueHolder, there: Interpreter
) -> asyncio.Task[None]:
    """Return the task of a call that has asked, which waits for the answer."""
    asking = asyncio.create_task(keeps.prepare(call_with(holder, value_id(C, 9))))
    while not holder.grants[there.session].asking.locked():
        await asyncio.sleep(0)
    return asking


async def test_hanging_interpreter_gets_one_question(table, keeps, there):
    holder = await granted(table, keeps, there)
    prefixes = [number.to_bytes(12) for number in range(9)]
    assert all(keep(there.store, holder.name, prefix) for prefix in prefixes)
    before = there.questions
    there.may_answer.clear()
    asked = await ask_one(keeps, holder, there)
    for prefix in prefixes[1:]:
        await keeps.release(holder, [value_id(prefix, 0), b"no id"])
        calling = asyncio.create_task(keeps.prepare(call_with(holder, value_id(B, 0))))
        await asyncio.wait([calling], timeout=0)
        calling.cancel()
        await asyncio.wait([calling])
    await keeps.hear_all()
    assert len(keeps._tasks) == 2
    there.may_answer.set()
    await asked
    await asyncio.gather(*keeps._tasks)
    assert there.questions == before + 2
    assert list(holder.values) == [value_id(prefixes[0], 0)]


async def test_call_that_names_many_unheard_values_asks_each_interpreter_once(table, keeps, there):
    holder = await granted(table, keeps, there)
    assert keep(there.store, holder.name, A)
    before = there.questions
    stale = [value_id(B, place) for place in range(20)]
    await keeps.prepare(call_with(holder, *stale, value_id(A, 0)))
    assert there.questions == before + 1
    assert is_found(table, holder, value_id(A, 0))


async def test_stream_of_releases_waits_while_too_many_wait_for_an_interpreter(table, keeps, there):
    holder = await granted(table, keeps, there)
    there.may_answer.clear()
    asked = await ask_one(keeps, holder, there)
    ids = [number.to_bytes(16) for number in range(MOST_PENDING + 1)]
    await keeps.release(holder, ids[:-1])
    releasing = asyncio.create_task(keeps.release(holder, ids[-1:]))
    await asyncio.wait([releasing], timeout=0)
    assert not releasing.done()
    there.may_answer.set()
    await asyncio.gather(asked, releasing)
    await keeps.release(holder, ids[:1])


async def test_lost_call_of_which_the_daemon_has_heard_is_kept_no_more(table, keeps, there):
    holder = await granted(table, keeps, there)
    assert keep(there.store, holder.name, A)
    await keeps.hear_all()
    request = execution_pb2.CallRequest()
    request.keep.session, request.keep.prefix = holder.name, A
    request.lost.session = 3
    await keeps.prepare(request)
    assert not holder.values, "the call is made again, with the same prefix"


async def test_question_that_waits_is_not_asked_after_the_end_of_its_client(table, keeps, there):
    holder = await granted(table, keeps, there)
    there.may_answer.clear()
    asked = await ask_one(keeps, holder, there)
    waits = asyncio.create_task(keeps.prepare(call_with(holder, value_id(B, 0))))
    while len(keeps._tasks) < 2:
        await asyncio.sleep(0)
    table.close(holder)
    there.may_answer.set()
    await asyncio.gather(asked, waits)
    await granted(table, keeps, there)  # after the interpreter has carried out everything
    assert not there.store.keeps.has_room(holder.name)


async def test_the_end_of_an_interpreter_is_why_its_values_have_gone(table, keeps, there):
    holder = await granted(table, keeps, there)
    assert keep(there.store, holder.name, A)
    there.session.end("it was killed", hung=True)
    assert not holder.grants
    assert not await keeps.grant(remote_pb2.Keep(session=holder.name), there.session)
    message = values_pb2.RemoteTensor(session=holder.name, id=value_id(A, 0), interpreter="w")
    with pytest.raises(RemoteValueGoneError, match=r"interpreter w .*it was killed"):
        table.find(message, "$")
    message.interpreter = "another"
    with pytest.raises(RemoteValueGoneError, match="it was released, or never was"):
        table.find(message, "$")


async def test_ended_interpreter_leaves_only_its_reason(table, keeps, tmp_path):
    past = Interpreter("past", tmp_path)
    holder = await granted(table, keeps, past)
    session = weakref.ref(past.session)
    await past.close()
    past.session.end_with_process(describe_exit(3))
    assert holder.ended["past"].error().message.endswith("the test is over")
    del past
    await asyncio.sleep(0)  # its task ends
    gc.collect()
    assert session() is None


async def test_cancelled_question_leaves_the_others(table, keeps, there):
    holder = await granted(table, keeps, there)
    assert keep(there.store, holder.name, A)
    there.may_answer.clear()
    hearing = asyncio.create_task(keeps.prepare(call_with(holder, value_id(A, 0))))
    while not keeps._tasks:
        await asyncio.sleep(0)
    hearing.cancel()
    await asyncio.gather(hearing, return_exceptions=True)
    there.may_answer.set()
    await asyncio.gather(*keeps._tasks)
    assert is_found(table, holder, value_id(A, 0))
