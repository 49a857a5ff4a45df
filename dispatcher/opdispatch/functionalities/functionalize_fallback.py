"""The key Functionalize: replaces operators that write to their arguments by functional variants.

While a function runs under ``functionalize``, every call reaches this key. The fallback unwraps the
arguments, calls the operator below the key, and wraps the results in functional tensors.

- An operator that writes is replaced by its functional variant, which returns the new values: see
  ``find_functional``. Without one, it is called with copies of what it writes to.
- An operator that returns views needs a kernel for this key, made by ``make_view_kernel``.
- A kernel for CompositeImplicitAutograd is called with the functional tensors, so that the
  operators that it calls reach this key.

Follows PyTorch's ``FunctionalizeFallbackKernel.cpp``, and the kernels that ``torchgen`` generates
for the key. Outside ``functionalize``, the call is redispatched with the key excluded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from opdispatch.boxing.kernel_function import KernelFunction
from opdispatch.errors import ArgumentError
from opdispatch.functionalities.functional_counterpart import call_without_writes, copied
from opdispatch.functorch.functionalization import (
    IDENTITY,
    FunctionalTensor,
    Level,
    ViewMeta,
    current_level,
)
from opdispatch.keys.dispatch_key import DispatchKey
from opdispatch.keys.dispatch_key_set import DispatchKeySet, get_runtime_dispatch_key_set
from opdispatch.local_state.local_dispatch_key_set import ExcludeDispatchKeyGuard
from opdispatch.schema.function_schema import FunctionSchema, OperatorName

if TYPE_CHECKING:
    from opdispatch.dispatch.operator_handle import OperatorHandle

_K = DispatchKey
Inverse = Callable[..., Any]
"""``inverse(base, mutated, reapply_views, *args, **kwargs)``: returns a new base in which the
viewed part is replaced by ``mutated``. ``args`` and ``kwargs`` are the arguments of the view
operator after the base; if it returns a list of views, the index of the view comes before them. It
must not write, and may call view operators only if ``reapply_views`` is true."""


def functionalize_call(op: OperatorHandle, keys: DispatchKeySet, stack: list[Any]) -> None:
    """Run a call without writes: the boxed fallback for Functionalize.

    Raises NoKernelError for a view operator without a kernel for this key, and ArgumentError for a
    write that is not supported.
    """
    level = current_level()
    schema = op.call_signature.schema
    if level is None:
        _call_outside(op, schema, stack)
    elif _is_composite(op, level, stack):
        return
    elif schema.is_mutable:
        call_without_writes(op, level, stack)
    elif any(returned.alias_info is not None for returned in schema.returns):
        raise op.no_kernel_error(
            "Functionalize", f"{op.name} has alias annotations, and {_NO_RULE}: {schema}"
        )
    else:
        call_below(op, level, stack)


_COMPOSITE_KEYS = get_runtime_dispatch_key_set(_K.CompositeImplicitAutograd)
_NO_RULE = "no rule for its functionalization (a kernel for this key by make_view_kernel)"


def call_below(op: OperatorHandle, level: Level, stack: list[Any]) -> None:
    """Call the operator below the level, and wrap its results in functional tensors."""
    stack[:] = map(level.value_of, stack)
    with level.below():
        op.call_boxed(stack)
    stack[:] = map(level.make, stack)


def _call_outside(op: OperatorHandle, schema: FunctionSchema, stack: list[Any]) -> None:
    """Run a call outside any level, with the values of functional tensors of ended levels."""
    for argument, value in zip(schema.arguments, stack, strict=True):
        if argument.is_write and any(isinstance(v, FunctionalTensor) for v in _listed(value)):
            raise ArgumentError(
                f"{op.name} writes to its argument {argument.name!r}, a functional tensor that has "
                "outlived the function that was functionalized",
                hint="return it from the function",
                operator=str(op.name),
                argument=argument.name,
            )
    has_functional = any(isinstance(v, FunctionalTensor) for each in stack for v in _listed(each))
    if not has_functional and any(
        a.alias_info is not None for a in (*schema.arguments, *schema.returns)
    ):
        raise op.no_kernel_error(
            "Functionalize",
            f"{op.name} has alias annotations, and no function is functionalized in this process; "
            f"one of another process calls nothing here that writes or gives views: {schema}",
        )
    stack[:] = map(_ended_value, stack)
    with ExcludeDispatchKeyGuard(_K.Functionalize):
        op.call_boxed(stack)


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _ended_value(value: Any) -> Any:
    if isinstance(value, list):
        return [_ended_value(each) for each in value]
    while isinstance(value, FunctionalTensor):
        value = value.sync()
    return value


def _is_composite(op: OperatorHandle, level: Level, stack: list[Any]) -> bool:
    """Call the CompositeImplicitAutograd kernel if it serves the values; return whether it does."""
    if not op.has_kernel_for_dispatch_key(_K.CompositeImplicitAutograd):
        return False
    with level.below():
        keys = op.dispatch_keys([level.value_of(value) for value in stack])
    # Keys above, such as those of modes, do not matter: look up the kernel below them.
    found = op.lookup(keys & _COMPOSITE_KEYS)
    if found.reason != "math kernel":
        return False
    found.kernel.call_boxed(op, keys, stack)
    return True


# -- views -----------------------------------------------------------------------------------------


class _View(NamedTuple):
    """Arguments of ``make_view_kernel``."""

    inverse: Inverse
    strided: Callable[..., Any] | None

    def meta(
        self,
        level: Level,
        make: Callable[[Any], Any],
        args: Sequence[Any],
        kwargs: dict[str, Any],
        place: int | None = None,
    ) -> ViewMeta:
        """Return the ViewMeta from a base to the result, or to that at ``place`` of a list."""
        inverse, strided = self.inverse, self.strided

        def forward(base: Any) -> Any:
            return make(base) if place is None else make(base)[place]

        def reverse(base: Any, mutated: Any) -> Any:
            return inverse(base, mutated, level.reapply_views, *args, **kwargs)

        def of_strided(array: Any) -> Any:
            assert strided is not None
            return strided(array, *args, **kwargs)

        return ViewMeta(forward, reverse, None if strided is None else of_strided)


def make_view_kernel(
    inverse: Inverse,
    *,
    is_view: Callable[..., bool] | None = None,
    strided: Callable[..., Any] | None = None,
) -> KernelFunction:
    """Return a kernel for Functionalize of an operator that returns views of its first argument.

    Args:
        inverse: Writes a new value of the view into a base; see ``Inverse``.
        is_view: ``is_view(x, *args, **kwargs)`` returns whether the results are views of the
            FunctionalTensor ``x``. By default they always are.
        strided: Makes the same view of a NumPy array whose elements must not be read.

    Without ``reapply_views``, the kernel calls ``ns::name_copy`` if it is registered, and otherwise
    copies the operator's results.
    """
    view = _View(inverse, strided)

    def functionalize_view(op: OperatorHandle, keys: DispatchKeySet, stack: list[Any]) -> None:
        level = current_level()
        if level is None:
            _call_outside(op, op.call_signature.schema, stack)
            return
        base = level.adopt(stack[0])
        positional, kwargs = op.call_signature.split(stack)
        args = positional[1:]
        make = _maker(op, level, args, kwargs)
        if is_view is not None and not is_view(base, *args, **kwargs):
            value = base.sync()
            with level.below():
                stack[:] = [level.make(make(value))]
            return
        with level.below():
            result = make(base.value)
        if isinstance(result, list):
            metas = [
                view.meta(level, make, (place, *args), kwargs, place)
                for place in range(len(result))
            ]
            stack[:] = [[base.view(*pair) for pair in zip(result, metas, strict=True)]]
        else:
            stack[:] = [base.view(result, view.meta(level, make, args, kwargs))]

    return KernelFunction.from_boxed(functionalize_view)


def _maker(
    op: OperatorHandle, level: Level, args: Sequence[Any], kwargs: dict[str, Any]
) -> Callable[[Any], Any]:
    """Return a function from a base to the operator's results; it runs below the level."""
    if level.reapply_views:
        return lambda base: op(base, *args, **kwargs)
    name = OperatorName(f"{op.name.name}_copy", op.name.overload_name)
    copy = op.dispatcher.find_schema(name)
    if copy is None:
        return lambda base: copied(op(base, *args, **kwargs))
    return lambda base: copy(base, *args, **kwargs)


def make_identity_kernel(is_view: Callable[..., bool]) -> KernelFunction:
    """Return a kernel for Functionalize of an operator that may return its first argument itself.

    ``is_view(x, *args, **kwargs)`` returns whether it does; otherwise the result is a new tensor.
    """

    def functionalize_identity(op: OperatorHandle, keys: DispatchKeySet, stack: list[Any]) -> None:
        level = current_level()
        if level is None:
            _call_outside(op, op.call_signature.schema, stack)
            return
        base = level.adopt(stack[0])
        positional, kwargs = op.call_signature.split(stack)
        if is_view(base, *positional[1:], **kwargs):
            stack[:] = [base.view(base.value, IDENTITY)]
        else:
            call_below(op, level, stack)

    return KernelFunction.from_boxed(functionalize_identity)


FALLBACKS = {_K.Functionalize: KernelFunction.from_boxed(functionalize_call)}
