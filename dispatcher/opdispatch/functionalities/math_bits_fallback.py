"""The keys Conjugate and Negative: lazily conjugated and negated tensors.

Operators without a rule receive resolved copies; elements written to these are conjugated or
negated and copied back to the stored elements, as in PyTorch's ``MathBitsFallback.h``. Operators
that handle the bits themselves fall through. Views of such a tensor keep its bits; see
``make_view_kernel``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from opdispatch.arrays import find_backend
from opdispatch.arrays.math_bits import MathBitsArray, stored, toggled
from opdispatch.boxing.kernel_function import KernelFunction
from opdispatch.keys.dispatch_key import DispatchKey
from opdispatch.keys.dispatch_key_set import DispatchKeySet
from opdispatch.tensors.tensor import Tensor

if TYPE_CHECKING:
    from opdispatch.dispatch.operator_handle import OperatorHandle

KEYS = (DispatchKey.Conjugate, DispatchKey.Negative)
_BELOW_BOTH = DispatchKeySet.full_after(DispatchKey.Conjugate)


def _materializing(key: DispatchKey) -> KernelFunction:
    below = DispatchKeySet.full_after(key)

    def materialize(op: OperatorHandle, keys: DispatchKeySet, stack: list[Any]) -> None:
        """Redispatch below with resolved arguments, and copy writes back."""
        written: list[tuple[Any, Any]] = []
        for place, argument in enumerate(op.call_signature.schema.arguments):
            pairs = written if argument.is_write else []
            stack[place] = _materialized(stack[place], pairs)
        op.redispatch_boxed(keys & below, stack)
        for given, made in written:
            _write_back(given, made)
        if written:
            stack[:] = [_as_given(value, written) for value in stack]

    return KernelFunction.from_boxed(materialize)


def _materialized(value: Any, pairs: list[tuple[Any, Any]]) -> Any:
    """Return a tensor with its bits resolved; record it if it is a copy."""
    if isinstance(value, list):
        return [_materialized(each, pairs) for each in value]
    array = value.array if isinstance(value, Tensor) else value
    if type(array) is not MathBitsArray:
        return value
    made = array.materialized()
    if isinstance(value, Tensor):
        made = Tensor(made)
    pairs.append((value, made))
    return made


def _write_back(given: Any, made: Any) -> None:
    view = given.array if isinstance(given, Tensor) else given
    elements = made.array if isinstance(made, Tensor) else made
    backend = find_backend(type(view.base))
    assert backend is not None, "a view of a conjugate is of a dense array"
    # Conjugation and negation are their own inverses.
    backend.assign(view.base, view.over(elements).materialized())


def _as_given(value: Any, written: list[tuple[Any, Any]]) -> Any:
    if isinstance(value, list):
        return [_as_given(each, written) for each in value]
    return next((given for given, made in written if made is value), value)


def make_view_kernel(*, conj_negates: bool = False, drops_conj: bool = False) -> KernelFunction:
    """Make a kernel for both keys of an operator that returns views of its first argument.

    Results are views of the stored elements with the same bits. ``drops_conj`` is for views that
    conjugation does not change, such as real parts; ``conj_negates`` for those that it negates.
    """

    def view_with_bits(op: OperatorHandle, keys: DispatchKeySet, stack: list[Any]) -> None:
        first = stack[0]
        array = first.array if isinstance(first, Tensor) else first
        base = stored(array)
        stack[0] = Tensor(base) if isinstance(first, Tensor) else base
        op.redispatch_boxed(keys & _BELOW_BOTH, stack)
        if type(array) is not MathBitsArray:
            return
        is_conj, is_neg = array.is_conj, array.is_neg
        if conj_negates and is_conj:
            is_neg = not is_neg
        if conj_negates or drops_conj:
            is_conj = False
        stack[:] = [_changed(v, lambda a: toggled(a, conj=is_conj, neg=is_neg)) for v in stack]

    return KernelFunction.from_boxed(view_with_bits)


def _changed(value: Any, change: Callable[[Any], Any]) -> Any:
    """Apply ``change`` to the arrays of a tensor, a plain array or a list of them."""
    if isinstance(value, list):
        return [_changed(each, change) for each in value]
    return Tensor(change(value.array)) if isinstance(value, Tensor) else change(value)


FALLBACKS = {key: _materializing(key) for key in KEYS}
