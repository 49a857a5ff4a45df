"""The daemon's table of the values that interpreters keep for clients.

Note [Where a value is]
    A value is in one interpreter at a time, its home. Calls that use it there run concurrently. To
    be used in another interpreter it moves: during the move no call uses it, and no call that needs
    it begins. So there are never two copies that could diverge, and a client that repeatedly calls
    an operator in another interpreter pays for the transfer only once. On another device it is
    another value, copied to the interpreter that has the device.

    Its bytes go directly from interpreter to interpreter. Each message about a value that the
    daemon sends to an interpreter, over the session's stream or a lane, names the place that is
    meant, so that a value that has come back is not mistaken for the one that was released.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from opdispatch.arrays import register_tensor_type
from opdispatch.errors import InternalError
from opdispatch_server.daemon.event_loop.slices import SLICE, in_slices
from opdispatch_server.daemon.values.grants import Grant, ValueLimits, part_of
from opdispatch_server.daemon.values.identity_quota import ValueQuota
from opdispatch_server.value_ids import check_keep, ids_meant
from opdispatch_wire.dtypes import dtype_from_name
from opdispatch_wire.errors import RefusedError, RemoteLimitError, RemoteValueGoneError, WireError
from opdispatch_wire.remote_values import (
    SESSION_BYTES,
    RemoteFacts,
    facts_from_proto,
    remote_tensors_in,
    store_key,
)
from opdispatch_wire.v1 import execution_pb2, interpreter_pb2, remote_pb2, values_pb2

if TYPE_CHECKING:
    import numpy as np

    from opdispatch_server.daemon.interpreters.session import InterpreterSession
    from opdispatch_server.daemon.interpreters.session_end import SessionEnd

MAX_HOLDERS = 10_000
"""The most clients that hold values at a time."""


class HeldValue:
    """One value, which the dispatcher treats as a tensor. For use in the event loop only.

    ``uses`` counts the calls that have pinned it where it is; ``moving`` is set while it moves.
    """

    __slots__ = (
        "device",
        "dtype_name",
        "holder",
        "home",
        "idle",
        "is_released",
        "key_bits",
        "moving",
        "nbytes",
        "number",
        "place",
        "places",
        "requires_grad",
        "shape",
        "uses",
    )

    def __init__(
        self, number: bytes, facts: RemoteFacts, holder: ValueHolder, home: InterpreterSession
    ) -> None:
        self.number = number
        self.dtype_name = facts.dtype_name
        self.shape = facts.shape
        self.device = facts.device
        self.key_bits = facts.key_bits
        self.requires_grad = facts.requires_grad
        self.nbytes = facts.nbytes
        self.holder = holder
        self.home = home
        self.place, self.places = 0, 1  # RemoteTensor.place, and the next free one
        self.uses = 0
        self.is_released = False
        self.moving: asyncio.Future[None] | None = None
        # Set when no call uses it any more; None while no move waits for that.
        self.idle: asyncio.Event | None = None

    @property
    def dtype(self) -> np.dtype[Any]:
        """The element type."""
        return dtype_from_name(self.dtype_name, at="$.dtype")

    @property
    def key(self) -> bytes:
        """The id under which its home keeps it."""
        return store_key(self.number, self.place)

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return len(self.shape)

    def __repr__(self) -> str:
        return f"HeldValue({self.dtype_name}, shape={list(self.shape)}, in {self.home.name})"


register_tensor_type(HeldValue, described_as="a remote tensor")


class ValueHolder:
    """One client that holds values."""

    def __init__(self, name: bytes, quota: ValueQuota | None = None) -> None:
        self.name = name
        self.quota = quota
        self.values: dict[bytes, HeldValue] = {}
        self.bytes = 0  # of the values that still exist
        self.is_open = True
        self.last_home: InterpreterSession | None = None
        self.grants: dict[InterpreterSession, Grant] = {}
        # Interpreters that have ended, in which direct calls may have kept values.
        self.ended: dict[str, SessionEnd] = {}


class RemoteValueTable:
    """All values, by client and id. For use in the event loop only.

    Invariants, between any two steps of the loop: ``bytes`` of a holder is the sum over its values
    whose home is alive; ``_homes`` maps each live home of a value to exactly its values.
    """

    def __init__(self, limits: ValueLimits) -> None:
        self.limits = limits
        self._holders: dict[bytes, ValueHolder] = {}
        self._homes: dict[InterpreterSession, set[HeldValue]] = {}
        self.granted: dict[ValueHolder, None] = {}
        """Clients whose direct calls may keep values."""
        self.recall: Callable[[ValueHolder], Awaitable[None]] = _nothing_to_recall
        """Revokes a client's grants, and learns of the values kept under them."""
        self._forgetting: set[asyncio.Task[None]] = set()

    # -- clients --------------------------------------------------------------------------------

    def open(self, quota: ValueQuota | None = None) -> ValueHolder:
        """Add a new client, whose identity may have a quota. Raises RefusedError."""
        if len(self._holders) >= MAX_HOLDERS:
            raise RefusedError(f"{MAX_HOLDERS} clients hold values, which is the limit")
        holder = ValueHolder(secrets.token_bytes(SESSION_BYTES), quota)
        self._holders[holder.name] = holder
        if quota is not None:
            quota.holders.add(holder)
        return holder

    def close(self, holder: ValueHolder) -> None:
        """Close a client that is gone: its values can no longer be found.

        Forgetting many values takes several steps of the loop.
        """
        holder.is_open = False
        for home in {value.home for value in holder.values.values()}.union(holder.grants):
            _tell(home, holder, ())
        holder.grants.clear()
        self.granted.pop(holder, None)
        if len(holder.values) <= SLICE:
            self._forget_slice(holder, list(holder.values.values()))
            return
        forgetting = asyncio.create_task(self._forget_all(holder))
        self._forgetting.add(forgetting)
        forgetting.add_done_callback(self._forgetting.discard)

    def find_holder(self, name: bytes) -> ValueHolder | None:
        """Return the client of that name, if it still exists."""
        holder = self._holders.get(name)
        return holder if holder is not None and holder.is_open else None

    def get_holder(self, keep: remote_pb2.Keep) -> ValueHolder:
        """Return the holder of the values that a call keeps.

        Raises WireError, and RemoteValueGoneError.
        """
        check_keep(keep)
        holder = self.find_holder(keep.session)
        if holder is None:
            raise RemoteValueGoneError(
                "the results cannot be kept: this daemon knows of no such session",
                hint="it was started again, or the connection that held its values was lost",
                reason="the session has ended",
            )
        return holder

    def count_at(self, home: InterpreterSession) -> tuple[int, int]:
        """Return the number of values in an interpreter, and their size in bytes."""
        values = list(self._homes.get(home, ()))  # other threads may call this
        return len(values), sum(value.nbytes for value in values)

    # -- values ---------------------------------------------------------------------------------

    def find(self, message: values_pb2.RemoteTensor, at: str, writable: bool = False) -> HeldValue:
        """Return the value that a client names. Raises RemoteValueGoneError if it is gone.

        Changes nothing. It may be called in another thread that examines a call; as after any
        await, the value may be gone when the event loop continues.
        """
        holder = self.find_holder(message.session)
        value = holder.values.get(message.id) if holder is not None else None
        if value is None:
            if holder is None:
                why = (
                    "the session that kept it has ended, with all of its values, or is another "
                    "daemon's"
                )
            else:
                if message.interpreter in holder.ended:
                    raise _ended_error(message.id, holder.ended[message.interpreter], at)
                why = "it was released, or never was"
            raise RemoteValueGoneError(
                f"{at}: there is no remote tensor {message.id.hex()}: {why}",
                value=message.id.hex(),
                reason=why,
            )
        check_alive(value, at)
        return value

    def check_room(self, holder: ValueHolder, nbytes: int = 0) -> None:
        """Raise RemoteLimitError if the client can keep no further value, or not so many bytes.

        Raises QueueFullError if its identity cannot, whose other sessions may release some.
        """
        values, held = _sums(holder)
        if values >= self.limits.values:
            raise self._full(f"{values} remote values", "values")
        if held >= self.limits.bytes or held + nbytes > self.limits.bytes:
            raise self._full(f"{held} bytes in remote values", "bytes")
        if holder.quota is not None:
            holder.quota.check_room(nbytes)

    def has_room(self, holder: ValueHolder, values: int = 1, nbytes: int = 1) -> bool:
        """Return whether the client can keep so much in addition to what it has been granted."""
        before, held = _sums(holder)
        return before + values <= self.limits.values and held + nbytes <= self.limits.bytes

    def grant_at(self, holder: ValueHolder, home: InterpreterSession) -> Grant | None:
        """Return the grant for direct calls in an interpreter, empty at first.

        Return None if the client or the interpreter is gone.
        """
        if not holder.is_open or not home.alive:
            return None
        if home not in holder.grants:
            self._homes_values(home)
            holder.grants[home] = Grant()
            self.granted[holder] = None
        return holder.grants[home]

    def add_to_grant(self, holder: ValueHolder, grant: Grant) -> ValueLimits:
        """Grant more, in addition to earlier grants; return how much."""
        values, held = _sums(holder)
        added = part_of(self.limits.values - values, self.limits.bytes - held)
        grant.values += added.values
        grant.bytes += added.bytes
        return added

    def settle(
        self,
        holder: ValueHolder,
        home: InterpreterSession,
        kept: Iterable[values_pb2.RemoteTensor],
        granted: ValueLimits,
    ) -> None:
        """Add the values that direct calls have kept.

        From now on, they may keep what is ``granted``.
        """
        grant = holder.grants.get(home)
        if grant is None:  # either the client or the interpreter has gone meanwhile
            return
        grant.values, grant.bytes = granted
        for message in kept:
            if message.id not in holder.values:
                facts = facts_from_proto(message, at="$.values")
                self._add(HeldValue(message.id, facts, holder, home))

    def add_all(
        self, holder: ValueHolder, home: InterpreterSession, messages: list[values_pb2.RemoteTensor]
    ) -> None:
        """Add the values that an interpreter has kept.

        Raises RemoteLimitError, and then adds none.
        """
        found = [(m.id, facts_from_proto(m, at="$.returns")) for m in messages]
        values, held = _sums(holder)
        if values + len(found) > self.limits.values:
            raise self._full(f"{values} remote values", "values")
        if held + sum(facts.nbytes for _, facts in found) > self.limits.bytes:
            raise self._full(f"{held} bytes in remote values", "bytes")
        if holder.quota is not None:
            holder.quota.check_results(len(found), sum(facts.nbytes for _, facts in found))
        if any(number in holder.values for number, _ in found):
            raise WireError("$.keep.prefix is that of values that are there already")
        for number, facts in found:
            self._add(HeldValue(number, facts, holder, home))

    def release(self, holder: ValueHolder, ids: Collection[bytes]) -> None:
        """Release values that the client no longer needs.

        A value in use stays until the call ends.
        """
        homes: dict[InterpreterSession, list[bytes]] = {}
        for number in ids_meant(ids, holder.values):
            value = holder.values.get(number)
            if value is None:
                continue
            if value.uses or value.moving is not None:
                value.is_released = True
                continue
            self._forget(value)
            homes.setdefault(value.home, []).append(value.key)
        for home, numbers in homes.items():
            _tell(home, holder, numbers)

    def unpin(self, values: Iterable[HeldValue]) -> None:
        """Unpin values: a call that used them has ended."""
        for value in values:
            value.uses -= 1
            if value.uses:
                continue
            if value.idle is not None:
                value.idle.set()
                value.idle = None
            self.release_if_unused(value)

    def release_if_unused(self, value: HeldValue) -> None:
        """Release a value that was released while it was in use."""
        if value.is_released and not value.uses and value.moving is None:
            value.is_released = False
            self.release(value.holder, (value.number,))

    def has_moved(self, value: HeldValue, home: InterpreterSession, place: int) -> None:
        """Record that ``home`` now has the value, and release it in the previous interpreter."""
        holder = value.holder
        if not holder.is_open or holder.values.get(value.number) is not value:
            self.has_not_moved(value, home, place)  # its client has gone meanwhile
            return
        before, key = value.home, value.key
        self._unsettle(value)
        if not before.alive:
            value.holder.bytes += value.nbytes  # it was given up too early
        value.home, value.place = home, place
        self._settle(value, home)
        _tell(before, value.holder, (key,))

    def has_not_moved(self, value: HeldValue, home: InterpreterSession, place: int) -> None:
        """Release, in an interpreter, the part of a value that it may have received.

        The home of the value keeps it, and stops refusing direct calls with it.
        """
        for each in (home, value.home):
            _tell(each, value.holder, (store_key(value.number, place),))

    def check_invariants(self) -> list[str]:
        """Return descriptions of the violated invariants."""
        violations = []
        for holder in list(self._holders.values()):
            values = list(holder.values.values())
            there = [value for value in values if value.home.alive]
            if holder.bytes != sum(value.nbytes for value in there):
                violations.append("the bytes of a client's remote values do not add up")
            if any(value not in self._homes.get(value.home, ()) for value in there):
                violations.append("a remote value is not counted at its home")
        held = sum(len(values) for values in list(self._homes.values()))
        alive = sum(
            value.home.alive
            for holder in list(self._holders.values())
            for value in list(holder.values.values())
        )
        if held != alive:
            violations.append(f"{held} remote values are counted, and there are {alive}")
        return violations

    # -- steps ----------------------------------------------------------------------------------

    def _add(self, value: HeldValue) -> None:
        holder = value.holder
        holder.last_home = value.home
        holder.values[value.number] = value
        holder.bytes += value.nbytes
        self._settle(value, value.home)

    async def _forget_all(self, holder: ValueHolder) -> None:
        async for values in in_slices(list(holder.values.values())):
            self._forget_slice(holder, values)

    def _forget_slice(self, holder: ValueHolder, values: Iterable[HeldValue]) -> None:
        for value in values:
            if value.number in holder.values:
                self._forget(value)
        if not holder.values:
            self._holders.pop(holder.name, None)
            if holder.quota is not None:
                holder.quota.holders.discard(holder)

    def _settle(self, value: HeldValue, home: InterpreterSession) -> None:
        values = self._homes_values(home)
        if home in self._homes:  # it may have ended just now
            values.add(value)
        else:
            value.holder.bytes -= value.nbytes

    def _homes_values(self, home: InterpreterSession) -> set[HeldValue]:
        values = self._homes.get(home)
        if values is None:
            values = self._homes[home] = set()
            home.at_end(lambda: self._interpreter_ended(home))
        return values

    def _unsettle(self, value: HeldValue) -> None:
        values = self._homes.get(value.home)
        if values is not None:
            values.discard(value)

    def _interpreter_ended(self, home: InterpreterSession) -> None:
        for value in self._homes.pop(home, ()):
            value.holder.bytes -= value.nbytes
        for holder in self.granted:
            if holder.grants.pop(home, None) is not None:
                holder.ended[home.name] = home.why_ended

    def _forget(self, value: HeldValue) -> None:
        del value.holder.values[value.number]
        if value.home in self._homes:
            value.holder.bytes -= value.nbytes
            self._unsettle(value)

    def _full(self, has: str, which: str) -> RemoteLimitError:
        limit = self.limits.values if which == "values" else self.limits.bytes
        return RemoteLimitError(
            f"the session has {has}, and may have {limit}",
            hint="release some of them, or raise the limit with "
            f"`opdispatch serve --remote-{which}`",
            limit=str(limit),
        )


