"""Clients that wait for a registration: the dispatcher's condition variable, for an event loop.

``Dispatcher.wait_for_def`` blocks a thread for each waiter. Here a waiter is a future, and one task
at a time, started by a publication, checks for all of them.
"""

from __future__ import annotations

import asyncio
import math
from collections import defaultdict
from collections.abc import Collection
from typing import NamedTuple

from google.protobuf.message import Message

from opdispatch import DispatchKey, OperatorName, parse_dispatch_key
from opdispatch.dispatch.dispatcher import normalize_key
from opdispatch.dispatch.wait_for_registration import wait_timeout_error
from opdispatch.errors import WaitTimeoutError
from opdispatch_server.daemon.libraries.operator_registry import OperatorRegistry
from opdispatch_server.daemon.servicers.registry_view import RegistryView
from opdispatch_server.operator_names import parse_operator_name
from opdispatch_wire.errors import RefusedError, WireError
from opdispatch_wire.status import stopping_error
from opdispatch_wire.v1 import registry_pb2 as pb

# A waiter costs memory, and an operator that ten thousand clients wait for is a mistake.
WAITERS_LIMIT = 10_000


Waiter = asyncio.Future[Message | None]
"""Resolves to what was awaited, or to None when the daemon stops."""


class Awaited(NamedTuple):
    """The goal of a wait: an operator's definition or, with a key, its kernel for that key."""

    operator: OperatorName
    key: DispatchKey | None = None

    def __str__(self) -> str:
        if self.key is None:
            return f"the definition of {self.operator}"
        return f"a {self.key} kernel of {self.operator}"


