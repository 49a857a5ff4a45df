"""A BackendSelect kernel for operators without tensor arguments, such as factory functions.

Mirrors ``_register_backend_select_dispatcher`` of ``torch/_library/custom_ops.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from opdispatch.arrays import split_device
from opdispatch.dispatch.operator_handle import OperatorHandle
from opdispatch.errors import NoKernelError, SchemaError
from opdispatch.functionalities.derivative import has_tensors as type_has_tensors
from opdispatch.keys.dispatch_key import key_of_device_type
from opdispatch.keys.dispatch_key_set import DispatchKeySet
from opdispatch.schema.function_schema import FunctionSchema
from opdispatch.schema.types import DEVICE


def has_tensors(schema: FunctionSchema) -> bool:
    """Return whether an argument may be a tensor, or a list of them."""
    return any(type_has_tensors(argument.type) for argument in schema.arguments)


def backend_select(
    schema: FunctionSchema,
    find_op: Callable[[], OperatorHandle],
    device_types: Collection[str | None],
) -> Callable[..., Any]:
    """Return a kernel that redispatches to the device given by the argument ``device``.

    ``find_op`` returns the operator at the time of a call. ``device_types`` are the types that have
    a kernel then; the kernel raises NoKernelError for others. Raises SchemaError if the schema has
    no argument ``device``.
    """
    name = str(schema.name)
    place = next(
        (n for n, a in enumerate(schema.arguments) if a.name == "device" and a.type == DEVICE), None
    )
    if place is None:
        raise SchemaError(
            f"{schema} takes no tensors, so a kernel for a device type requires an argument that "
            "selects the device",
            hint="add `device: Device`",
            operator=name,
        )

    def select(_keys: DispatchKeySet, *args: Any, **kwargs: Any) -> Any:
        device = args[place] if place < len(args) else kwargs["device"]
        kind = split_device(device)[0]
        if kind not in device_types:
            known = ", ".join(sorted(filter(None, device_types)))
            raise NoKernelError(
                f"{name} has no kernel for the device type {kind!r}; it has one for {known}",
                hint="register one with register_kernel",
                operator=name,
                key=str(key_of_device_type(kind)),
            )
        keys = DispatchKeySet.of(key_of_device_type(kind))
        return find_op().redispatch(keys, *args, **kwargs)

    return select
