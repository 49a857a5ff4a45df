"""The remote part of a call: the values that it uses, and those that it keeps."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from opdispatch.errors import OpdispatchError
from opdispatch_server.call_context import CallContext
from opdispatch_server.daemon.event_loop.shielded import shielded
from opdispatch_server.daemon.event_loop.slices import in_slices
from opdispatch_server.daemon.interpreters.session import InterpreterSession
from opdispatch_server.daemon.values.table import (
    HeldValue,
    RemoteValueTable,
    check_alive,
    kept_in,
    tell_prefix,
)
from opdispatch_wire.errors import DeadlineExceededError, RemoteValueGoneError
from opdispatch_wire.lanes.lane_messages import LaneClosedError
from opdispatch_wire.remote_values import facts_from_proto
from opdispatch_wire.status import error_from_status
from opdispatch_wire.v1 import execution_pb2, remote_pb2, values_pb2

if TYPE_CHECKING:
    from opdispatch_server.daemon.values.table import ValueHolder


class RemotePart:
    """The remote values of one call. For use in the event loop only."""

    __slots__ = ("_holder", "_keep", "_messages", "_table", "values")

    def __init__(self, table: RemoteValueTable, request: execution_pb2.CallRequest) -> None:
        """Raise WireError, RemoteValueGoneError, RemoteLimitError."""
        self._table = table
        # Without duplicates, in the order of the arguments.
        self.values: dict[HeldValue, None] = {}
        self._messages: list[tuple[values_pb2.RemoteTensor, HeldValue]] = []
        self._keep = request.keep if request.HasField("keep") else None
        self._holder: ValueHolder | None = None
        if self._keep is not None:
            self._holder = table.get_holder(self._keep)
            table.check_room(self._holder)

    @property
    def is_empty(self) -> bool:
        """Whether the call uses and keeps no remote values."""
        return self._keep is None and not self.values

    def find(self, message: values_pb2.RemoteTensor, at: str, writable: bool) -> HeldValue:
        """Return the value of one of the call's arguments. Raises RemoteValueGoneError."""
        value = self._table.find(message, at)
        self.values[value] = None
        self._messages.append((message, value))
        return value

    async def check_room(self, nbytes: int) -> None:
        """Raise RemoteLimitError if ``nbytes`` cannot be kept; recall grants first if necessary."""
        holder = self._holder
        if holder is None:
            return
        if holder.grants and not self._table.has_room(holder, nbytes=nbytes):
            await self._table.recall(holder)
        self._table.check_room(holder, nbytes)

    @property
    def homes(self) -> dict[InterpreterSession, int]:
        """The interpreters that hold the arguments, each with the number of bytes."""
        homes: dict[InterpreterSession, int] = {}
        for value in self.values:
            homes[value.home] = homes.get(value.home, 0) + value.nbytes
        return homes

    @property
    def last_home(self) -> InterpreterSession | None:
        """The interpreter in which the client that keeps this call's results last kept a value."""
        return self._holder.last_home if self._holder is not None else None

    def check_alive(self) -> None:
        """Raise RemoteValueGoneError if an argument has gone with its interpreter."""
        for value in self.values:
            check_alive(value, "$")

    @asynccontextmanager
    async def at(
        self, session: InterpreterSession, context: CallContext, *, copies: bool = False
    ) -> AsyncIterator[Keeping | None]:
        """Hold the arguments in an interpreter while the call runs there, and record kept values.

        If it ``copies`` its arguments, they stay where they are, and the call names the place.
        Raises RemoteValueGoneError, DeadlineExceededError; at the end, the errors of
        ``Keeping.note``.
        """
        try:
            async with asyncio.timeout(context.timeout):
                await _pin(self._table, self.values, None if copies else session)
        except TimeoutError:
            raise DeadlineExceededError(
                f"the deadline passed before the call's remote tensors were in {session.name}",
                interpreter=session.name,
                started="no",
            ) from None
        for message, value in self._messages:
            message.place = value.place  # the current place
            message.ClearField("source")  # a client must not set it, and an earlier run may have
            if value.home is not session:
                _write_source(message, value, session)
        keeping = None
        if self._keep is not None and self._holder is not None:
            keeping = Keeping(self._table, self._holder, self._keep, session)
        try:
            yield keeping
            if keeping is not None:
                await keeping.note()
        except BaseException:
            if keeping is not None:
                keeping.abandon()
            raise
        finally:
            self._table.unpin(self.values)


