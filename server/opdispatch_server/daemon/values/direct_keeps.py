"""The values kept by direct calls, of which the daemon learns only when it asks.

See Note [Values kept without the daemon] in ``worker.values.direct_keeps``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Coroutine
from typing import Any, Final

from opdispatch_server.daemon.interpreters.session import InterpreterSession
from opdispatch_server.daemon.values.grants import ValueLimits
from opdispatch_server.daemon.values.table import RemoteValueTable, ValueHolder
from opdispatch_wire.errors import InterpreterDiedError
from opdispatch_wire.remote_values import remote_arguments
from opdispatch_wire.v1 import execution_pb2, interpreter_pb2, remote_pb2

# The arguments of a longer request are searched in a thread, to keep the event loop responsive.
_MOST_BYTES: Final = 64 * 1024
_HEARING: Final = 0.2
"""How long to wait, in seconds, for interpreters that do not answer, where that is not vital."""


class DirectKeeps:
    """Grants, and later learns of, values kept by direct calls. For use in the event loop only.

    Each query to an interpreter is a task of its own: the waiting task may be cancelled, but the
    answer still counts.
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
        await self._ask(holder, home)
        grant = holder.grants.get(home)
        return grant is not None and grant.values > 0 and grant.bytes > 0

    async def prepare(self, request: execution_pb2.CallRequest) -> None:
        """Learn of kept values that a call names; of all, if its results may have no room."""
        if not self._table.granted:
            return
        find = self._table.find_holder
        if request.ByteSize() <= _MOST_BYTES:
            named = remote_arguments(request)
        else:
            named = await asyncio.to_thread(remote_arguments, request)
        for remote in named:
            holder = find(remote.session)
            if holder is not None and remote.id not in holder.values:
                await self._ask_all(holder)
        if request.HasField("keep") and (holder := find(request.keep.session)) is not None:
            if request.HasField("lost"):  # the lost call may still be running there
                await self._ask_all(holder, (request.keep.prefix,))
            if holder.grants and not self._table.has_room(holder):
                await self._recall(holder)

    def release(self, holder: ValueHolder, ids: Collection[bytes]) -> None:
        """Release values of which the daemon may not have learned."""
        if holder.grants:
            self._begin(self._release(holder, ids))

    async def hear_all(self) -> None:
        """Learn of everything kept so far, except from interpreters that hang."""
        asked = [
            self._begin(self._ask_in_turn(holder, home, (), grants=True))
            for holder in self._table.granted
            for home in holder.grants
        ]
        if asked:
            await asyncio.wait(asked, timeout=_HEARING)

    async def _recall(self, holder: ValueHolder) -> None:
        await self._ask_all(holder, grants=False)

    async def _release(self, holder: ValueHolder, ids: Collection[bytes]) -> None:
        await self._ask_all(holder, ids)
        self._table.release(holder, ids)  # some may have been reported since

    async def _ask_all(
        self, holder: ValueHolder, release: Collection[bytes] = (), *, grants: bool = True
    ) -> None:
        asked = [self._ask(holder, home, release, grants=grants) for home in holder.grants]
        await asyncio.gather(*asked)

    async def _ask(
        self,
        holder: ValueHolder,
        home: InterpreterSession,
        release: Collection[bytes] = (),
        *,
        grants: bool = True,
    ) -> None:
        await asyncio.shield(self._begin(self._ask_in_turn(holder, home, release, grants=grants)))

    def _begin(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _ask_in_turn(
        self,
        holder: ValueHolder,
        home: InterpreterSession,
        release: Collection[bytes],
        *,
        grants: bool,
    ) -> None:
        grant = self._table.grant_at(holder, home)
        if grant is None:
            return
        async with grant.asking:
            # A question posted after the release of all of a client's values would open its
            # account in the interpreter again.
            if holder.grants.get(home) is not grant:
                return
            granted = ValueLimits(0, 0)
            if grants:
                granted = self._table.add_to_grant(holder, grant)
            question = remote_pb2.SettleValues(
                session=holder.name, release=release, values=granted.values, bytes=granted.bytes
            )
            try:
                answer = await home.post(interpreter_pb2.DaemonMessage(settle_values=question))
            except InterpreterDiedError:
                return
            self._table.settle(holder, home, answer.settled_values.values, granted)
