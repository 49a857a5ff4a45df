"""The values kept by direct calls, which interpreters report to the daemon on request.

See Note [Values kept without the daemon] in ``worker.values.direct_keeps``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Final

from opdispatch_server.daemon.event_loop.shielded import shielded
from opdispatch_server.daemon.interpreters.session import InterpreterSession
from opdispatch_server.daemon.values.grants import Grant, Question, ValueLimits
from opdispatch_server.daemon.values.table import RemoteValueTable, ValueHolder
from opdispatch_wire.errors import InterpreterDiedError
from opdispatch_wire.remote_values import ID_BYTES, PREFIX_BYTES, remote_arguments
from opdispatch_wire.v1 import execution_pb2, interpreter_pb2, remote_pb2

# The arguments of a longer request are searched in a thread, to keep the event loop responsive.
_MOST_BYTES: Final = 64 * 1024
_HEARING: Final = 0.2
"""Seconds to wait for interpreters' answers where a missing one does no harm."""
MOST_PENDING: Final = 1024
"""Values of a client that wait for their release in one interpreter, before its stream waits."""


class DirectKeeps:
    """Grants and collects values kept by direct calls. For use in the event loop only.

    Each question to an interpreter is a task of its own, so that its answer is recorded even if the
    waiting task is cancelled. For each grant, at most one question is in progress and one queued.
    """

    def __init__(self, table: RemoteValueTable) -> None:
        self._table = table
        table.recall = self._recall
        self._tasks: set[asyncio.Task[None]] = set()

    async def grant(self, keep: remote_pb2.Keep, home: InterpreterSession) -> bool:
        """Let direct calls keep values of a client in an interpreter; return whether they may."""
        holder = self._table.find_holder(keep.session)
        # An identity's quota is shared by all of its sessions.
        if holder is None or holder.quota is not None or not (home.direct_lane and home.alive):
            return False
        if (question := self._ask(holder, home)) is not None:
            await shielded(question.answered)
        grant = holder.grants.get(home)
        return grant is not None and grant.values > 0 and grant.bytes > 0

    async def prepare(self, request: execution_pb2.CallRequest) -> None:
        """Collect the kept values that a call names, or all if its results may exceed the limit."""
        if not self._table.granted:
            return
        find = self._table.find_holder
        if request.ByteSize() <= _MOST_BYTES:
            named = remote_arguments(request)
        else:
            named = await asyncio.to_thread(remote_arguments, request)
        unheard = {
            holder: None
            for remote in named
            if (holder := find(remote.session)) is not None and remote.id not in holder.values
        }
        await asyncio.gather(*map(self._ask_all, unheard))
        if request.HasField("keep") and (holder := find(request.keep.session)) is not None:
            if request.HasField("lost"):  # the lost call may still be running there
                await self._ask_all(holder, (request.keep.prefix,))
            if holder.grants and not self._table.has_room(holder):
                await self._recall(holder)

    async def release(self, holder: ValueHolder, ids: Collection[bytes]) -> None:
        """Release values of which the daemon may not have learned.

        Returns before they are released, unless too many wait for that.
        """
        meant = [each for each in ids if len(each) in (ID_BYTES, PREFIX_BYTES)]
        waiting = [
            question.answered
            for home in holder.grants
            if (question := self._ask(holder, home, meant)) and len(question.release) > MOST_PENDING
        ]
        if waiting:
            await asyncio.wait(waiting)

    async def hear_all(self) -> None:
        """Collect all values kept so far, except from interpreters that do not answer in time."""
        asked = [
            question.answered
            for holder in self._table.granted
            for home in holder.grants
            if (question := self._ask(holder, home))
        ]
        if asked:
            await asyncio.wait(asked, timeout=_HEARING)

    async def _recall(self, holder: ValueHolder) -> None:
        await self._ask_all(holder, grants=False)

    async def _ask_all(
        self, holder: ValueHolder, release: Collection[bytes] = (), *, grants: bool = True
    ) -> None:
        asked = [self._ask(holder, home, release, grants=grants) for home in holder.grants]
        await asyncio.gather(*(shielded(each.answered) for each in asked if each is not None))

    def _ask(
        self,
        holder: ValueHolder,
        home: InterpreterSession,
        release: Collection[bytes] = (),
        *,
        grants: bool = True,
    ) -> Question | None:
        """Return a question that will be asked; None if the client or the interpreter has gone."""
        grant = self._table.grant_at(holder, home)
        if grant is None:
            return None
        question = grant.next
        if question is None:
            question = grant.next = Question()
            task = asyncio.create_task(self._ask_in_turn(holder, home, grant, question))
            question.answered = task
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        question.release.update(release)
        question.grants = question.grants and grants
        return question

    async def _ask_in_turn(
        self, holder: ValueHolder, home: InterpreterSession, grant: Grant, question: Question
    ) -> None:
        async with grant.asking:
            grant.next = None  # first: later requests may come too late for this question
            # A question posted after the release of all of a client's values would open its
            # account in the interpreter again.
            if holder.grants.get(home) is not grant:
                return
            granted = ValueLimits(0, 0)
            if question.grants:
                granted = self._table.add_to_grant(holder, grant)
            message = remote_pb2.SettleValues(
                session=holder.name,
                release=question.release,
                values=granted.values,
                bytes=granted.bytes,
            )
            try:
                answer = await home.post(interpreter_pb2.DaemonMessage(settle_values=message))
            except InterpreterDiedError:
                pass
            else:
                self._table.settle(holder, home, answer.settled_values.values, granted)
            self._table.release(holder, question.release)  # those reported by an earlier answer
