"""Dispatch keys that a task adds to, or removes from, every call it makes.

Mirrors ``c10/core/impl/LocalDispatchKeySet.h``. PyTorch keeps the two sets per thread; here, they
are in a context variable, so each thread and each asyncio task has its own. The task's trace sink
and observer are in the same variable, so the hot path of a call reads only one variable to find out
whether the state is the default.

Note [Nothing is switched on]
    The hot path does not read the variable at all while all tasks are in the default state, which
    is the usual case. ``SWITCHED_ON`` has the id of every live LocalState except the default one. A
    task in another state keeps that state alive, at least through a copy of its context. So while
    the set is empty, every task is in the default state.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar, Token
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Self

from opdispatch.keys.dispatch_key import DispatchKey
from opdispatch.keys.dispatch_key_set import (
    BACKEND_MASK,
    DEFAULT_EXCLUDED_SET,
    DEFAULT_INCLUDED_SET,
    DispatchKeySet,
)
from opdispatch.local_state.trace_line import TraceSink, sink_from_environment

if TYPE_CHECKING:
    from opdispatch.local_state.call_observer import CallObserver

SWITCHED_ON: set[int] = set()
"""See Note [Nothing is switched on]. Each change of it is one operation under the GIL."""


@dataclass(frozen=True, slots=True)
class LocalState:
    """A task's included and excluded keys: an immutable value, replaced as a whole."""

    included: int = DEFAULT_INCLUDED_SET.bits
    excluded: int = DEFAULT_EXCLUDED_SET.bits
    trace: TraceSink | None = None
    observer: CallObserver | None = None
    switched: tuple[int, int] | None = field(init=False, compare=False, repr=False, default=None)
    """The two sets, as the key of kernel caches; None if a trace or an observer sees each call."""

    def __post_init__(self) -> None:
        SWITCHED_ON.add(id(self))
        if self.trace is None and self.observer is None:
            object.__setattr__(self, "switched", (self.included, self.excluded))

    def __del__(self, _remove: Callable[[int], None] = SWITCHED_ON.discard) -> None:
        # passed as a parameter, since at exit globals may be deleted before it runs
        _remove(id(self))

    def apply(self, bits: int) -> int:
        """Return the keys of a call whose arguments have ``bits``."""
        return apply_local_sets(self.included, self.excluded, bits)


def apply_local_sets(included: int, excluded: int, bits: int) -> int:
    """Apply these sets to ``bits``, like ``LocalState.apply`` of a state that has them."""
    # See Note [Subtraction keeps the backend].
    return (bits | included) & (~excluded | BACKEND_MASK)


DEFAULT_STATE = LocalState()
"""The default state; recognized by identity on the hot path."""
SWITCHED_ON.discard(id(DEFAULT_STATE))

_initial_trace = sink_from_environment()
LOCAL_STATE: ContextVar[LocalState] = ContextVar(
    "opdispatch_local_state",
    default=LocalState(trace=_initial_trace) if _initial_trace else DEFAULT_STATE,
)


def local_dispatch_key_set() -> tuple[DispatchKeySet, DispatchKeySet]:
    """Return the included and the excluded set of the current task."""
    state = LOCAL_STATE.get()
    return DispatchKeySet(state.included), DispatchKeySet(state.excluded)


def local_dispatch_key_set_is_default() -> bool:
    """Return whether no guard affects the keys of the current task's calls."""
    state = LOCAL_STATE.get()
    return state is DEFAULT_STATE or (
        state.included == DEFAULT_STATE.included and state.excluded == DEFAULT_STATE.excluded
    )


def tls_is_dispatch_key_included(key: DispatchKey | str) -> bool:
    """Return whether the current task includes ``key`` in its calls."""
    return local_dispatch_key_set()[0].has(key)


def tls_is_dispatch_key_excluded(key: DispatchKey | str) -> bool:
    """Return whether the current task excludes ``key`` from its calls."""
    return local_dispatch_key_set()[1].has(key)


