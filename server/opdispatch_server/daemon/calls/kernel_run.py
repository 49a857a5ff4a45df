"""One kernel that an interpreter runs for a call, or is about to."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Collection
from typing import Protocol

from opdispatch_server.daemon.interpreters.session import InterpreterSession
from opdispatch_server.nested_time import NestedTime
from opdispatch_wire.errors import DeadlineExceededError

RUN_BYTES = 16
"""The number of a run authorizes calls in its name, which do not queue."""


class HeldSlot(Protocol):
    """The slots that a run gives back when it ends: one, or several."""

    is_ahead: bool
    began: float

    def release(self) -> None:
        """Release the slot to the next call."""


class RunningKernel:
    """A kernel that is running, as the calls see it that it makes."""

    def __init__(self, operator: str, depth: int = 0) -> None:
        self.number = secrets.randbits(8 * RUN_BYTES)
        self.operator = operator
        self.depth = depth
        self.is_abandoned = False  # its caller waits no more
        self.nested_calls = NestedTime()


class KernelRun(RunningKernel):
    """One run of a kernel in an interpreter. Belongs to the event loop."""

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
        # What is done when its interpreter becomes busy with another call, if it may move.
        self.on_move: Callable[[], None] | None = None
        self.moved: asyncio.Future[None] | None = None
        self.call = 0
        """As the interpreter's flight record has it."""
        self.timer: asyncio.TimerHandle | None = None
        self._began = time.monotonic()

    @property
    def is_ahead(self) -> bool:
        """Whether it waits in the interpreter for another one to end."""
        return self._slot is not None and self._slot.is_ahead

    def late_error(self) -> DeadlineExceededError:
        """Return the error of a caller whose deadline has passed."""
        what = "about to run" if self.is_ahead else "running"
        return DeadlineExceededError(
            f"the deadline passed while interpreter {self.session.name} was {what} {self.operator}",
            operator=self.operator,
            interpreter=self.session.name,
            started="unknown" if self.is_ahead else "yes",
        )

    @property
    def own_seconds(self) -> float:
        """How long its kernel has run, without the calls that it made through the daemon."""
        if self.is_ahead:
            return 0.0
        return self.nested_calls.own_seconds(self._slot.began if self._slot else self._began)