class RegistrationWaiters:
    """All waiting clients. For the event loop, except ``_published``, which any thread may call.

    Guards      ``publication`` is held while waiters look, so that they see the dispatcher and
                the libraries agree.
    Invariants  I1  a waiter's first look and its entry in ``_waiters`` are within one hold of
                    ``publication``; so no publication falls between them;
                I2  whatever a publication may have brought is in ``_unseen`` from then until
                    the task ``_looking`` has looked, and that task runs while there is any.
    Cost        a publication looks up which of its operators are awaited, and each of these is
                checked once, however many clients wait for it. A waiting client costs no time.
    """

    def __init__(
        self,
        operators: OperatorRegistry,
        view: RegistryView,
        publication: asyncio.Lock,
    ) -> None:
        self._dispatcher = operators.dispatcher
        self._view = view
        self._publication = publication
        self._loop = asyncio.get_running_loop()
        self._waiters: defaultdict[Awaited, set[Waiter]] = defaultdict(set)
        self._count = 0
        # Operators that are awaited, each with its keys of _waiters.
        self._awaited: defaultdict[OperatorName, set[Awaited]] = defaultdict(set)
        self._unseen: set[Awaited] = set()
        self._looking: asyncio.Task[None] | None = None
        self._stopping = False
        operators.on_published = self._published

    @property
    def count(self) -> int:
        """How many clients are waiting."""
        return self._count

    async def for_definition(self, request: pb.WaitForDefRequest) -> pb.OperatorSummary:
        """Wait for the operator's definition.

        Raises WaitTimeoutError, OperatorNotFoundError for a name that no operator can have,
        WireError for a bad timeout, RefusedError.
        """
        timeout = request.timeout if request.HasField("timeout") else None
        reply = await self._wait(Awaited(parse_operator_name(request.operator)), timeout)
        assert isinstance(reply, pb.OperatorSummary)
        return reply

    async def for_kernel(self, request: pb.WaitForImplRequest) -> pb.KernelSummary:
        """Wait for the operator's active kernel for the key.

        Raises as ``for_definition`` does, and DispatchKeyError.
        """
        timeout = request.timeout if request.HasField("timeout") else None
        key = normalize_key(parse_dispatch_key(request.key) if request.key else None)
        reply = await self._wait(Awaited(parse_operator_name(request.operator), key), timeout)
        assert isinstance(reply, pb.KernelSummary)
        return reply

    def stop(self) -> None:
        """Send all clients away, now and from now on."""
        self._stopping = True
        for waiters in self._waiters.values():
            for waiter in waiters:
                _answer(waiter, None)

    async def _wait(self, awaited: Awaited, timeout: float | None) -> Message:
        if timeout is not None and not (math.isfinite(timeout) and timeout >= 0):
            raise WireError(f"$.timeout is {timeout:g}; expected a number of seconds, not negative")
        async with self._publication:
            if self._is_there(awaited):
                return await asyncio.to_thread(self._describe, awaited)
            waiter = self._add(awaited)
        try:
            async with asyncio.timeout(timeout):
                found = await waiter
            if found is None:
                raise stopping_error("nothing will be registered any more")
            return found
        except TimeoutError:
            assert timeout is not None
            raise await self._timeout_error(awaited, timeout) from None
        finally:
            self._remove(awaited, waiter)

    def _add(self, awaited: Awaited) -> Waiter:
        if self._stopping:
            raise stopping_error("nothing will be registered any more")
        if self._count >= WAITERS_LIMIT:
            raise RefusedError(
                f"{WAITERS_LIMIT} clients wait for registrations already",
                hint="try again in a moment",
            )
        waiter: Waiter = self._loop.create_future()
        self._count += 1
        self._waiters[awaited].add(waiter)
        self._awaited[awaited.operator].add(awaited)
        return waiter

    def _remove(self, awaited: Awaited, waiter: Waiter) -> None:
        self._count -= 1
        self._waiters[awaited].discard(waiter)
        if not self._waiters[awaited]:
            del self._waiters[awaited]
            self._awaited[awaited.operator].discard(awaited)
            if not self._awaited[awaited.operator]:
                del self._awaited[awaited.operator]

    def _published(self, names: Collection[OperatorName]) -> None:
        """Report a publication that changed these operators to the event loop.

        Called by any thread.
        """
        self._loop.call_soon_threadsafe(self._note, names)

    def _note(self, names: Collection[OperatorName]) -> None:
        for name in self._awaited.keys() & names:  # few are awaited, many are published
            self._unseen |= self._awaited[name]
        if self._unseen and self._looking is None:
            self._looking = self._loop.create_task(self._look_for_all())

    async def _look_for_all(self) -> None:
        try:
            while self._unseen:
                async with self._publication:
                    unseen, self._unseen = self._unseen, set()
                    for awaited in filter(self._is_there, unseen):
                        await self._tell(awaited)
        finally:
            self._looking = None

    async def _tell(self, awaited: Awaited) -> None:
        found = await asyncio.to_thread(self._describe, awaited)
        for waiter in self._waiters.get(awaited, ()):
            _answer(waiter, found)

    def _is_there(self, awaited: Awaited) -> bool:
        """Return whether it is registered. The caller holds ``publication``."""
        op = self._dispatcher.find_op(awaited.operator)
        if op is None or awaited.key is None:
            return op is not None and op.has_schema
        return op.has_kernel_for_dispatch_key(awaited.key)

    def _describe(self, awaited: Awaited) -> Message:
        """Describe what is registered. In a thread, since it takes the dispatcher's mutex."""
        if awaited.key is None:
            return self._view.summarize(awaited.operator)
        return self._view.active_kernel(awaited.operator, awaited.key)

    async def _timeout_error(self, awaited: Awaited, timeout: float) -> WaitTimeoutError:
        explain = self._view.explain_waiting
        expected, hint = await asyncio.to_thread(explain, awaited.operator, awaited.key)
        return wait_timeout_error(str(awaited), timeout, expected, hint)


def _answer(waiter: Waiter, found: Message | None) -> None:
    if not waiter.done():  # skip a waiter whose client has gone
        waiter.set_result(found)
