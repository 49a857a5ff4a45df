"""Adapters between boxed and unboxed kernels.

Mirrors ``ATen/core/boxing/impl/boxing.h``. The generated code of an operator always passes every
argument; ``elide_defaults`` adapts that to functions that do not take all of them.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from opdispatch.keys.dispatch_key_set import DispatchKeySet
from opdispatch.schema.function_schema import NO_DEFAULT

if TYPE_CHECKING:
    from opdispatch.boxing.kernel_operator import KernelOperator
    from opdispatch.boxing.signature import Signature

BoxedFunction = Callable[[Any, DispatchKeySet, list[Any]], None]
"""``function(op, keys, stack)``, which changes the stack in place.

It may declare any ``KernelOperator``, such as an ``OperatorHandle``.
"""
UnboxedFunction = Callable[..., Any]


def unboxed_from_boxed(
    boxed: BoxedFunction, op: KernelOperator, keys: DispatchKeySet
) -> Callable[..., Any]:
    """Return ``boxed`` as a function of ``op``'s arguments."""
    signature = op.call_signature
    keyword_only = signature.keyword_only_names
    num_returns = len(signature.schema.returns)

    if not keyword_only:

        def unboxed_positional(*args: Any) -> Any:
            stack = list(args)
            boxed(op, keys, stack)
            return stack[0] if len(stack) == num_returns == 1 else signature.unbox_returns(stack)

        return unboxed_positional

    def unboxed(*args: Any, **kwargs: Any) -> Any:
        stack = [*args, *(kwargs[name] for name in keyword_only)]
        boxed(op, keys, stack)
        return signature.unbox_returns(stack)

    return unboxed


def boxed_from_unboxed(
    function: Callable[..., Any], signature: Signature
) -> Callable[[list[Any]], None]:
    """Return ``function`` as a function of a stack that replaces its arguments with the returns."""
    box_returns = signature.box_returns
    if not signature.keyword_only_names:

        def boxed_positional(stack: list[Any]) -> None:
            stack[:] = box_returns(function(*stack))

        return boxed_positional

    def boxed(stack: list[Any]) -> None:
        args, kwargs = signature.split(stack)
        stack[:] = box_returns(function(*args, **kwargs))

    return boxed


def elide_defaults(
    function: Callable[..., Any], signature: Signature, *, skip: int = 0
) -> Callable[..., Any]:
    """Return ``function`` in a form that can be called with every argument of ``signature``.

    PyTorch omits arguments equal to their defaults when it calls a Python kernel, so kernels need
    not declare them. Here, a kernel that declares every argument gets every argument, and the
    schema's defaults take precedence over the function's. For any other kernel, or one without a
    signature, arguments equal to their defaults are omitted. The first ``skip`` parameters are
    passed by the dispatcher.
    """
    if _takes_all(function, signature, skip):
        return function
    positional, keyword_defaults = signature.split(signature.converted_defaults())

    def with_defaults_left_out(*args: Any, **kwargs: Any) -> Any:
        own, given = args[:skip], args[skip:]
        kept, named = _leave_out(positional, keyword_defaults, given, kwargs)
        return function(*own, *kept, **named)

    return with_defaults_left_out


def split_without_defaults(
    signature: Signature, stack: Sequence[Any]
) -> tuple[Sequence[Any], dict[str, Any]]:
    """Split a stack like ``signature.split``, omitting what PyTorch omits.

    For functions of any operator.
    """
    args, kwargs = signature.split(stack)
    if not signature.has_defaults:
        return args, kwargs
    return _leave_out(*signature.split(signature.converted_defaults()), args, kwargs)


def _leave_out(
    defaults: Sequence[Any],
    keyword_defaults: Mapping[str, Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
) -> tuple[Sequence[Any], dict[str, Any]]:
    """Return the arguments without trailing positionals and keywords equal to their defaults."""
    given = leave_out_defaults(defaults, args)
    kept = {k: v for k, v in kwargs.items() if not _is_default(v, keyword_defaults[k])}
    return given, kept


def leave_out_defaults(defaults: Sequence[Any], values: Sequence[Any]) -> list[Any]:
    """Return the values without trailing ones that equal the defaults at their positions."""
    given = list(values)
    while given and _is_default(given[-1], defaults[len(given) - 1]):
        given.pop()
    return given


def _is_default(value: Any, default: Any) -> bool:
    # Equal values of different types are different: 1 is not a default for True, nor 1.0 for 1.
    return default is not NO_DEFAULT and type(value) is type(default) and bool(value == default)


def _takes_all(function: Callable[..., Any], signature: Signature, skip: int) -> bool:
    try:
        parameters = inspect.signature(function)
    except (TypeError, ValueError):  # some built-in functions have no signature
        return False
    count = skip + signature.num_positional
    try:
        parameters.bind(*[None] * count, **dict.fromkeys(signature.keyword_only_names))
    except TypeError:
        return False
    return True
