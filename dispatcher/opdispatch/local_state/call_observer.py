"""Who is told of the calls of a task as they begin and end: what a profiler is to the dispatcher.

Mirrors the callbacks of ``ATen/record_function.h``. A task's observer is in its ``LocalState``, so
that a call without one does not look for it, and each kernel finds the observer that its own call
made: what it calls is told to that one, in whatever task or thread with a copy of its context.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from opdispatch.local_state.operator import Operator


class CallObserver(Protocol):
    """Where in the tree of calls a task is. Called from any thread."""

    def begin_call(self, op: Operator, stack: Sequence[Any]) -> CallObserver | None:
        """A call begins, with the arguments on ``stack``, which are not to be kept or changed.

        Returns the observer of its end and of what its kernel calls. None: this one goes on, and
        is told no end. Redispatches of a call are not told.
        """

    def begin_range(self, name: str, kind: str, inputs: Sequence[Any] = ()) -> CallObserver:
        """Something else than a call begins: a step of the way back, or a range of the user's."""

    def end(self, result: Any, failed: bool) -> None:
        """Called after the observed call has returned ``result``, or raised."""
