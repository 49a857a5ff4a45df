"""Let calls wait while their library has no interpreter.

It corresponds to gRPC's ``wait_for_ready``, for calls on a channel without a connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from opdispatch.errors import OpdispatchError
from opdispatch_server.call_context import CallContext, with_last_words
from opdispatch_server.daemon.calls.interpreter_queue import QueueLimits
from opdispatch_server.daemon.libraries.availability import LibraryAvailability
from opdispatch_server.daemon.libraries.version import LibraryVersion
from opdispatch_wire.errors import QueueFullError, RefusedError

READY_WAIT = 30.0
"""How long a call waits for its library to be loaded in another interpreter, in seconds."""
# Seconds after which a refused caller may try again.
RETRY_AFTER = 1.0


class LibraryAwayError(Exception):
    """The library that has the operator has no live interpreter. Never leaves the daemon."""

    def __init__(self, library: LibraryVersion, operator: str) -> None:
        super().__init__(operator)
        self.library = library
        self.operator = operator


def end_of_patience(context: CallContext) -> float:
    """Return when a call stops waiting for an interpreter, as a time of the event loop."""
    seconds = READY_WAIT
    if context.timeout is not None:
        seconds = min(seconds, with_last_words(context.timeout))
    return asyncio.get_running_loop().time() + seconds


class WaitForReady:
    """The calls that wait for their libraries. For use in the event loop only.

    For all libraries together, as many may wait as for one interpreter.
    """

    def __init__(self, availability: LibraryAvailability, limits: QueueLimits) -> None:
        self._availability = availability
        self._limits = limits
        self._bytes = 0
        self._waiting: set[asyncio.Timeout] = set()
        self._is_closed = False

    def close(self) -> None:
        """Send all waiting calls away, now and from now on: the daemon is stopping."""
        self._is_closed = True
        now = asyncio.get_running_loop().time()
        for scope in self._waiting:
            if not scope.expired():  # a wait that ends by itself keeps its own deadline
                scope.reschedule(now)

    async def wait(
        self,
        affects: Callable[[LibraryVersion], bool],
        error: OpdispatchError,
        size: int,
        deadline: float,
    ) -> None:
        """Wait until each library that ``affects`` selects can be called again, or never will.

        Raises ``error`` at the ``deadline``, a time of the event loop, and QueueFullError if too
        many calls wait.
        """
        await self.wait_for(lambda: self._availability.wait(affects), error, size, deadline)

    async def wait_for(
        self,
        available: Callable[[], Coroutine[Any, Any, None]],
        error: OpdispatchError,
        size: int,
        deadline: float,
    ) -> None:
        """Wait until ``available`` returns. Raises the errors of ``wait``."""
        if self._is_closed:
            raise error
        if len(self._waiting) >= self._limits.calls or self._bytes + size > self._limits.bytes:
            raise self._full(error)
        self._bytes += size
        scope = asyncio.timeout_at(deadline)
        try:
            async with scope:
                self._waiting.add(scope)
                await available()
                # an expired deadline must also take effect if there was nothing to wait for
                await asyncio.sleep(0)
        except TimeoutError:
            raise error from None
        finally:
            self._waiting.discard(scope)
            self._bytes -= size

    def refusal(self, away: LibraryAwayError) -> RefusedError:
        """Return the error of a call that may not wait, or has waited too long."""
        library = away.library
        problem, hint = self._availability.explain_want(library)
        return RefusedError(
            f"{away.operator} cannot be called now: library {library.name!r} has lost its "
            f"interpreter, and {problem or 'is being loaded into another one'}",
            hint=hint or "try again in a moment",
            operator=away.operator,
            started="no",
        )

    def is_hopeless(self, library: LibraryVersion) -> bool:
        """Return whether only action by an administrator brings the library back."""
        return bool(self._availability.explain_want(library)[0])

    def _full(self, error: OpdispatchError) -> QueueFullError:
        operator = error.facts.get("operator", "")
        return QueueFullError(
            f"{len(self._waiting)} calls with {self._bytes} bytes wait for libraries that have "
            f"lost their interpreters, which is the limit; the call of {operator} was "
            "given up",
            hint=f"try again in {RETRY_AFTER:g} s",
            operator=operator,
            retry_after=f"{RETRY_AFTER:.3f}",
            **({"started": "no"} if error.facts.get("started") == "no" else {}),
        )