def tls_set_dispatch_key_included(key: DispatchKey | str, desired_state: bool) -> None:
    """Add ``key`` to the included set of the current task, or remove it, permanently.

    For a ``with`` block, use a guard.
    """
    keys = local_dispatch_key_set()[0]
    if keys.has(key) != desired_state:
        keys = keys.add(key) if desired_state else keys.remove(key)
        LOCAL_STATE.set(_canonical(replace(LOCAL_STATE.get(), included=keys.bits)))


def tls_set_dispatch_key_excluded(key: DispatchKey | str, desired_state: bool) -> None:
    """Set whether ``key`` is in the excluded set of this task."""
    keys = local_dispatch_key_set()[1]
    if keys.has(key) != desired_state:
        keys = keys.add(key) if desired_state else keys.remove(key)
        LOCAL_STATE.set(_canonical(replace(LOCAL_STATE.get(), excluded=keys.bits)))


def with_excluded(state: LocalState, bits: int) -> LocalState:
    """Return a copy of ``state`` whose excluded set has the bits ``bits``."""
    if bits == state.excluded:
        return state
    return _canonical(LocalState(state.included, bits, state.trace, state.observer))


def _canonical(state: LocalState) -> LocalState:
    return DEFAULT_STATE if state == DEFAULT_STATE else state


class LocalStateGuard:
    """Changes a part of the current task's state during a ``with`` block, then restores that part.

    ``changes`` are the new values of fields of ``LocalState``; a subclass whose values depend on
    the current ones names its fields in ``_restored``. Other fields are not restored: a profile may
    stop in an autocast block that began later, and outlast one that began earlier.
    """

    _restored: tuple[str, ...] = ()

    def __init__(self, **changes: object) -> None:
        self._changes = changes
        self._restored = self._restored or tuple(changes)
        self._entered: list[tuple[LocalState, LocalState, Token[LocalState]]] = []

    def _new_state(self, state: LocalState) -> LocalState:
        return replace(state, **self._changes)  # type: ignore[arg-type]

    def __enter__(self) -> Self:
        before = LOCAL_STATE.get()
        state = _canonical(self._new_state(before))
        self._entered.append((before, state, LOCAL_STATE.set(state)))
        return self

    def __exit__(self, *exc: object) -> None:
        before, state, token = self._entered.pop()
        now = LOCAL_STATE.get()
        if now is state:
            LOCAL_STATE.reset(token)
        else:
            changes = {name: getattr(before, name) for name in self._restored}
            LOCAL_STATE.set(_canonical(replace(now, **changes)))


class ForceLocalState:
    """Replaces the entire local state by ``state`` during one ``with`` block."""

    __slots__ = ("_state", "_token")

    def __init__(self, state: LocalState) -> None:
        self._state = state

    def __enter__(self) -> Self:
        self._token = LOCAL_STATE.set(self._state)
        return self

    def __exit__(self, *exc: object) -> None:
        LOCAL_STATE.reset(self._token)


class ForceDispatchKeyGuard(LocalStateGuard):
    """Sets both local sets, whatever they were."""

    def __init__(self, included: DispatchKeySet, excluded: DispatchKeySet) -> None:
        super().__init__(included=included.bits, excluded=excluded.bits)


class IncludeDispatchKeyGuard(LocalStateGuard):
    """Adds keys to the included set, and restores that set."""

    _restored = ("included",)

    def __init__(self, keys: DispatchKeySet | DispatchKey | str) -> None:
        super().__init__()
        self._keys = keys if isinstance(keys, DispatchKeySet) else DispatchKeySet.of(keys)

    def _new_state(self, state: LocalState) -> LocalState:
        return replace(state, included=state.included | self._keys.bits)


class ExcludeDispatchKeyGuard(LocalStateGuard):
    """Adds keys to the excluded set, which wins over the included one, and restores that set."""

    _restored = ("excluded",)

    def __init__(self, keys: DispatchKeySet | DispatchKey | str) -> None:
        super().__init__()
        self._keys = keys if isinstance(keys, DispatchKeySet) else DispatchKeySet.of(keys)

    def _new_state(self, state: LocalState) -> LocalState:
        return replace(state, excluded=state.excluded | self._keys.bits)
