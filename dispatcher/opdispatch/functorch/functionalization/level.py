"""One call of a functionalized function: a level of the transforms, with what it was given.

Calls arrive at the key Functionalize, with the keys before it that are for values switched off.
What is called below the level is called as it would be outside of it, so that gradients are
recorded of the calls that are left, by values.

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
"""How long NumPy looks for an element that two arrays share; then it is taken for none."""


class Level(DynamicLayer):
    """One call of a functionalized function."""

    name = "functionalize"

    def __init__(self, *, reapply_views: bool) -> None:
        super().__init__(next_level())
        self.reapply_views = reapply_views
        """Whether values may be views of values."""
        self.is_over = False
        """Whether the function has returned: its functional tensors are values since."""
        # What was not made here: the inputs, and what else was written to or had views taken of it.
        # By identity, which it keeps while it is here.
        self._adopted: dict[int, tuple[Any, FunctionalTensor]] = {}

    def end(self) -> None:
        """End the level: the function has returned."""
        super().end()
        self.is_over = True

    def process(self, rules: OperatorRules, args: Sequence[Any]) -> Any:
        """Call it with Functionalize switched on."""
        return self.call_with(_ON, _OFF, rules, args)

    def send_to_next(self, rules: OperatorRules, args: Sequence[Any]) -> Any:
        """Call an operator that Functionalize has let pass with values."""
        results = rules.signature.box_returns(rules.call(list(map(self.value_of, args))))
        return rules.signature.unbox_returns(list(map(self.make, results)))

    @contextmanager
    def below(self) -> Iterator[None]:
        """Enter a block for calls of values: below the level, where it is entered.

        Else as it is.
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

    # -- what goes in -----------------------------------------------------------------------------

    def adopt(self, value: Any) -> FunctionalTensor:
        """Return the functional tensor for a tensor or plain array, the same each time."""
        value = self._alive(value)
        if isinstance(value, FunctionalTensor) and value.level is self:
            return value
        _, tensor = self._adopted.get(id(value), (None, None))
        if tensor is None:
            tensor = FunctionalTensor.of(value, self)
            self._adopted[id(value)] = (value, tensor)
        return tensor

    def make(self, value: Any) -> Any:
        """Return a functional tensor of a call's result, even of a plain array.

        Other values as they are.

        Of a list, one of each in it.
        """
        if isinstance(value, list):
            return [self.make(each) for each in value]
        if not _has_elements(value):
            return value
        return FunctionalTensor.of(value if isinstance(value, Tensor) else Tensor(value), self)

    def functional_of(self, values: Any) -> Any:
        """Return ``values`` with the tensors in lists, tuples and dicts adopted."""
        return _mapped(values, lambda each: self.adopt(each) if isinstance(each, Tensor) else each)

    # -- what comes out ---------------------------------------------------------------------------

    def value_of(self, value: Any) -> Any:
        """Return the current value of a functional tensor, or of each in a list.

        Anything else as it is.
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

        Raises ArgumentError if another tensor that was given has some of its elements: that one
        would have had to change with it.
        """
        written = [(raw, tensor) for raw, tensor in self._adopted.values() if tensor.is_written]
        for raw, _ in written:
            for other, _ in self._adopted.values():
                if other is not raw and _share_elements(raw, other):
                    raise ArgumentError(
                        f"a tensor of shape {list(raw.shape)} was written to that shares elements "
                        f"with another one that the function was given, of shape "
                        f"{list(other.shape)}: functionalize cannot know that of its inputs",
                        hint="give it one of them, and take the view in the function",
                    )
        return [(raw, tensor.sync()) for raw, tensor in written]

    def _alive(self, value: Any) -> Any:
        """Return the value of a functional tensor whose level has ended."""
        while isinstance(value, FunctionalTensor) and value.level.is_over:
            value = value.sync()
        return value


def current_level() -> Level | None:
    """Return the functionalized function that the task is in.

    None if it is in none, or in a transform.
    """
    frame = TOP.get()
    return frame.layer if frame is not None and isinstance(frame.layer, Level) else None


def _has_elements(value: Any) -> bool:
    """Return whether it is a tensor or plain array, and none of a class that handles operators."""
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
