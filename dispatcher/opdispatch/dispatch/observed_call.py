"""Watches a call while its kernel runs: writes a line of the trace, and notifies the observer."""

from __future__ import annotations

from collections.abc import Sequence
from contextvars import Token
from typing import TYPE_CHECKING, Any, Self

from opdispatch.local_state.local_dispatch_key_set import LOCAL_STATE, LocalState
from opdispatch.local_state.trace_line import TraceLine

if TYPE_CHECKING:
    from opdispatch.dispatch.operator_state import Resolution
    from opdispatch.local_state.call_observer import CallObserver
    from opdispatch.local_state.operator import Operator

_CALLS = frozenset({"call", "callBoxed"})


class ObservedCall:
    """A block in which a kernel runs. ``result`` is what the kernel returned."""

    __slots__ = ("_arguments", "_observer", "_token", "result")

    def __init__(
        self,
        op: Operator,
        kernel: Resolution,
        kind: str,
        local: LocalState,
        stack: Sequence[Any],
    ) -> None:
        self._arguments = (op, kernel, kind, local, stack)
        self._observer: CallObserver | None = None
        self.result: Any = None

    def __enter__(self) -> Self:
        op, kernel, kind, local, stack = self._arguments
        trace, observer = local.trace, local.observer
        if trace is not None:
            trace.emit(
                TraceLine(
                    depth=trace.depth,
                    kind=kind,
                    operator=str(op.name),
                    key=str(kernel.key),
                    kernel=kernel.registration.site,
                    reason=kernel.reason,
                )
            )
            trace = trace.nested()
        if observer is not None and kind in _CALLS:
            self._observer = observer.begin_call(op, stack)
            observer = self._observer or observer
        state = LocalState(local.included, local.excluded, trace, observer)
        self._token: Token[LocalState] = LOCAL_STATE.set(state)
        return self

    def __exit__(self, exc_type: object, exc: object, traceback: object) -> None:
        LOCAL_STATE.reset(self._token)
        if self._observer is not None:
            self._observer.end(self.result, exc is not None)
