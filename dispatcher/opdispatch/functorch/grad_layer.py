"""The level of ``grad`` and its kin: calls are recorded between wrappers of the level.

Mirrors ``functorch/ADInterpreters.cpp``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from opdispatch.errors import TransformError
from opdispatch.functorch.batched_tensor import is_tensor
from opdispatch.functorch.dynamic_layer import (
    AUTOGRAD_BITS,
    DynamicLayer,
    bits_off_but_for,
    call_stack,
    map_tensors,
    state_outside,
)
from opdispatch.functorch.tensor_wrapper import WrappedArray, is_of, make_wrapper
from opdispatch.functorch.written import original_of_write
from opdispatch.keys.dispatch_key_set import AUTOGRAD_KEYSET, BACKEND_MASK
from opdispatch.local_state.grad_mode import is_grad_enabled, no_grad
from opdispatch.tensors.tensor import Tensor

if TYPE_CHECKING:
    from opdispatch.dispatch.operator_handle import OperatorHandle

_OFF = bits_off_but_for(AUTOGRAD_BITS)


class GradLayer(DynamicLayer):
    """Records what is done with its wrappers.

    If gradients were not recorded where the transform began, levels below record none either:
    ``no_grad`` around ``grad(f)(x)`` is about the result, and so is a kernel below Autograd that
    calls it. Inside ``f``, it is about all levels.
    """

    name = "grad"

    def __init__(self, level: int) -> None:
        super().__init__(level)
        off = state_outside().excluded & AUTOGRAD_KEYSET.bits & ~BACKEND_MASK
        self._recorded_before = is_grad_enabled() and not off

    def process(self, op: OperatorHandle, stack: list[Any]) -> None:
        """Make wrappers of what comes from outside; it is constant here."""
        stack[:] = map_tensors(self._own, stack)
        self.call_with(0, _OFF, op, stack)

    def _own(self, value: Any) -> Any:
        if type(value) is not Tensor or is_of(value, self):
            return value
        return make_wrapper(self, value, is_immutable=True)

    def send_to_next(self, op: OperatorHandle, stack: list[Any]) -> None:
        """Call it with what is below the wrappers, and wraps what it returns.

        Raises TransformError if it writes to what the function has from outside.
        """
        given = list(stack)
        schema = op.call_signature.schema
        for argument, value in zip(schema.arguments, given, strict=True):
            if argument.is_write and any(map(_is_immutable, _each(value))):
                raise TransformError(
                    f"{op.name} writes to its argument {argument.name!r}, which the function that "
                    f"{self.name} transforms has from outside",
                    hint="give it to the function as an argument, or write to a copy",
                    operator=str(op.name),
                )
        stack[:] = map_tensors(self._below, stack)
        below = list(stack)
        if self._recorded_before:
            call_stack(op, stack)
        else:
            with no_grad():
                call_stack(op, stack)
        is_view = any(
            argument.alias_info is not None and any(map(_is_immutable, _each(value)))
            for argument, value in zip(schema.arguments, given, strict=True)
        )
        for place, returned in enumerate(schema.returns):
            if returned.alias_info is not None and returned.alias_info.is_write:
                stack[place] = original_of_write(schema, place, stack[place], below, given)
            elif returned.type.dispatches:
                immutable = is_view and returned.alias_info is not None
                stack[place] = map_tensors(
                    lambda each, immutable=immutable: self._wrapped(each, immutable),  # type: ignore[misc]
                    [stack[place]],
                )[0]

    def _below(self, value: Any) -> Any:
        return value.array.value if is_of(value, self) else value

    def _wrapped(self, value: Any, is_immutable: bool) -> Any:
        if not is_tensor(value):
            return value
        return make_wrapper(self, value, is_immutable=is_immutable)


def _each(value: Any) -> list[Any]:
    return value if type(value) is list else [value]


def _is_immutable(value: Any) -> bool:
    array = getattr(value, "array", None)
    return type(array) is WrappedArray and array.is_immutable
