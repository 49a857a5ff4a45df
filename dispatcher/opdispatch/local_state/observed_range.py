"""A block that the task's observer records, if there is one."""

from __future__ import annotations

from collections.abc import Sequence
from contextvars import Token
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self

from opdispatch.local_state.local_dispatch_key_set import LOCAL_STATE, LocalState

if TYPE_CHECKING:
    from opdispatch.local_state.call_observer import CallObserver


class ObservedRange:
    """A range for one ``with`` block; see ``CallObserver.begin_range``."""

    __slots__ = ("_inputs", "_kind", "_name", "_observer", "_token")

    def __init__(self, name: str, kind: str, inputs: Sequence[Any] = ()) -> None:
        self._name = name
        self._kind = kind
        self._inputs = inputs
        self._observer: CallObserver | None = None
        self._token: Token[LocalState] | None = None

    def __enter__(self) -> Self:
        local = LOCAL_STATE.get()
        if local.observer is not None:
            self._observer = local.observer.begin_range(self._name, self._kind, self._inputs)
            self._token = LOCAL_STATE.set(replace(local, observer=self._observer))
        return self

    def __exit__(self, exc_type: object, exc: object, traceback: object) -> None:
        token, observer = self._token, self._observer
        if token is not None and observer is not None:
            self._token = self._observer = None
            LOCAL_STATE.reset(token)
            observer.end(None, exc is not None)