class Keeping:
    """The values that one run keeps: taken when the interpreter's reply arrives, then noted."""

    def __init__(
        self,
        table: RemoteValueTable,
        holder: ValueHolder,
        keep: remote_pb2.Keep,
        session: InterpreterSession,
    ) -> None:
        self._table = table
        self._holder = holder
        self._keep = keep
        self._session = session
        self._is_wanted = True
        self._reply: execution_pb2.CallReply | None = None

    def take(self, reply: execution_pb2.CallReply | None) -> None:
        """Record whether values were kept: not without a reply, after an error, or if unwanted."""
        if reply is None or reply.HasField("error") or not self._is_wanted:
            tell_prefix(self._session, self._keep)
        else:
            self._reply = reply

    async def note(self) -> None:
        """Add the kept values, which may be many, to the table.

        Raises RemoteLimitError and RemoteValueGoneError; ``abandon`` follows.
        """
        if self._reply is None:
            return
        self._check_open()
        async for messages in in_slices(kept_in(self._reply)):
            self._check_open()
            if self._holder.grants:
                nbytes = sum(facts_from_proto(each, at="$.returns").nbytes for each in messages)
                if not self._table.has_room(self._holder, len(messages), nbytes):
                    await self._table.recall(self._holder)
                    self._check_open()
            self._table.add_all(self._holder, self._session, messages)

    def _check_open(self) -> None:
        if not self._holder.is_open:
            raise RemoteValueGoneError(
                "the results are gone: the session that was to keep them has ended",
                reason="the session has ended",
            )

    def abandon(self) -> None:
        """Release the kept values, whose ids are never reported."""
        self._is_wanted = False
        if self._reply is None:
            return
        if self._holder.is_open:
            self._table.release(self._holder, (self._keep.prefix,))
        tell_prefix(self._session, self._keep)  # including those not noted


async def _pin(
    table: RemoteValueTable, values: Collection[HeldValue], session: InterpreterSession | None
) -> None:
    """Move all values to an interpreter and keep them there; None: keep each where it is.

    See Note [Where a value is].
    """
    while True:
        moving = next((value.moving for value in values if value.moving is not None), None)
        if moving is not None:
            await asyncio.wait({moving})
            continue
        away = [value for value in values if session not in (None, value.home)]
        busy = next((value for value in away if value.uses), None)
        if busy is None:
            break
        busy.idle = busy.idle or asyncio.Event()
        await busy.idle.wait()
    for value in values:
        check_alive(value, "$")
    for value in values:
        value.uses += 1
    if session is None or not away:
        return
    # It must be completed, awaited or not: only then is it known where the values are.
    move = asyncio.create_task(_move(table, away, session))
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    for value in away:
        value.moving = done

    def finish(task: asyncio.Task[None]) -> None:
        for value in away:
            value.moving = None
            table.release_if_unused(value)
        done.set_result(None)

    move.add_done_callback(finish)
    try:
        await shielded(move)
    except BaseException:
        table.unpin(values)
        raise


async def _move(
    table: RemoteValueTable, values: Sequence[HeldValue], session: InterpreterSession
) -> None:
    request = execution_pb2.CallRequest(operator="a transfer of values", adopt=True)
    places = []
    for value in values:
        places.append(value.places)
        value.places += 1
        remote = request.args.add().remote
        remote.id, remote.session, remote.place = value.number, value.holder.name, places[-1]
        _write_source(remote, value, session)
    try:
        reply = await session.call(request, CallContext())
    except (LaneClosedError, asyncio.CancelledError):
        for value, place in zip(values, places, strict=True):
            table.has_not_moved(value, session, place)
        await session.explain_end()
        raise session.death("it was fetching remote tensors") from None
    if reply.HasField("error"):
        for value, place in zip(values, places, strict=True):
            table.has_not_moved(value, session, place)
        for value in values:
            check_alive(value, "$")  # explains the reason better
        raise _named(error_from_status(reply.error), values, session)
    for value, place in zip(values, places, strict=True):
        table.has_moved(value, session, place)


def _named(
    error: OpdispatchError, values: Sequence[HeldValue], session: InterpreterSession
) -> OpdispatchError:
    """Return a transfer's error in terms of the caller's arguments."""
    message = error.message
    for place, value in enumerate(values):
        message = message.replace(f"$.args[{place}]", f"the remote tensor {value.number.hex()}")
    what = f"interpreter {session.name} could not be given what the call uses: {message}"
    return type(error)(what, hint=error.hint, **error.facts)


def _write_source(
    message: values_pb2.RemoteTensor, value: HeldValue, session: InterpreterSession
) -> None:
    """Write into the message where the interpreter gets a value that another one holds."""
    message.interpreter, message.device = value.home.name, value.device
    message.source.address, message.source.place = value.home.address, value.place
    if session.lane_path and value.home.lane_path:
        message.source.lane = value.home.lane_path
    else:
        message.source.ticket = value.home.own.ticket
        message.source.tls = bool(value.home.own.credentials.tls_ca)
