"""The levels of nested transforms: a stack for each task, and how a call goes down through it.

    vmap(grad(f))(x)

has a level for vmap, and one above it for grad. A call in ``f`` arrives at
FuncTorchDynamicLayerFrontMode, which hands it to the topmost level. That switches on the keys that
are its own (FuncTorchBatched; Autograd) and calls the operator again. Below them, the call arrives
at FuncTorchDynamicLayerBackMode, which hands it to the next level down, with everything switched on
or off that was so when the call began; below the last level it is an ordinary call.

Mirrors ``functorch/{DynamicLayer,Interpreter}.{h,cpp}``. There, the stack is a vector that is
changed; here it is an immutable list in a context variable, so that each task has its own, and an
exception leaves nothing behind.
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
    """Return the bits a level excludes: all of levels, but for its own keys and the way down."""
    return _ALL_BITS & ~(own | _BACK_BITS)


def comes_first(state: LocalState) -> bool:
    """Return whether autocast or a tracer sees calls before a level does, or a watch each step."""
    return (
        state.trace is not None
        or state.observer is not None
        or bool(state.included & _TRACER)
        or state.excluded & _AUTOCAST != _AUTOCAST
    )


class DynamicLayer(ABC):
    """A level: one transform of one call of a function."""

    name = ""

    def __init__(self, level: int) -> None:
        self.level = level
        """Counted from 1, the outermost."""
        self.is_alive = False
        """Whether the transformed function is being called."""
        self.traced_from_outside = 0
        """Tracer, if a trace is around the transform: it records the calls below."""
        # What is switched on changes seldom between calls: the last state, and the one that
        # follows from it, for calls with this level's keys and for those below it. Each pair is
        # replaced as a whole, and goes with the level: see Note [Nothing is switched on].
        self._entered: tuple[LocalState, LocalState] | None = None
        self._lowered: tuple[LocalState, LocalState] | None = None
        self.served: tuple[LocalState, Frame, LocalState | None, Frame] | None = None
        """The last finding of ``serve_in``, and its question."""

    def end(self) -> None:
        """End the level: its tensors may live on, what was switched on must not."""
        self.is_alive = False
        self._entered = self._lowered = self.served = None

    def call_with(
        self, included: int, excluded: int, rules: OperatorRules, args: Sequence[Any]
    ) -> Any:
        """Return what an operator returns with this level's keys switched on, and others off."""
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
        # A trace within the transform has recorded the call already, and must not do so twice.
        off = 0 if self.traced_from_outside else _TRACER & saved.included & ~now.included
        # Who watches calls may be another one within them.
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
        """Return ``value.detach()`` of a tensor below this level, called there."""
        frame = TOP.get()
        if frame is None:
            return value.detach()
        with Lowered(frame):
            return value.detach() if frame.layer is self else self.detach_below(value)

    def serve_in(self, frame: Frame, now: LocalState) -> tuple[LocalState | None, Frame]:
        """Return what is switched on below the level for calls that may be taken at once, and the
        frame in which others are processed.

        None if something is switched on in ``now`` that comes before calls are taken.
        """
        below = None if comes_first(now) else self.state_below(frame, now)
        processing = Frame(self, frame.below, now)
        self.served = (now, frame, below, processing)
        return below, processing

    def take(
        self, rules: OperatorRules, frame: Frame, below: LocalState, args: Sequence[Any]
    ) -> Any:
        """Return what a call returns, made at once at the level below, where ``below`` is on.

        NOT_TAKEN, if it is to be processed step by step. ``frame`` is that of the level.
        """
        return NOT_TAKEN

    @abstractmethod
    def process(self, rules: OperatorRules, args: Sequence[Any]) -> Any:
        """Return what a call returns that has arrived: that of the operator with this level's keys.

        No argument is of a level that is over.
        """

    @abstractmethod
    def send_to_next(self, rules: OperatorRules, args: Sequence[Any]) -> Any:
        """Return what a call returns that this level has dealt with.

        That of the operator at the level below, which is current.
        """

    def __repr__(self) -> str:
        return f"<{self.name} at level {self.level}>"


@dataclass(frozen=True, slots=True)
class Frame:
    """A level on the stack of a task, and what is below it."""

    layer: DynamicLayer
    below: Frame | None
    saved: LocalState | None = None
    """The state in which the call began that the level is processing."""


TOP: ContextVar[Frame | None] = ContextVar("opdispatch_dynamic_layers", default=None)


def next_level() -> int:
    """Return the number of the level that would be pushed now."""
    top = TOP.get()
    return 1 if top is None else top.layer.level + 1


def state_outside() -> LocalState:
    """Return the state in force where a level would be pushed now.

    In the middle of a call, where keys of levels are off, it is what was so when the call began.
    """
    top, state = TOP.get(), LOCAL_STATE.get()
    if top is None or top.saved is None:
        return state
    return replace(state, included=top.saved.included, excluded=top.saved.excluded)


def is_recorded_outside() -> bool:
    """Return whether gradients are recorded where a level would be pushed now.

    If not, levels below record none either: ``no_grad`` around a transform is about its results.
    """
    off = state_outside().excluded & AUTOGRAD_KEYSET.bits & ~BACKEND_MASK
    return is_grad_enabled() and not off


@contextmanager
def pushed(layer: DynamicLayer) -> Iterator[None]:
    """Push a level on top of all others for a block, and switch off after it what is switched on in
    it.
    """
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
    """Return what the topmost level makes of a call; ``frame`` has what is switched on."""
    token = TOP.set(frame)
    try:
        return frame.layer.process(rules, args)
    finally:
        TOP.reset(token)


def call_without(keys: int, op: OperatorHandle, stack: list[Any]) -> None:
    """Call an operator with keys switched off."""
    state = LOCAL_STATE.get()
    token = LOCAL_STATE.set(replace(state, excluded=state.excluded | keys))
    try:
        op.call_boxed(stack)
    finally:
        LOCAL_STATE.reset(token)


class Lowered:
    """A block in which the level of a frame is not there, and those below it are."""

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
    """Return what a call returns at the level below."""
    local = LOCAL_STATE.set(frame.layer.state_below(frame, LOCAL_STATE.get()))
    top = TOP.set(frame.below)
    try:
        return frame.layer.send_to_next(rules, args)
    finally:
        TOP.reset(top)
        LOCAL_STATE.reset(local)
