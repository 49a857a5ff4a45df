"""The level of ``grad`` and ``vjp``: record the calls of its wrappers for the backward pass.

Mirrors ``functorch/ADInterpreters.cpp``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from opdispatch.errors import TransformError
from opdispatch.functorch.aliased_return import original_of_write
from opdispatch.functorch.batched_tensor import is_tensor, tensor_over
from opdispatch.functorch.dynamic_layer import (
    AUTOGRAD_BITS,
    DynamicLayer,
    bits_off_but_for,
    is_recorded_outside,
)
from opdispatch.functorch.operator_rules import OperatorRules
from opdispatch.functorch.tensor_wrapper import WrappedArray, is_of, make_wrapper
from opdispatch.local_state.grad_mode import no_grad
from opdispatch.tensors.tensor import Tensor

_OFF = bits_off_but_for(AUTOGRAD_BITS)


class GradLayer(DynamicLayer):
    """A level that records the operations on its wrappers.

    If grad mode was off where the transform was called, the levels below do not record either:
    ``no_grad`` around ``grad(f)(x)``, like a kernel below Autograd that calls it, only detaches the
    result. ``no_grad`` inside ``f`` applies to all levels.
    """

    name = "grad"

    def __init__(self, level: int) -> None:
        super().__init__(level)
        self._recorded_before = is_recorded_outside()

    def process(self, rules: OperatorRules, args: Sequence[Any]) -> Any:
        """Wrap tensors of other levels, which are constants at this one, and call the operator."""
        return self.call_with(0, _OFF, rules, [*map(self._own, args)])

    def _own(self, value: Any) -> Any:
        if type(value) is list:
            return [*map(self._own, value)]
        if type(value) is not Tensor or is_of(value, self):
            return value
        return make_wrapper(self, value, is_immutable=True)

    def send_to_next(self, rules: OperatorRules, args: Sequence[Any]) -> Any:
        """Call the operator with the unwrapped arguments, and wrap its results.

        Raises TransformError if it writes to a tensor that the function captured.
        """
        if rules.signature.written:
            self._check_writes(rules, args)
        below = [*map(self._below, args)]
        if self._recorded_before:
            result = rules.call(below)
        else:
            with no_grad():
                result = rules.call(below)
        if type(result) is Tensor and rules.makes_one and not rules.gives_views:
            return tensor_over(WrappedArray(self, result, False))
        schema = rules.schema
        is_view = any(
            argument.alias_info is not None and any(map(_is_immutable, _each(value)))
            for argument, value in zip(schema.arguments, args, strict=True)
        )
        results = rules.signature.box_returns(result)
        for place, returned in enumerate(schema.returns):
            if returned.alias_info is not None and returned.alias_info.is_write:
                results[place] = original_of_write(schema, place, results[place], below, args)
            elif returned.type.dispatches:
                immutable = is_view and returned.alias_info is not None
                results[place] = self._wrapped(results[place], immutable)
        return rules.signature.unbox_returns(results)

    def _check_writes(self, rules: OperatorRules, args: Sequence[Any]) -> None:
        for argument, value in zip(rules.schema.arguments, args, strict=True):
            if argument.is_write and any(map(_is_immutable, _each(value))):
                raise TransformError(
                    f"{rules.op.name} writes to its argument {argument.name!r}, which the function "
                    f"transformed by {self.name} captures from outside",
                    hint="pass it to the function as an argument, or write to a copy",
                    operator=str(rules.op.name),
                )

    def _below(self, value: Any) -> Any:
        if type(value) is list:
            return [*map(self._below, value)]
        return value.array.value if is_of(value, self) else value

    def _wrapped(self, value: Any, is_immutable: bool) -> Any:
        if type(value) is list:
            return [self._wrapped(each, is_immutable) for each in value]
        if not is_tensor(value):
            return value
        return make_wrapper(self, value, is_immutable=is_immutable)


def _each(value: Any) -> list[Any]:
    return value if type(value) is list else [value]


def _is_immutable(value: Any) -> bool:
    array = getattr(value, "array", None)
    return type(array) is WrappedArray and array.is_immutable
