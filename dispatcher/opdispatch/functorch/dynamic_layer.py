"""The stack of levels of nested transforms, and the path of a call down through it.

    vmap(grad(f))(x)

has a level for vmap, and one above it for grad. A call in ``f`` arrives at
FuncTorchDynamicLayerFrontMode, whose kernel passes it to the topmost level. The level includes its
own keys (FuncTorchBatched; Autograd) and calls the operator again. Below these keys, the call
arrives at FuncTorchDynamicLayerBackMode, whose kernel passes it to the next lower level with the
local key sets restored that were in force when the call began. Below the last level it is an
ordinary call.

Mirrors ``functorch/{DynamicLayer,Interpreter}.{h,cpp}``. There, the stack is a mutable vector; here
it is an immutable list in a context variable, so each task has its own, and an exception restores
the previous stack.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from opdispatch.functorch.operator_rules import NOT_TAKEN, OperatorRules
from opdispatch.keys.dispatch_key import DispatchKey
from opdispatch.keys.dispatch_key_set import AUTOGRAD_KEYSET, BACKEND_MASK, DispatchKeySet
from opdispatch.local_state.grad_mode import is_grad_enabled
from opdispatch.local_state.local_dispatch_key_set import DEFAULT_STATE, LOCAL_STATE, LocalState

if TYPE_CHECKING:
    from opdispatch.dispatch.operator_handle import OperatorHandle

_K = DispatchKey
FRONT_AND_BACK = DispatchKeySet.of(
    _K.FuncTorchDynamicLayerFrontMode, _K.FuncTorchDynamicLayerBackMode
).bits
"""Included while there is a level."""

AUTOGRAD_BITS = AUTOGRAD_KEYSET.add(_K.ADInplaceOrView).bits
_TRACER = DispatchKeySet.of(_K.Tracer).bits
_AUTOCAST = DEFAULT_STATE.excluded
_BACK_BITS = DispatchKeySet.of(_K.FuncTorchDynamicLayerBackMode).bits
_ALL_BITS = (
    FRONT_AND_BACK
    | AUTOGRAD_BITS
    | DispatchKeySet.of(
        _K.FuncTorchGradWrapper,
        _K.FuncTorchBatched,
        _K.DeferredInit,
        _K.PythonTLSSnapshot,
        _K.Functionalize,
    ).bits
)


def bits_off_but_for(own: int) -> int:
    """Return the bits that a level excludes: all keys of levels except its own and the back key."""
    return _ALL_BITS & ~(own | _BACK_BITS)


def comes_first(state: LocalState) -> bool:
    """Return whether autocast, a tracer or an observer must see a call before a level handles
    it."""
    return (
        state.trace is not None
        or state.observer is not None
        or bool(state.included & _TRACER)
        or state.excluded & _AUTOCAST != _AUTOCAST
    )


class DynamicLayer(ABC):
    """A level of the stack: one transform applied to one function call."""

    name = ""

    def __init__(self, level: int) -> None:
        self.level = level
        """Depth of the level; the outermost is 1."""
        self.is_alive = False
        """Whether the transformed function is running."""
        self.traced_from_outside = 0
        """The Tracer key if a trace surrounds the transform, otherwise 0; that trace records the
        calls below the level."""
        # The local state rarely changes between calls, so the last state is cached with the state
        # derived from it: one pair for calls with this level's keys, one for calls below it. A pair
        # is replaced as a whole, so no other thread sees half of one. It is dropped with the level,
        # since a live state disables the fast path: see Note [Nothing is switched on].
        self._entered: tuple[LocalState, LocalState] | None = None
        self._lowered: tuple[LocalState, LocalState] | None = None
        self.served: tuple[LocalState, Frame, LocalState | None, Frame] | None = None
        """The arguments and result of the last ``serve_in``."""

    def end(self) -> None:
        """End the level. Its tensors may outlive it, but its cached states must not."""
        self.is_alive = False
        self._entered = self._lowered = self.served = None

    def call_with(
        self, included: int, excluded: int, rules: OperatorRules, args: Sequence[Any]
    ) -> Any:
        """Call an operator with ``included`` keys enabled and ``excluded`` keys disabled."""
        state = LOCAL_STATE.get()
        known = self._entered
        if known is None or known[0] is not state:
            on = state.included | included
            off = state.excluded | excluded | self.traced_from_outside
            self._entered = known = (state, replace(state, included=on, excluded=off))
        token = LOCAL_STATE.set(known[1])
        try:
            return rules.call(args) if rules.has_keywords else rules.op(*args)
        finally:
            LOCAL_STATE.reset(token)

    def state_below(self, frame: Frame, now: LocalState) -> LocalState:
        """Return the state in force for calls below the level, as it is on the stack."""
        saved = frame.saved or now
        known = self._lowered
        # A trace within the transform has already recorded the call and must not record it twice.
        off = 0 if self.traced_from_outside else _TRACER & saved.included & ~now.included
        # The observer may have changed since the call began; the cache holds for the same one only.
        is_watched_alike = now.trace is saved.trace and now.observer is saved.observer and not off
        if known is not None and known[0] is saved and is_watched_alike:
            return known[1]
        included = saved.included & ~off
        if frame.below is None:
            included &= ~FRONT_AND_BACK
        state = replace(now, included=included, excluded=saved.excluded)
        if state == DEFAULT_STATE:
            state = DEFAULT_STATE
        if is_watched_alike:
            self._lowered = (saved, state)
        return state

    def detach_below(self, value: Any) -> Any:
        """Call ``value.detach()`` at the level below this one."""
        frame = TOP.get()
        if frame is None:
            return value.detach()
        with Lowered(frame):
            return value.detach() if frame.layer is self else self.detach_below(value)

    def serve_in(self, frame: Frame, now: LocalState) -> tuple[LocalState | None, Frame]:
        """Return the state for calls taken on the fast path, and the frame for those processed step
        by step.

        The state is None if a key or an observer in ``now`` has to see calls first, which rules out
        the fast path.
        """
        below = None if comes_first(now) else self.state_below(frame, now)
        processing = Frame(self, frame.below, now)
        self.served = (now, frame, below, processing)
        return below, processing

    def take(
        self, rules: OperatorRules, frame: Frame, below: LocalState, args: Sequence[Any]
    ) -> Any:
        """Serve a call on the fast path, directly at the level below, with ``below`` as the state.

        Returns NOT_TAKEN for a call that must go through ``process``. ``frame`` is that of the
        level.
        """
        return NOT_TAKEN

    @abstractmethod
    def process(self, rules: OperatorRules, args: Sequence[Any]) -> Any:
        """Dispatch a call that has arrived at this level, with the level's keys enabled.

        No argument belongs to a level that has ended.
        """

    @abstractmethod
    def send_to_next(self, rules: OperatorRules, args: Sequence[Any]) -> Any:
        """Send a call that this level has processed to the level below, which is current."""

    def __repr__(self) -> str:
        return f"<{self.name} at level {self.level}>"


@dataclass(frozen=True, slots=True)
class Frame:
    """An entry of a task's stack: a level and the frame below it."""

    layer: DynamicLayer
    below: Frame | None
    saved: LocalState | None = None
    """The state at the start of the call that the level is processing."""


