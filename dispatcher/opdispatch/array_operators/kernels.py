"""Kernels for plain arrays and tensors out of functions for plain arrays.

Each is a Python function with the arguments of its operator's schema, written here as text and
compiled: what it does beside calling the library's own function is what a small call pays for.

    def add(x1, x2):
        if type(x1) is Tensor or type(x2) is Tensor:
            return wrap(add(plain(x1), plain(x2)))
        if (one := x1.dtype) is not x2.dtype or (
            one is not FLOAT32 and one is not FLOAT64 and one is not INT64
            and one.kind in DOUBTFUL_KINDS
        ):
            check_pair("add", one, x2.dtype)
        return function(x1, x2)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.exceptions import DTypePromotionError

from opdispatch.array_operators.dtypes import (
    DOUBTFUL_KINDS,
    KINDS_OF_SCALAR,
    check_complex,
    check_numbers,
    check_pair,
    check_scalar,
)
from opdispatch.array_operators.functions import ArrayFunction
from opdispatch.array_operators.meta_shapes import as_tuple, show
from opdispatch.errors import ArgumentError
from opdispatch.function_schema import NO_DEFAULT, Argument
from opdispatch.tensor import Tensor

Kernel = Callable[..., Any]

# The commonest dtypes are told by their identity, which takes less than to ask for their kinds.
_USUAL_DTYPES = {name: np.dtype(name.lower()) for name in ("FLOAT32", "FLOAT64", "INT64")}
_IS_UNUSUAL = " and ".join(f"one is not {name}" for name in _USUAL_DTYPES)


def make_kernel(
    function: ArrayFunction, call: Callable[..., Any], unusual: Callable[..., Any] | None = None
) -> Kernel:
    """The kernel of an operator, which has ``call`` do the work on plain arrays.

    Arrays of doubtful dtypes, and of 16-bit numbers where a pair is checked, go to ``unusual``: see
    ``half_precision``.
    """
    arguments = function.schema.arguments
    name = function.operator.partition(".")[0]
    lines = [f"def kernel({_parameters(arguments)}):"]
    if is_tensor := " or ".join(filter(None, map(_has_tensor, arguments))):
        unwrapped = _passed(arguments, _unwrapped)
        call_plain = f"kernel({unwrapped})"
        written = next((each.name for each in arguments if each.is_write), None)
        inner = (
            [f"return wrap({call_plain})"] if written is None else [call_plain, f"return {written}"]
        )
        lines += [f"    if {is_tensor}:", *(f"        {line}" for line in inner)]
        otherwise = f"return unusual({_passed(arguments, _plain)})" if unusual else ""
        lines += (f"    {line}" for line in _checks(function, name, otherwise))
        if any(each.name == "dtype" for each in arguments) and not function.has_device:  # of a sum
            lines += [
                '    if dtype is not None and x.dtype.kind == "c":',
                f"        check_complex({name!r}, x.dtype, dtype)",
            ]
    lines += [
        "    try:",
        f"        return function({_passed(arguments, _plain)})",
        "    except NoCommonType as error:",
        f"        raise without_common_type({name!r}, error) from None",
        "    except ValueError as error:",
        f"        raise with_shapes({name!r}, error, {_listed(arguments)}) from None",
    ]
    namespace: dict[str, Any] = {
        "Tensor": Tensor,
        **_USUAL_DTYPES,
        "DOUBTFUL_KINDS": DOUBTFUL_KINDS,
        "KINDS_OF_SCALAR": KINDS_OF_SCALAR,
        "check_pair": check_pair,
        "check_scalar": check_scalar,
        "check_numbers": check_numbers,
        "check_all": check_all,
        "check_complex": check_complex,
        "with_shapes": with_shapes,
        "NoCommonType": DTypePromotionError,
        "without_common_type": without_common_type,
        "wrap": wrap,
        "plain": plain,
        "function": call,
        "unusual": unusual,
        **{f"default_{each.name}": each.default for each in arguments if each.has_default},
    }
    exec(compile("\n".join(lines), f"<kernel of array::{function.operator}>", "exec"), namespace)
    kernel: Kernel = namespace["kernel"]
    kernel.__name__ = kernel.__qualname__ = function.operator
    return kernel


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


def _listed(arguments: Sequence[Argument]) -> str:
    values = "".join(f"{each.name}, " for each in arguments)
    wanted = "shape" if any(each.name == "shape" for each in arguments) else "None"
    return f"({values}), {wanted}"


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


def _checks(function: ArrayFunction, name: str, otherwise: str) -> list[str]:
    """Lines that refuse dtypes, and end with ``otherwise`` where those are doubtful."""
    last = [f"    {otherwise}"] if otherwise else []
    arguments = {each.name: str(each.type) for each in function.schema.arguments}
    promoted = [each for each in function.promoted if arguments[each].startswith("Tensor")]
    scalars = [each for each in function.promoted if arguments[each] == "Scalar"]
    if function.promoted and all(arguments[each] == "Tensor" for each in promoted):
        first, *others = promoted
        lines = [
            line
            for each in scalars
            for line in (
                f"if (type({each}) is not float or (one := {first}.dtype) is not FLOAT32 and "
                f"one is not FLOAT64) and {first}.dtype.kind not in KINDS_OF_SCALAR[type({each})]:",
                f"    doubtful = check_scalar({name!r}, {first}.dtype, {each})",
                *([f"    if doubtful: {otherwise}"] if otherwise else []),
            )
        ]
        doubts = "one.kind in DOUBTFUL_KINDS" + (" or one.itemsize == 2" if otherwise else "")
        for other in others:
            lines += [
                f"if (one := {first}.dtype) is not {other}.dtype or {_IS_UNUSUAL} and ({doubts}):",
                f"    check_pair({name!r}, one, {other}.dtype)",
                *last,
            ]
        if lines:
            return lines
    if [arguments[each] for each in function.promoted] == ["Tensor[]"]:
        arrays = function.promoted[0]
        return [
            f"one = {arrays}[0].dtype if {arrays} else None",
            f"for each in {arrays}:",
            "    if each.dtype is not one:",
            f"        check_all({name!r}, ({arrays},))",
            "        break",
        ]
    if any(arguments[each] != "Tensor" for each in promoted):
        return [f"check_all({name!r}, ({', '.join(promoted)},))"]
    single = [each for each, kind in arguments.items() if kind == "Tensor"]
    return [
        line
        for each in single
        for line in (
            f"one = {each}.dtype",
            f"if {_IS_UNUSUAL} and one.kind in DOUBTFUL_KINDS:",
            f"    check_numbers({name!r}, one)",
            *last,
        )
    ]


def check_all(name: str, values: Sequence[Any]) -> None:
    """Raises ArgumentError unless any two of the arrays, and of those in lists, have a common type.

    uint8 has one with uint64 and one with int8; the three of them have none.
    """
    dtypes: list[np.dtype[Any]] = []
    for value in values:
        for each in value if isinstance(value, list | tuple) else (value,):
            if each is not None and each.dtype not in dtypes:
                for dtype in dtypes:
                    check_pair(name, dtype, each.dtype)
                dtypes.append(each.dtype)


def without_common_type(name: str, error: DTypePromotionError) -> ArgumentError:
    """What to raise where NumPy promotes dtypes of ml_dtypes to none, such as float16 and bfloat16.

    Some of its functions do, so that `check_pair` does not refuse these.
    """
    return ArgumentError(
        f"array::{name} was given arrays of types without a common one: {error}",
        hint="convert one of them with astype",
        operator=name,
    )


def with_shapes(
    name: str, error: ValueError, values: Sequence[Any], wanted: int | Sequence[int] | None
) -> ValueError:
    """An array library's error, with the shapes that it is about if it does not say them.

    They are those of the arguments, and the one that was asked for.
    """
    shapes: list[tuple[int, ...]] = []
    for value in values:
        items = value if isinstance(value, list | tuple) else [value]
        shapes += [tuple(each.shape) for each in items if hasattr(each, "shape")]
    if wanted is not None:
        shapes.append(as_tuple(wanted))
    text = str(error)
    if type(error) is not ValueError or not shapes or all(_is_in(each, text) for each in shapes):
        return error
    return ValueError(f"array::{name} of {show(*shapes)}: {text}")


def _is_in(shape: tuple[int, ...], text: str) -> bool:
    """Whether a message has the shape, as NumPy writes shapes."""
    return str(shape).replace(" ", "") in text.replace(" ", "")
