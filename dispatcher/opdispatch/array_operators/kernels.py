"""Kernels for plain arrays and tensors out of functions for plain arrays.

Each is a Python function with the arguments of its operator's schema, written here as text and
compiled: what it does beside calling the library's own function is what a small call pays for.

    def add(x1, x2):
        if type(x1) is Tensor or type(x2) is Tensor:
            return wrap(add(plain(x1), plain(x2)))
        if x1.dtype is not x2.dtype or x1.dtype.kind in DOUBTFUL_KINDS:
            check_pair("add", x1.dtype, x2.dtype)
        return function(x1, x2)
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from opdispatch.array_operators.dtypes import (
    DOUBTFUL_KINDS,
    check_numbers,
    check_pair,
    check_scalar,
)
from opdispatch.array_operators.functions import ArrayFunction
from opdispatch.errors import DeviceError
from opdispatch.function_schema import NO_DEFAULT, Argument
from opdispatch.tensor import Tensor

Kernel = Callable[..., Any]


def make_kernel(function: ArrayFunction, call: Callable[..., Any]) -> Kernel:
    """The kernel of an operator, which has ``call`` do the work on plain arrays."""
    arguments = function.schema.arguments
    name = function.operator.partition(".")[0]
    lines = [f"def kernel({_parameters(arguments)}):"]
    if is_tensor := " or ".join(filter(None, map(_has_tensor, arguments))):
        unwrapped = _passed(arguments, _unwrapped)
        lines += [f"    if {is_tensor}:", f"        return wrap(kernel({unwrapped}))"]
        lines += (f"    {line}" for line in _checks(function, name))
    lines.append(f"    return function({_passed(arguments, _plain)})")
    namespace: dict[str, Any] = {
        "Tensor": Tensor,
        "DOUBTFUL_KINDS": DOUBTFUL_KINDS,
        "check_pair": check_pair,
        "check_scalar": check_scalar,
        "check_numbers": check_numbers,
        "wrap": wrap,
        "plain": plain,
        "function": call,
        **{f"default_{each.name}": each.default for each in arguments if each.has_default},
    }
    exec(compile("\n".join(lines), f"<kernel of array::{function.operator}>", "exec"), namespace)
    kernel: Kernel = namespace["kernel"]
    kernel.__name__ = kernel.__qualname__ = function.operator
    return kernel


def find_function(namespace: Any, function: ArrayFunction) -> Kernel:
    """The function of a namespace of the standard that an operator stands for."""
    found: Kernel = functools.reduce(getattr, function.path, namespace)
    adapt = _ADAPTED.get(function.operator)
    return found if adapt is None else adapt(found)


# Where a schema cannot say what the standard's function takes or returns.
_ADAPTED: dict[str, Callable[[Kernel], Kernel]] = {
    "broadcast_arrays": lambda found: lambda arrays: list(found(*arrays)),
    "diff": lambda found: (
        lambda x, **options: found(
            x, **{name: value for name, value in options.items() if value is not None}
        )
    ),
    "meshgrid": lambda found: lambda arrays, indexing: list(found(*arrays, indexing=indexing)),
    "nonzero": lambda found: lambda x: list(found(x)),
    "unstack": lambda found: lambda x, axis: list(found(x, axis=axis)),
}


def plain(value: Any) -> Any:
    """The array of a tensor; a list of tensors as a list of arrays."""
    if type(value) is Tensor:
        return value.array
    if type(value) is list or type(value) is tuple:
        return [plain(each) for each in value]
    return value


def wrap(result: Any) -> Any:
    """Tensors out of arrays, one or several."""
    if isinstance(result, tuple | list):
        wrapped = [Tensor(each) for each in result]
        return wrapped if isinstance(result, list) else tuple(wrapped)
    return Tensor(result)


def check_devices(name: str, devices: Sequence[str]) -> None:
    """Raises DeviceError unless the arrays of a call are on one device."""
    if len(found := sorted(set(devices))) > 1:
        raise DeviceError(
            f"array::{name} expected all tensors to be on the same device, but found at least two "
            f"devices, {found[0]} and {found[1]}",
            hint="move one of them with Tensor.to",
        )


def _parameters(arguments: Sequence[Argument]) -> str:
    parts, is_keyword = [], False
    for argument in arguments:
        if argument.kwarg_only and not is_keyword:
            is_keyword = True
            parts.append("*")
        default = "" if argument.default is NO_DEFAULT else f"=default_{argument.name}"
        parts.append(f"{argument.name}{default}")
    return ", ".join(parts)


def _passed(arguments: Sequence[Argument], spelled: Callable[[Argument], str]) -> str:
    return ", ".join(
        f"{argument.name}={spelled(argument)}" if argument.kwarg_only else spelled(argument)
        for argument in arguments
    )


def _has_tensor(argument: Argument) -> str:
    if not argument.type.dispatches:
        return ""
    name = argument.name
    if str(argument.type).endswith("[]"):
        return f"Tensor in map(type, {name})"
    return f"type({name}) is Tensor"


def _unwrapped(argument: Argument) -> str:
    return f"plain({argument.name})" if argument.type.dispatches else argument.name


def _plain(argument: Argument) -> str:
    """As the array libraries want it: extents and axes in tuples."""
    name = argument.name
    if str(argument.type).startswith("int["):
        return f"tuple({name}) if type({name}) is list else {name}"
    return name


def _checks(function: ArrayFunction, name: str) -> list[str]:
    single = [each.name for each in function.schema.arguments if str(each.type) == "Tensor"]
    scalars = [each.name for each in function.schema.arguments if str(each.type) == "Scalar"]
    if function.promotes and len(single) == 2:
        one, other = single
        return [
            f"if {one}.dtype is not {other}.dtype or {one}.dtype.kind in DOUBTFUL_KINDS:",
            f"    check_pair({name!r}, {one}.dtype, {other}.dtype)",
        ]
    if function.promotes and scalars:
        return [f"check_scalar({name!r}, {single[0]}.dtype, {scalars[0]})"]
    return [
        line
        for each in single
        for line in (
            f"if {each}.dtype.kind in DOUBTFUL_KINDS:",
            f"    check_numbers({name!r}, {each}.dtype)",
        )
    ]
