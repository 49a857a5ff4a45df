"""Limit the resources of the daemon that one identity uses, so that others always find room.

The daemon's own user has no quota, nor has any client of a daemon without authentication.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Generic, NamedTuple
from weakref import WeakValueDictionary

from opdispatch_server.access.authentication import ANYBODY
from opdispatch_server.access.identity import OWNER, Identity
from opdispatch_server.access.roles import Role
from opdispatch_server.call_context import CallContext
from opdispatch_server.daemon.values.identity_quota import ValueQuota
from opdispatch_server.serving.call_protocols import AbandonableCall, CallRunner, OnReply, Run
from opdispatch_wire.errors import QueueFullError
from opdispatch_wire.v1 import execution_pb2

RETRY_AFTER = 0.1
"""Seconds after which a client may find room, if its own calls end meanwhile."""


class QuotaLimits(NamedTuple):
    """The limits for one identity; None: unlimited."""

    calls: int | None = None
    """Calls that wait or run."""
    bytes: int | None = None
    """Bytes of these calls, including their large tensors."""
    sessions: int | None = None
    """Sessions that keep values in interpreters."""
    uploads: int | None = None
    """Uploads of libraries."""
    values: int | None = None
    """Values kept in interpreters, over all sessions."""
    value_bytes: int | None = None
    """Bytes of these values."""
    queue_share: int | None = None
    """The share of an interpreter's queue, in percent."""

    def calls_of_one(self, queue: int) -> int | None:
        """Return how many calls of one identity may wait in a queue of ``queue`` places."""
        return None if self.queue_share is None else max(queue * self.queue_share // 100, 1)


class Usage:
    """The resources that one identity is using."""

    __slots__ = ("bytes", "calls", "sessions", "uploads")

    def __init__(self) -> None:
        self.calls = self.bytes = self.sessions = self.uploads = 0

    @property
    def is_idle(self) -> bool:
        """Whether the identity uses nothing."""
        return not (self.calls or self.sessions or self.uploads)


def has_quota(identity: Identity) -> bool:
    """Return whether the quotas apply to an identity."""
    # A kernel's nested calls belong to calls that are counted already.
    return not (identity is OWNER or identity is ANYBODY or identity.role is Role.WORKER)


class Quotas:
    """The usage of every identity. For use in the event loop only."""

    def __init__(self, limits: QuotaLimits) -> None:
        self._limits = limits
        self._has_limits = any(each is not None for each in limits)
        self._usage: dict[str, Usage] = {}
        self._values: WeakValueDictionary[str, ValueQuota] = WeakValueDictionary()

    def runner_for(self, identity: Identity, runner: CallRunner[Run]) -> CallRunner[Run]:
        """Return a runner for the calls of an identity: ``runner`` itself, if it has no quota."""
        return LimitedRunner(self, identity, runner) if self._applies_to(identity) else runner

    def counts_calls_of(self, identity: Identity) -> bool:
        """Return whether an identity's calls are counted, so that each must pass through here."""
        limits = (self._limits.calls, self._limits.bytes, self._limits.queue_share)
        return any(each is not None for each in limits) and self._applies_to(identity)

    def values_of(self, identity: Identity) -> ValueQuota | None:
        """Return the quota that all sessions of an identity share; None if it has none."""
        values, nbytes = self._limits.values, self._limits.value_bytes
        if (values is None and nbytes is None) or not self._applies_to(identity):
            return None
        quota = self._values.get(identity.name)
        if quota is None:
            quota = self._values[identity.name] = ValueQuota(identity.name, values, nbytes)
        return quota

    def take_call(self, identity: Identity, size: int, *, is_repeated: bool = False) -> str:
        """Count a call of ``size`` bytes; return "" if it fits, else the exceeded quota in words.

        A repeated call had room before, and is always admitted again.
        """
        usage = self._usage.get(identity.name) or Usage()
        most_calls, most_bytes = self._limits.calls, self._limits.bytes
        if not is_repeated and most_calls is not None and usage.calls >= most_calls:
            return f"{usage.calls} calls under way"
        # A single call is always admitted: other limits bound its size.
        full = most_bytes is not None and usage.calls and usage.bytes + size > most_bytes
        if not is_repeated and full:
            return f"calls of {usage.bytes} bytes under way"
        usage.calls += 1
        usage.bytes += size
        self._usage[identity.name] = usage
        return ""

    def end_call(self, identity: Identity, size: int) -> None:
        """Stop counting a call."""
        usage = self._usage[identity.name]
        usage.calls -= 1
        usage.bytes -= size
        self._tidy_up(identity)

    @contextmanager
    def session(self, identity: Identity) -> Iterator[None]:
        """Count a session that keeps values, during the block. Raises QueueFullError."""
        with self._counted(identity, "sessions", self._limits.sessions, "sessions with values"):
            yield

    @contextmanager
    def upload(self, identity: Identity) -> Iterator[None]:
        """Count an upload, during the block. Raises QueueFullError."""
        with self._counted(identity, "uploads", self._limits.uploads, "uploads under way"):
            yield

    def check_invariants(self) -> list[str]:
        """Return descriptions of the violated invariants."""
        return [
            f"{name} is counted, and uses {usage.calls} calls and {usage.bytes} bytes"
            for name, usage in self._usage.items()
            if usage.is_idle or usage.calls < 0 or (not usage.calls and usage.bytes)
        ]

    def _applies_to(self, identity: Identity) -> bool:
        return self._has_limits and has_quota(identity)

    @contextmanager
    def _counted(
        self, identity: Identity, what: str, most: int | None, words: str
    ) -> Iterator[None]:
        if not self._applies_to(identity):
            yield
            return
        usage = self._usage.setdefault(identity.name, Usage())
        count = getattr(usage, what)
        if most is not None and count >= most:
            self._tidy_up(identity)
            raise quota_error(identity, f"{count} {words}")
        setattr(usage, what, count + 1)
        try:
            yield
        finally:
            setattr(usage, what, getattr(usage, what) - 1)
            self._tidy_up(identity)

    def _tidy_up(self, identity: Identity) -> None:
        if self._usage[identity.name].is_idle:
            del self._usage[identity.name]


class LimitedRunner(Generic[Run]):
    """Runs the calls of one identity within its quota."""

    def __init__(self, quotas: Quotas, identity: Identity, runner: CallRunner[Run]) -> None:
        self._quotas = quotas
        self._identity = identity
        self._runner = runner

    def find_planned(self, payload: bytes) -> None:
        """Return None: each call is counted."""

    def begin(
        self, request: execution_pb2.CallRequest, context: CallContext, on_reply: OnReply[Run]
    ) -> AbandonableCall | None:
        """Begin a call as the runner does; also None if the quota is used up: see ``call``."""
        size = context.size_of(request)
        if self._quotas.take_call(self._identity, size):
            return None
        counted = _CountedCall(self._quotas, self._identity, size)

        def end(result: execution_pb2.CallReply | BaseException | Run) -> None:
            counted.end()
            on_reply(result)

        counted.running = self._runner.begin(request, context, end)
        if counted.running is None:
            counted.end()
            return None
        return counted

    async def call(
        self,
        request: execution_pb2.CallRequest,
        context: CallContext,
        broken: Run | None = None,
    ) -> execution_pb2.CallReply:
        """Run a call as the runner does. Also raises QueueFullError if the quota is used up."""
        size = context.size_of(request)
        why = self._quotas.take_call(self._identity, size, is_repeated=broken is not None)
        if why:
            raise quota_error(self._identity, why, request.operator)
        try:
            return await self._runner.call(request, context, broken)
        finally:
            self._quotas.end_call(self._identity, size)


class _CountedCall:
    """A call in progress, counted until it ends or is abandoned."""

    __slots__ = ("_identity", "_is_ended", "_quotas", "_size", "running")

    def __init__(self, quotas: Quotas, identity: Identity, size: int) -> None:
        self._quotas = quotas
        self._identity = identity
        self._size = size
        self._is_ended = False
        self.running: AbandonableCall | None = None

    def abandon(self) -> None:
        """Discard the reply when it comes."""
        self.end()
        if self.running is not None:
            self.running.abandon()

    def end(self) -> None:
        """Stop counting the call. Idempotent."""
        if not self._is_ended:
            self._is_ended = True
            self._quotas.end_call(self._identity, self._size)


def quota_error(identity: Identity, why: str, operator: str = "") -> QueueFullError:
    """Return the error for a request that exceeds an identity's quota."""
    what = f"the call of {operator}" if operator else "this one"
    return QueueFullError(
        f"{identity.name} has {why}, which is its quota; {what} never started",
        hint=f"wait for some of them, and try again in {RETRY_AFTER:g} s",
        operator=operator,
        started="no",
        retry_after=f"{RETRY_AFTER:.3f}",
    )
