"""Observer of the calls of a task as they begin and end: the dispatcher's view of a profiler.

Mirrors the callbacks of ``ATen/record_function.h``. A task's observer is in its ``LocalState``, so
that a call without one does not look for it, and each kernel finds the observer that its own call
made: that one observes its calls, in any task or thread with a copy of its context.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from opdispatch.local_state.operator import Operator


class CallObserver(Protocol):
    """Where in the tree of calls a task is. Called from any thread."""

    def begin_call(self, op: Operator, stack: Sequence[Any]) -> CallObserver | None:
        """Begin a call with the arguments on ``stack``, which must not be kept or changed.

        Returns the observer of its end and of what its kernel calls. None: this one goes on,
        and its ``end`` is not called. Redispatches of a call are not observed.
        """

    def begin_range(self, name: str, kind: str, inputs: Sequence[Any] = ()) -> CallObserver:
        """Begin a range: a step of the backward pass, or a range of the user's."""

    def end(self, result: Any, failed: bool) -> None:
        """End the observed call, after it has returned ``result``, or raised."""
