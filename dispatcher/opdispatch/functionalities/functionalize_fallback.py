"""The key Functionalize: replaces calls of mutating operators by functional ones.

While a function is functionalized (``functionalization/``), every call arrives here. Arguments are
unwrapped to their values, the operator is called below, and its results are wrapped as functional
tensors.

- An operator that writes is replaced by its functional counterpart, which returns what would have
  been written: ``find_functional`` says which that is. Without one, it is called with copies.
- An operator that gives views needs a rule, a kernel for this key by ``make_view_kernel``.
- A kernel for CompositeImplicitAutograd is called here, with functional tensors: what it calls
  arrives here in turn.

As ``FunctionalizeFallbackKernel.cpp`` of PyTorch, and the kernels that ``torchgen`` writes for the
key. Outside functionalized functions, the call is redispatched with the key excluded.
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
"""``inverse(base, mutated, reapply_views, *args, **kwargs)``: a new base, in which what the view is
of is ``mutated``, by operators that do not write; ``args`` are those of the view's operator but for
its base. Of an operator that returns a list, the place in it comes before them. With
``reapply_views`` it may call operators that give views."""


def functionalize_call(op: OperatorHandle, keys: DispatchKeySet, stack: list[Any]) -> None:
    """Functionalize a call: the fallback of the key, see above.

    Raises NoKernelError for a view operator without a rule, and ArgumentError for an unsupported
    write.
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
    """Call the operator with values, and wrap its results as functional tensors."""
    stack[:] = map(level.value_of, stack)
    with level.below():
        op.call_boxed(stack)
    stack[:] = map(level.make, stack)


def _call_outside(op: OperatorHandle, schema: FunctionSchema, stack: list[Any]) -> None:
    """Run a call outside of any level.

    Functional tensors of ended levels stand for their values.
    """
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
    """Call the kernel for CompositeImplicitAutograd, if that is what serves the values."""
    if not op.has_kernel_for_dispatch_key(_K.CompositeImplicitAutograd):
        return False
    with level.below():
        keys = op.dispatch_keys([level.value_of(value) for value in stack])
    # Modes come before: the kernel that serves the call below them is decisive.
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
        """Return the step from a base to the result, or to the one in that place of a list."""
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
    """Make a kernel for Functionalize of an operator whose results are views of its first argument.

    ``is_view(x, *args, **kwargs)`` is asked whether they are, if that is not always so; ``x`` is a
    FunctionalTensor. ``strided``, a function of NumPy's arrays, does the same to an array that
    must not be read. Where views are removed, ``ns::name_copy`` is called, if it is there, or
    else what the operator gives is copied.
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
    """Return a function that makes the operator's results from a base, below the level."""
    if level.reapply_views:
        return lambda base: op(base, *args, **kwargs)
    name = OperatorName(f"{op.name.name}_copy", op.name.overload_name)
    copy = op.dispatcher.find_schema(name)
    if copy is None:
        return lambda base: copied(op(base, *args, **kwargs))
    return lambda base: copy(base, *args, **kwargs)


def make_identity_kernel(is_view: Callable[..., bool]) -> KernelFunction:
    """Make a kernel for Functionalize of an operator that returns its first argument or an
    unrelated result.
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
