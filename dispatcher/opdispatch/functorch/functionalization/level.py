"""The transform level of one call of a functionalized function, and its inputs.

Calls arrive at the key Functionalize; the keys of higher priority, which apply to values, are
excluded until then. Below the level, the remaining out-of-place calls are dispatched as outside the
level, so autograd records those.

Mirrors ``functorch/FunctionalizeInterpreter.cpp``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from opdispatch.arrays import find_key_bits
from opdispatch.errors import ArgumentError
from opdispatch.functorch.dynamic_layer import (
    TOP,
    DynamicLayer,
    Frame,
    Lowered,
    bits_off_but_for,
    next_level,
)
from opdispatch.functorch.functionalization.functional_tensor import ABOVE, FunctionalTensor
from opdispatch.functorch.operator_rules import OperatorRules
from opdispatch.keys.dispatch_key import DispatchKey
from opdispatch.keys.dispatch_key_set import bits_of_key
from opdispatch.tensors.tensor import Tensor, handles_operators

if TYPE_CHECKING:
    pass

_ON = bits_of_key(DispatchKey.Functionalize)
_OFF = bits_off_but_for(_ON) | ABOVE.bits
_WORK: Any = 100_000
"""Bound on the work of ``np.shares_memory`` for one pair; beyond it, the pair counts as
disjoint."""


class Level(DynamicLayer):
    """One call of a functionalized function."""

    name = "functionalize"

    def __init__(self, *, reapply_views: bool) -> None:
        super().__init__(next_level())
        self.reapply_views = reapply_views
        """Whether values may be views of other values."""
        self.is_over = False
        """Whether the function has returned; its functional tensors are plain values from then
        on."""
        # Functional tensors of tensors made outside the level: the inputs, and captured tensors
        # that were written to or viewed. Keyed by id; the value keeps the tensor, and so its id.
        self._adopted: dict[int, tuple[Any, FunctionalTensor]] = {}

    def end(self) -> None:
        """End the level: the function has returned."""
        super().end()
        self.is_over = True

    def process(self, rules: OperatorRules, args: Sequence[Any]) -> Any:
        """Call the operator with the key Functionalize included."""
        return self.call_with(_ON, _OFF, rules, args)

    def send_to_next(self, rules: OperatorRules, args: Sequence[Any]) -> Any:
        """Call an operator below the level, with values in place of functional tensors."""
        results = rules.signature.box_returns(rules.call(list(map(self.value_of, args))))
        return rules.signature.unbox_returns(list(map(self.make, results)))

    @contextmanager
    def below(self) -> Iterator[None]:
        """Return a context manager that dispatches calls of values below the level.

        If the level is not on the stack, dispatch stays as it is.
        """
        frame, saved = TOP.get(), None
        while frame is not None:
            saved = frame.saved or saved
            if frame.layer is self:
                break
            frame = frame.below
        if frame is None:
            yield
            return
        with Lowered(Frame(self, frame.below, saved)):
            yield

    # -- inputs -----------------------------------------------------------------------------------

    def adopt(self, value: Any) -> FunctionalTensor:
        """Return the functional tensor for a tensor or plain array, the same object on every
        call."""
        value = self._alive(value)
        if isinstance(value, FunctionalTensor) and value.level is self:
            return value
        _, tensor = self._adopted.get(id(value), (None, None))
        if tensor is None:
            tensor = FunctionalTensor.of(value, self)
            self._adopted[id(value)] = (value, tensor)
        return tensor

    def make(self, value: Any) -> Any:
        """Wrap a call's result, a tensor or plain array, in a functional tensor.

        Lists are wrapped element by element; other values are returned unchanged.
        """
        if isinstance(value, list):
            return [self.make(each) for each in value]
        if not _has_elements(value):
            return value
        return FunctionalTensor.of(value if isinstance(value, Tensor) else Tensor(value), self)

    def functional_of(self, values: Any) -> Any:
        """Return ``values`` with the tensors in lists, tuples and dicts adopted."""
        return _mapped(values, lambda each: self.adopt(each) if isinstance(each, Tensor) else each)

    # -- outputs ----------------------------------------------------------------------------------

    def value_of(self, value: Any) -> Any:
        """Return the current value of a functional tensor, or of each element of a list.

        Anything else is returned unchanged.
        """
        if isinstance(value, list):
            return [self.value_of(each) for each in value]
        value = self._alive(value)
        if not (isinstance(value, FunctionalTensor) and value.level is self):
            _, adopted = self._adopted.get(id(value), (None, None))
            if adopted is None:
                return value
            value = adopted
        return value.sync()

    def values_of(self, values: Any) -> Any:
        """Return ``values`` with the functional tensors in lists, tuples and dicts replaced by
        their values.
        """
        return _mapped(
            values,
            lambda each: self.value_of(each) if isinstance(each, FunctionalTensor) else each,
        )

    def writes(self) -> list[tuple[Any, Any]]:
        """Return the inputs that were written to, with their new values.

        Raises ArgumentError if such an input shares memory with another input, which would have had
        to change too.
        """
        written = [(raw, tensor) for raw, tensor in self._adopted.values() if tensor.is_written]
        for raw, _ in written:
            for other, _ in self._adopted.values():
                if other is not raw and _share_elements(raw, other):
                    raise ArgumentError(
                        f"an input of shape {list(raw.shape)} that was written to shares elements "
                        f"with another input, of shape {list(other.shape)}: functionalize does "
                        "not track aliases among inputs",
                        hint="pass only one of them, and create the view in the function",
                    )
        return [(raw, tensor.sync()) for raw, tensor in written]

    def _alive(self, value: Any) -> Any:
        """Return the value of a functional tensor whose level has ended."""
        while isinstance(value, FunctionalTensor) and value.level.is_over:
            value = value.sync()
        return value


def current_level() -> Level | None:
    """Return the level of the functionalized function that the current task is in.

    Returns None outside such functions, and inside another transform.
    """
    frame = TOP.get()
    return frame.layer if frame is not None and isinstance(frame.layer, Level) else None


def _has_elements(value: Any) -> bool:
    """Return whether it is a tensor or plain array, but not of a class with
    ``__torch_dispatch__``."""
    if isinstance(value, Tensor):
        return True
    return find_key_bits(value) is not None and not handles_operators(type(value))


def _mapped(values: Any, change: Any) -> Any:
    if isinstance(values, tuple) and hasattr(values, "_fields"):
        return type(values)(*(_mapped(each, change) for each in values))
    if isinstance(values, list | tuple):
        return type(values)(_mapped(each, change) for each in values)
    if isinstance(values, dict):
        return type(values)((name, _mapped(each, change)) for name, each in values.items())
    return change(values)


def _share_elements(one: Any, other: Any) -> bool:
    first, second = (each.array if isinstance(each, Tensor) else each for each in (one, other))
    if type(first) is not np.ndarray or type(second) is not np.ndarray:
        return first is second
    try:
        return bool(np.shares_memory(first, second, max_work=_WORK))
    except np.exceptions.TooHardError:
        return False
