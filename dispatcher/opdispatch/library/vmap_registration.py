"""``register_vmap``: the batching rule of a custom operator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, overload

from opdispatch.dispatch.registration import RegistrationHandle
from opdispatch.errors import KernelTypeError, RegistrationError, TransformError
from opdispatch.functionalities.batched_fallback import make_batching_kernel
from opdispatch.functorch.batching_rule import BatchedCall
from opdispatch.library.library import Library
from opdispatch.library.registration_target import OperatorLike, target_of

F = TypeVar("F", bound=Callable[..., Any])


@overload
def register_vmap(
    op: OperatorLike, func: None = None, /, *, lib: Library | None = None
) -> Callable[[F], F]: ...
@overload
def register_vmap(
    op: OperatorLike, func: Callable[..., Any], /, *, lib: Library | None = None
) -> RegistrationHandle: ...
def register_vmap(
    op: OperatorLike,
    func: Callable[..., Any] | None = None,
    /,
    *,
    lib: Library | None = None,
) -> Any:
    """Register the batching rule of an operator: its name, a handle or a CustomOpDef.

    ``func(info, in_dims, *args, **kwargs)`` is called when a tensor is batched. ``info`` has the
    ``batch_size`` and the ``randomness``; ``in_dims`` has the batch dimension of each positional
    argument: 0, or None if it is not a batched tensor; for a list of tensors, it is a list. The
    function returns a pair of the batched result and its batch dimension, or of two tuples if the
    operator has several results. Its own operator calls are not batched. Without ``func`` it
    returns a decorator. The registration is undone with ``lib``; without one, it is permanent.
    Raises OperatorNotFoundError, KernelTypeError for anything that is not callable, and
    RegistrationError if a keyword-only argument is a tensor. As ``torch.library.register_vmap``.
    """
    if func is None:

        def decorate(rule: F) -> F:
            register_vmap(op, rule, lib=lib)
            return rule

        return decorate
    return _register(op, func, lib)


def _register(
    op: OperatorLike, func: Callable[..., Any], lib: Library | None
) -> RegistrationHandle:
    if not callable(func):
        raise KernelTypeError(f"a batching rule must be callable, and {func!r} is not")
    name, library = target_of(op, lib)
    handle = library.dispatcher.get_schema(name)
    schema = handle.schema
    if named := [a.name for a in schema.arguments if a.kwarg_only and a.type.dispatches]:
        raise RegistrationError(
            f"a batching rule cannot be registered for {schema.name}: its keyword-only argument "
            f"{named[0]!r} is a tensor",
            hint="register a kernel for FuncTorchBatchedDecomposition",
            operator=str(schema.name),
        )

    def rule(call: BatchedCall) -> tuple[Any, Any]:
        args, kwargs = call.rules.signature.split(call.args)
        in_dims = tuple(call.dims[: len(args)])
        result = func(call.info, in_dims, *args, **kwargs)
        if not isinstance(result, tuple | list) or len(result) != 2:
            raise TransformError(
                f"the batching rule of {call.op.name} returned {type(result).__name__}; expected "
                "a pair of the result and the dimension of the batch in it",
                operator=str(call.op.name),
            )
        return result[0], result[1]

    return library.impl(handle, make_batching_kernel(rule), "FuncTorchBatched")
