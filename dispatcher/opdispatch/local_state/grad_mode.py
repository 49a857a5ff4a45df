"""Grad mode, whether a task records gradients, and inference mode: `no_grad`, `inference_mode`.

Mirrors ``torch/autograd/grad_mode.py`` and ``c10/core/InferenceMode.h``. Grad mode is a flag for
the kernels of autograd and changes no key of a call, so it has a context variable of its own: calls
under `no_grad` stay on the fast path. Inference mode also changes the local key sets.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, ClassVar, NamedTuple, Self

from opdispatch.keys.dispatch_key import DispatchKey
from opdispatch.keys.dispatch_key_set import AUTOGRAD_KEYSET
from opdispatch.local_state.local_dispatch_key_set import (
    ForceDispatchKeyGuard,
    local_dispatch_key_set,
)
from opdispatch.local_state.mode_decorator import ModeDecorator

_ADINPLACE_OR_VIEW = DispatchKey.ADInplaceOrView


class AutogradState(NamedTuple):
    """A task's gradient modes: an immutable value that is replaced as a whole."""

    grad_mode: bool = True
    inference_mode: bool = False


_STATES = {
    (grad_mode, inference_mode): AutogradState(grad_mode, inference_mode)
    for grad_mode in (False, True)
    for inference_mode in (False, True)
}
NOT_RECORDING = (_STATES[False, False], _STATES[False, True])
"""States with gradients disabled, indexed by ``inference_mode``; faster than ``no_grad`` on hot
paths."""
RECORDING = _STATES[True, False]
"""The state of a new task."""
AUTOGRAD_STATE: ContextVar[AutogradState] = ContextVar(
    "opdispatch_autograd_state", default=RECORDING
)


def grad_mode_state(mode: bool) -> AutogradState:
    """Return the current task's state with that grad mode."""
    return _STATES[bool(mode), AUTOGRAD_STATE.get().inference_mode]


def is_grad_enabled() -> bool:
    """Return whether the current task records gradients."""
    return AUTOGRAD_STATE.get().grad_mode


def is_inference_mode_enabled() -> bool:
    """Return whether the current task is in inference mode."""
    return AUTOGRAD_STATE.get().inference_mode


def _set_grad_mode(mode: bool) -> None:
    AUTOGRAD_STATE.set(grad_mode_state(mode))


class _GradMode(ModeDecorator):
    """Sets the grad mode for a block, then restores the previous one."""

    def __init__(self, mode: bool) -> None:
        self._mode = bool(mode)
        self._previous: list[bool] = []

    def __enter__(self) -> Self:
        state = AUTOGRAD_STATE.get()  # inlined for speed: blocks are entered often
        self._previous.append(state.grad_mode)
        AUTOGRAD_STATE.set(_STATES[self._mode, state.inference_mode])
        return self

    def __exit__(self, *exc: object) -> None:
        inference_mode = AUTOGRAD_STATE.get().inference_mode
        AUTOGRAD_STATE.set(_STATES[self._previous.pop(), inference_mode])


class _FixedGradMode(_GradMode):
    """A grad mode determined by its class; as a decorator it needs no parentheses."""

    MODE: ClassVar[bool]

    def __new__(cls, function: Callable[..., Any] | None = None) -> Any:
        """Create the mode; ``@no_grad`` decorates, like ``@no_grad()``."""
        return super().__new__(cls) if function is None else cls()(function)

    def __init__(self) -> None:
        self._mode = self.MODE
        self._previous = []

    def clone(self) -> Self:
        """Return a new instance."""
        mode: Self = type(self)()
        return mode


class no_grad(_FixedGradMode):  # noqa: N801 - PyTorch's name
    """Disables gradient recording in the block, or in the decorated function."""

    MODE = False


class enable_grad(_FixedGradMode):  # noqa: N801 - PyTorch's name
    """Enables gradient recording in the block or the decorated function, even under `no_grad`."""

    MODE = True


class set_grad_enabled(_GradMode):  # noqa: N801 - PyTorch's name
    """Sets the mode at once when called; as a ``with`` block, until its end.

    Decorating a function restores the mode, and sets it for each call of the function.
    """

    def __init__(self, mode: bool) -> None:
        super().__init__(mode)
        self._before = is_grad_enabled()
        _set_grad_mode(mode)

    def __enter__(self) -> Self:
        # The mode was set when the object was created: the block restores the mode before that.
        self._previous.append(self._before)
        _set_grad_mode(self._mode)
        return self

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return ``function``, with the mode set for each call."""
        _set_grad_mode(self._before)
        return super().__call__(function)

    def clone(self) -> set_grad_enabled:
        """Return a new instance, which sets the mode."""
        return set_grad_enabled(self._mode)


class inference_mode(ModeDecorator):  # noqa: N801 - PyTorch's name
    """Disables gradients and view tracking in the block: calls skip the keys for them.

    ``mode=False`` leaves inference mode for a block.
    """

    def __new__(cls, mode: bool | Callable[..., Any] = True) -> Any:
        """Create the mode; ``@inference_mode`` works without parentheses."""
        return super().__new__(cls) if isinstance(mode, bool) else cls()(mode)

    def __init__(self, mode: bool = True) -> None:
        self._mode = mode
        self._entered: list[tuple[AutogradState, ForceDispatchKeyGuard]] = []

    def __enter__(self) -> Self:
        included, excluded = local_dispatch_key_set()
        if self._mode:
            sets = included.remove(_ADINPLACE_OR_VIEW), excluded | AUTOGRAD_KEYSET
        else:
            sets = included.add(_ADINPLACE_OR_VIEW), excluded - AUTOGRAD_KEYSET
        guard = ForceDispatchKeyGuard(*sets)
        guard.__enter__()
        self._entered.append((AUTOGRAD_STATE.get(), guard))
        AUTOGRAD_STATE.set(_STATES[not self._mode, self._mode])
        return self

    def __exit__(self, *exc: object) -> None:
        state, guard = self._entered.pop()
        AUTOGRAD_STATE.set(state)
        guard.__exit__(*exc)

    def clone(self) -> inference_mode:
        """Return a new instance of the same mode."""
        mode: inference_mode = inference_mode(self._mode)
        return mode
