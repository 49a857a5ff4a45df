"""``TorchDispatchMode``: Python code that sees every call of an operator in a block.

Mirrors ``torch/utils/_python_dispatch.py`` and ``c10/core/impl/TorchDispatchModeTLS.h``. A task has
a stack of modes. While it is not empty, the keys Python and PythonTLSSnapshot are in the local
included set, so that every call arrives at the fallback of Python, which asks the topmost mode. A
task without a mode is in the default local state, and its calls cost what they cost.

A mode of the key PreDispatch has a stack of its own, and sees calls before any other key does:
as they were made, before Autograd, and before composite kernels call others.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from opdispatch.errors import ArgumentError
from opdispatch.keys.dispatch_key import DispatchKey
from opdispatch.keys.dispatch_key_set import DispatchKeySet
from opdispatch.local_state.local_dispatch_key_set import (
    ForceDispatchKeyGuard,
    local_dispatch_key_set,
)

if TYPE_CHECKING:
    from opdispatch.local_state.operator import Operator

_K = DispatchKey
BELOW_PYTHON = DispatchKeySet.full_after(_K.Python)
ABOVE_PYTHON = DispatchKeySet.full() ^ BELOW_PYTHON.add(_K.Python)
_NONE = DispatchKeySet()


class _Entered(NamedTuple):
    mode: TorchDispatchMode
    guard: ForceDispatchKeyGuard
    """Restores the local sets that were there before."""


class _Stack:
    """The modes of a task that a key asks; the topmost is the last."""

    def __init__(self, name: str, keys: DispatchKeySet, off_in_handlers: DispatchKeySet) -> None:
        self._entered: ContextVar[tuple[_Entered, ...]] = ContextVar(name, default=())
        self.keys = keys
        """Keys that are included while there is a mode."""
        self._off = off_in_handlers

    def modes(self) -> tuple[TorchDispatchMode, ...]:
        return tuple(entered.mode for entered in self._entered.get())

    def push(self, mode: TorchDispatchMode) -> None:
        included, excluded = local_dispatch_key_set()
        guard = ForceDispatchKeyGuard(included | self.keys, excluded)
        guard.__enter__()
        self._entered.set((*self._entered.get(), _Entered(mode, guard)))

    def pop(self) -> None:
        *below, top = self._entered.get()
        self._entered.set(tuple(below))
        top.guard.__exit__(None, None, None)

    @contextmanager
    def without_top(self) -> Iterator[TorchDispatchMode]:
        """Take the topmost mode off in the block, and yield it; the one below is topmost."""
        *below, top = self._entered.get()
        included, excluded = local_dispatch_key_set()
        if not below:
            included -= self.keys
        token = self._entered.set(tuple(below))
        outside = _OUTSIDE.set(_OUTSIDE.get() or (included, excluded))
        try:
            with ForceDispatchKeyGuard(included, excluded | self._off):
                yield top.mode
        finally:
            _OUTSIDE.reset(outside)
            self._entered.reset(token)


_OUTSIDE: ContextVar[tuple[DispatchKeySet, DispatchKeySet] | None] = ContextVar(
    "opdispatch_keys_outside_modes", default=None
)

_STACKS = {
    _K.Python: _Stack(
        "opdispatch_torch_dispatch_modes",
        DispatchKeySet.of(_K.Python, _K.PythonTLSSnapshot),
        ABOVE_PYTHON,
    ),
    _K.PreDispatch: _Stack(
        "opdispatch_pre_dispatch_modes", DispatchKeySet.of(_K.PreDispatch), _NONE
    ),
}


class TorchDispatchMode:
    """A base for classes of modes: calls in ``with mode:`` are handed to ``__torch_dispatch__``.

    The innermost mode is asked first, and what it calls goes to the next one; none sees its own
    calls. Modes come before classes of tensors that handle operators themselves. Each thread and
    task has its own stack; a new task begins with that of its creator. A mode may be entered
    several times, and in several tasks.

    With the key PreDispatch, a mode sees calls before any other key. Raises ArgumentError for
    another key.
    """

    _dispatch_key: DispatchKey | None = None

    def __init__(self, _dispatch_key: DispatchKey | None = None) -> None:
        if _dispatch_key not in (None, DispatchKey.PreDispatch):
            raise ArgumentError(
                f"a mode is asked at the key Python, or at PreDispatch, not at {_dispatch_key}"
            )
        self._dispatch_key = _dispatch_key

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Return what the call of ``func`` is to return; to be defined by each class of modes.

        ``func`` is the operator, an ``OperatorHandle``: handlers may annotate it as one.
        ``types`` are the classes among the arguments that handle operators themselves. Trailing
        arguments that have their default are left out. Below the key Python, gradients are
        recorded already, so that calls from here record none. NotImplemented leaves it to
        the classes of tensors.
        """
        raise NotImplementedError(f"{type(self).__qualname__} does not define __torch_dispatch__")

    def __enter__(self) -> Self:
        handler = type(self).__torch_dispatch__
        if getattr(handler, "__self__", None) is type(self):
            raise ArgumentError(
                f"{type(self).__qualname__}.__torch_dispatch__ is a classmethod; expected a plain "
                "method, which is called with the mode that was entered",
                hint="a classmethod is for classes of tensors",
            )
        self._stack.push(self)
        return self

    def __exit__(self, *exc: object) -> None:
        self._stack.pop()

    @property
    def _stack(self) -> _Stack:
        return _STACKS[self._dispatch_key or _K.Python]

    def call_kernel(
        self,
        func: Operator,
        types: Sequence[type],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
    ) -> Any:
        """Call ``func`` from ``__torch_dispatch__``, with this mode on for calls made by its
        kernel.

        Where another mode or a class of tensors is asked next, it is an ordinary call.
        """
        if types or dispatch_modes(self._dispatch_key or _K.Python):
            return func(*args, **kwargs)
        keys = func.dispatch_keys(func.bind(args, kwargs))
        if self._dispatch_key is None:
            keys &= BELOW_PYTHON
        self._stack.push(self)
        try:
            return func.redispatch(keys, *args, **kwargs)
        finally:
            self._stack.pop()


def dispatch_modes(key: DispatchKey = _K.Python) -> tuple[TorchDispatchMode, ...]:
    """Return the modes of this task at the key Python or PreDispatch.

    The first to be called is last.
    """
    return _STACKS[key].modes()


@contextmanager
def top_mode_off(key: DispatchKey) -> Iterator[TorchDispatchMode]:
    """Take the topmost mode at ``key`` off in the block, and yield it."""
    with _STACKS[key].without_top() as mode:
        yield mode


def keys_of_modes() -> DispatchKeySet:
    """Return the keys included by this task's modes: of no use in another process."""
    keys = _NONE
    for stack in _STACKS.values():
        if stack.modes():
            keys |= stack.keys
    return keys


def keys_outside_modes() -> tuple[DispatchKeySet, DispatchKeySet]:
    """Return the included and excluded keys; in a mode's handler, those when the first was asked.

    For a call made anew in another process: handlers have every key above Python switched off,
    because those have been visited here.
    """
    return _OUTSIDE.get() or local_dispatch_key_set()