TOP: ContextVar[Frame | None] = ContextVar("opdispatch_dynamic_layers", default=None)


def next_level() -> int:
    """Return the number that the next pushed level gets."""
    top = TOP.get()
    return 1 if top is None else top.layer.level + 1


def state_outside() -> LocalState:
    """Return the state in which a newly pushed level would run.

    While a level processes a call, its keys are excluded; the state at the start of that call
    applies.
    """
    top, state = TOP.get(), LOCAL_STATE.get()
    if top is None or top.saved is None:
        return state
    return replace(state, included=top.saved.included, excluded=top.saved.excluded)


def is_recorded_outside() -> bool:
    """Return whether gradients are recorded outside a newly pushed level.

    If not, the levels below do not record either: ``no_grad`` around a transform detaches its
    results.
    """
    off = state_outside().excluded & AUTOGRAD_KEYSET.bits & ~BACKEND_MASK
    return is_grad_enabled() and not off


@contextmanager
def pushed(layer: DynamicLayer) -> Iterator[None]:
    """Push a level onto the stack for a ``with`` block; restore the previous state at its end."""
    top, state = TOP.get(), state_outside()
    local = LOCAL_STATE.set(replace(state, included=state.included | FRONT_AND_BACK))
    token = TOP.set(Frame(layer, top))
    layer.is_alive = True
    layer.traced_from_outside = state.included & _TRACER
    try:
        yield
    finally:
        layer.end()
        TOP.reset(token)
        LOCAL_STATE.reset(local)


def process_at_top(frame: Frame, rules: OperatorRules, args: Sequence[Any]) -> Any:
    """Process a call at the topmost level; ``frame`` holds the state at its start."""
    token = TOP.set(frame)
    try:
        return frame.layer.process(rules, args)
    finally:
        TOP.reset(token)


def call_without(keys: int, op: OperatorHandle, stack: list[Any]) -> None:
    """Call an operator with ``keys`` excluded."""
    state = LOCAL_STATE.get()
    token = LOCAL_STATE.set(replace(state, excluded=state.excluded | keys))
    try:
        op.call_boxed(stack)
    finally:
        LOCAL_STATE.reset(token)


class Lowered:
    """Context manager that pops the level of a frame, so calls run at the level below."""

    __slots__ = ("_frame", "_local", "_top")

    def __init__(self, frame: Frame) -> None:
        self._frame = frame

    def __enter__(self) -> None:
        frame = self._frame
        state = frame.layer.state_below(frame, LOCAL_STATE.get())
        self._local = LOCAL_STATE.set(state)
        self._top = TOP.set(frame.below)

    def __exit__(self, *exc: object) -> None:
        TOP.reset(self._top)
        LOCAL_STATE.reset(self._local)


def send_down(frame: Frame, rules: OperatorRules, args: Sequence[Any]) -> Any:
    """Send a call to the level below the frame."""
    local = LOCAL_STATE.set(frame.layer.state_below(frame, LOCAL_STATE.get()))
    top = TOP.set(frame.below)
    try:
        return frame.layer.send_to_next(rules, args)
    finally:
        TOP.reset(top)
        LOCAL_STATE.reset(local)