def check_alive(value: HeldValue, at: str) -> None:
    """Raise RemoteValueGoneError if the value has gone with its interpreter."""
    if not value.home.alive:
        raise _ended_error(value.number, value.home.why_ended, at)


def kept_in(reply: execution_pb2.CallReply) -> Iterator[values_pb2.RemoteTensor]:
    """Yield an interpreter's reports of the values that it has kept."""
    for value in reply.returns:
        for remote, _ in remote_tensors_in(value, "$.returns"):
            yield remote


def _ended_error(number: bytes, end: SessionEnd, at: str) -> RemoteValueGoneError:
    death = end.error()
    return RemoteValueGoneError(
        f"{at}: the remote tensor {number.hex()} is gone: {death.message}",
        hint="make it again; what an interpreter keeps ends with it",
        value=number.hex(),
        interpreter=end.interpreter,
        reason=death.message,
    )


def _sums(holder: ValueHolder) -> tuple[int, int]:
    """Return how many values, and bytes, a client has or may keep without asking."""
    values, held = len(holder.values), holder.bytes
    for grant in holder.grants.values():
        values += grant.values
        held += grant.bytes
    return values, held


async def _nothing_to_recall(holder: ValueHolder) -> None:
    if holder.grants:
        raise InternalError("values were granted by a part that does not set recall")


def _tell(home: InterpreterSession, holder: ValueHolder, ids: Iterable[bytes]) -> None:
    release = remote_pb2.ReleaseValues(session=holder.name, ids=ids)
    home.tell(interpreter_pb2.DaemonMessage(release_values=release))


def tell_prefix(home: InterpreterSession, keep: remote_pb2.Keep) -> None:
    """Release, in an interpreter, all values that one call has kept."""
    release = remote_pb2.ReleaseValues(session=keep.session, ids=(keep.prefix,))
    home.tell(interpreter_pb2.DaemonMessage(release_values=release))
