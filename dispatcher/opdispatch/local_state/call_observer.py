"""The observer of a task's calls, such as a profiler: it is called when each begins and ends.

Mirrors the callbacks of ``ATen/record_function.h``. A task's observer is in its ``LocalState``, so
unobserved calls need no extra lookup. A kernel runs with the observer that its call created, which
observes the kernel's own calls, in any task or thread with a copy of its context.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from opdispatch.local_state.operator import Operator


class CallObserver(Protocol):
    """A task's position in the tree of calls. Called from any thread."""

    def begin_call(self, op: Operator, stack: Sequence[Any]) -> CallObserver | None:
        """Begin a call with the arguments on ``stack``, which must not be kept or changed.

        Returns the observer of the call's end and of its kernel's calls, or None to keep this
        observer in place; then ``end`` is not called. Redispatches are not observed.
        """

    def begin_range(self, name: str, kind: str, inputs: Sequence[Any] = ()) -> CallObserver:
        """Begin a range: a step of the backward pass, or a range that the user defined."""

    def end(self, result: Any, failed: bool) -> None:
        """End the observed call, which has returned ``result``, or raised."""
