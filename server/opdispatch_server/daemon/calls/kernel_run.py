"""One kernel that an interpreter runs for a call, or is about to run."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Collection
from typing import Final, Protocol

from opdispatch_server.call_context import MAX_DEPTH, CallContext
from opdispatch_server.daemon.interpreters.session import InterpreterSession
from opdispatch_server.nested_time import NestedTime
from opdispatch_wire.errors import DeadlineExceededError

RUN_BYTES = 16
"""Length of a run's number, which authorizes nested calls, and so is too long to guess."""

NESTED_CALLS_PER_INTERPRETER: Final = 1024
"""Most nested calls that one interpreter runs at a time. They take no slot."""


class HeldSlot(Protocol):
    """The slots that a run releases when it ends: one, or several."""

    is_ahead: bool
    began: float

    def release(self) -> None:
        """Release the slots to the calls that wait."""


class RunningKernel:
    """A running kernel, as seen by the calls that it makes."""

    def __init__(self, operator: str, depth: int = 0) -> None:
        self.number = secrets.randbits(8 * RUN_BYTES)
        self.operator = operator
        self.depth = depth
        self.is_abandoned = False  # whether its caller has stopped waiting
        self.nested_calls = NestedTime()


def context_of_call(context: CallContext, parent: RunningKernel | None) -> CallContext:
    """Return the context of a call by the kernel of ``parent``, or by a client.

    Nothing else that the sender claims about the call is trusted.
    """
    depth = min(parent.depth + 1, MAX_DEPTH) if parent is not None else 0
    return CallContext(context.deadline, depth, tensors=context.tensors)


class KernelRun(RunningKernel):
    """One run of a kernel in an interpreter. For use in the event loop only."""

    def __init__(
        self,
        operator: str,
        session: InterpreterSession,
        slot: HeldSlot | None,
        depth: int = 0,
        operators: Collection[str] = (),
    ) -> None:
        super().__init__(operator, depth)
        self.operators = operators or (operator,)
        self.session = session
        self._slot = slot
        self.is_overdue = False
        # Called when the interpreter becomes busy with another call, if this one may move.
        self.on_move: Callable[[], None] | None = None
        self.moved: asyncio.Future[None] | None = None
        self.call = 0
        """The call as the interpreter's flight record identifies it."""
        self.timer: asyncio.TimerHandle | None = None
        self._began = time.monotonic()

    @property
    def is_ahead(self) -> bool:
        """Whether it waits in the interpreter for another call to end."""
        return self._slot is not None and self._slot.is_ahead

    def late_error(self) -> DeadlineExceededError:
        """Return the error for a caller whose deadline has passed."""
        what = "about to run" if self.is_ahead else "running"
        return DeadlineExceededError(
            f"the deadline passed while interpreter {self.session.name} was {what} {self.operator}",
            operator=self.operator,
            interpreter=self.session.name,
            started="unknown" if self.is_ahead else "yes",
        )

    @property
    def own_seconds(self) -> float:
        """How long its kernel has run, in seconds, without its calls through the daemon."""
        if self.is_ahead:
            return 0.0
        return self.nested_calls.own_seconds(self._slot.began if self._slot else self._began)
