"""One run of a kernel in an interpreter, from its start to its reply."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection
from typing import Protocol

from opdispatch_server.daemon.calls.nested import RunningKernel
from opdispatch_server.daemon.interpreters.session import InterpreterSession
from opdispatch_wire.errors import DeadlineExceededError


class HeldSlot(Protocol):
    """The slots that a run releases when it ends: one, or several."""

    is_ahead: bool
    began: float

    def release(self) -> None:
        """Release the slots to the calls that wait."""


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
