"""``TorchDispatchMode``: intercepts every operator call in a block.

Mirrors ``torch/utils/_python_dispatch.py`` and ``c10/core/impl/TorchDispatchModeTLS.h``. A task has
a stack of modes. While it is not empty, the keys Python and PythonTLSSnapshot are in the local
included set, so that every call reaches the fallback of Python, which calls the topmost mode. A
task without modes is in the default local state, and its calls have no overhead.

Modes for the key PreDispatch have a stack of their own. They see calls before all other keys:
before Autograd, and before composite kernels are decomposed.
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
    """The guard that restores the previous local sets."""


class _Stack:
    """The stack of a task's modes for one key; the topmost is the last."""

    def __init__(self, name: str, keys: DispatchKeySet, off_in_handlers: DispatchKeySet) -> None:
        self._entered: ContextVar[tuple[_Entered, ...]] = ContextVar(name, default=())
        self.keys = keys
        """The keys included while the stack is not empty."""
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
        """Remove the topmost mode from the stack in the block, and yield it."""
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
    """The base class of modes: calls in ``with mode:`` are passed to ``__torch_dispatch__``.

    The innermost mode is called first, and operator calls in its handler go to the next one, so a
    mode does not see its own calls. Modes take precedence over tensor subclasses with a
    ``__torch_dispatch__``. Each thread and task has its own stack; a new task inherits its
    creator's. A mode may be entered several times, and in several tasks.

    With ``_dispatch_key`` PreDispatch, a mode sees calls before all other keys. Raises
    ArgumentError for any other key.
    """

    _dispatch_key: DispatchKey | None = None

    def __init__(self, _dispatch_key: DispatchKey | None = None) -> None:
        if _dispatch_key not in (None, DispatchKey.PreDispatch):
            raise ArgumentError(
                f"the key of a mode must be Python or PreDispatch, not {_dispatch_key}"
            )
        self._dispatch_key = _dispatch_key

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Handle a call of ``func``, and return its result. Subclasses must override this.

        ``func`` is the operator, and may be annotated as an ``OperatorHandle``. ``types`` are the
        classes of the arguments that define ``__torch_dispatch__``. Trailing arguments equal to
        their defaults are omitted. Autograd has already recorded the call, so calls made here
        record no gradients. Return NotImplemented to pass the call on to the tensor subclasses.
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
        """Call ``func`` from ``__torch_dispatch__``, with this mode active for its kernel's calls.

        If another mode or a tensor subclass handles the call next, this is an ordinary call.
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
    """Return this task's modes for the key Python or PreDispatch; the last one is called first."""
    return _STACKS[key].modes()


@contextmanager
def top_mode_off(key: DispatchKey) -> Iterator[TorchDispatchMode]:
    """Remove the topmost mode for ``key`` from the stack in the block, and yield it."""
    with _STACKS[key].without_top() as mode:
        yield mode


def keys_of_modes() -> DispatchKeySet:
    """Return the keys that this task's modes include; they must not be sent to other processes."""
    keys = _NONE
    for stack in _STACKS.values():
        if stack.modes():
            keys |= stack.keys
    return keys


def keys_outside_modes() -> tuple[DispatchKeySet, DispatchKeySet]:
    """Return the included and excluded keys; in a mode's handler, those before the first handler.

    They apply to a call dispatched anew in another process. In a handler, all keys above Python are
    excluded, because the call has already visited them here.
    """
    return _OUTSIDE.get() or local_dispatch_key_set()
