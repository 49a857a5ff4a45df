"""Compile kernels for arrays and tensors from functions of plain arrays.

Each kernel is a Python function with the parameters of its operator's schema, generated as source
and compiled: on small arrays, the Python around the library's function dominates the time.

    def add(x1, x2):
        has_tensors = False
        if type(x1) is Tensor: x1, has_tensors = x1.array, True
        if type(x2) is Tensor: x2, has_tensors = x2.array, True
        if (one := x1.dtype) is not x2.dtype or (
            one is not FLOAT32 and one is not FLOAT64 and one is not INT64
            and one.kind in DOUBTFUL_KINDS
        ):
            check_pair("add", one, x2.dtype)
        made = function(x1, x2)
        return Tensor(made) if has_tensors else made

The kernel of a view operator has an attribute ``of_array``, the same function for plain arrays
only, which does not modify its list arguments. ``adinplace_or_view.py`` calls it, and makes the
tensor itself to record its base.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.exceptions import DTypePromotionError

from opdispatch.boxing.generated_source import compile_function
from opdispatch.dispatch.operator_state import TENSOR_BITS
from opdispatch.errors import ArgumentError, OpdispatchError
from opdispatch.native.array.operators.functions import ArrayFunction, Kernel
from opdispatch.native.array.operators.meta_shapes import as_tuple, refusal, show
from opdispatch.native.array.operators.numpy_calls import CHECKS, NumpyCall
from opdispatch.native.array.operators.sizes import is_of_no_array
from opdispatch.native.array.operators.type_promotion import (
    DOUBTFUL_KINDS,
    KINDS_OF_SCALAR,
    check_complex,
    check_numbers,
    check_pair,
    check_scalar,
    find_out_of_range,
)
from opdispatch.schema.function_schema import NO_DEFAULT, Argument
from opdispatch.tensors.tensor import Tensor

# Compare the commonest dtypes by identity, which is faster than reading their kinds.
_USUAL = ("FLOAT32", "FLOAT64", "INT64", "BOOL")
_USUAL_DTYPES = {name: np.dtype(name.lower()) for name in _USUAL}
_IS_UNUSUAL = " and ".join(f"one is not {name}" for name in _USUAL_DTYPES)


# ``Tensor(made)``, inlined for the usual result, a NumPy array.
_TENSOR_OF_MADE = (
    "if not has_tensors: return made",
    "if isinstance(made, generic): made = asarray(made)",
    "if type(made) is not ndarray: return Tensor(made)",
    "tensor = new(Tensor)",
    "tensor.array = made",
    "tensor.key_bits = TENSOR_BITS",
    "tensor.autograd_meta = None",
    "tensor.requires_grad_flag = False",
    "return tensor",
)


def make_kernel(
    function: ArrayFunction,
    call: Callable[..., Any],
    unusual: Callable[..., Any] | None = None,
    short: NumpyCall | None = None,
) -> Kernel:
    """Return the kernel of an operator that calls ``call`` on plain arrays.

    Arrays of ``DOUBTFUL_KINDS``, and pairs with a 16-bit dtype, are passed to ``unusual`` instead:
    see ``half_precision``. ``short`` is an expression inlined for the arguments that it covers.
    """
    kernel = _compile(function, call, unusual, short, takes_tensors=True)
    first, [result, *_] = function.schema.arguments[0], function.schema.returns
    is_view = first.alias_info is not None and not first.is_write
    if is_view and str(result.type) in ("Tensor", "Tensor[]"):
        of_array = _compile(function, call, unusual, short, takes_tensors=False)
        kernel.of_array = of_array  # type: ignore[attr-defined]
    return kernel


def _compile(
    function: ArrayFunction,
    call: Callable[..., Any],
    unusual: Callable[..., Any] | None,
    short: NumpyCall | None,
    *,
    takes_tensors: bool,
) -> Kernel:
    arguments = function.schema.arguments
    returns_tensor = [str(each.type) for each in function.schema.returns] == ["Tensor"]
    name = function.operator.partition(".")[0]
    lines = [f"def kernel({_parameters(arguments)}):"]
    unwraps_here = False
    is_write = any(each.is_write for each in arguments)
    lists = [each.name for each in arguments if str(each.type) == "Tensor[]"]
    is_tensor = " or ".join(filter(None, map(_has_tensor, arguments)))
    if is_tensor and takes_tensors:
        call_plain = f"kernel({_passed(arguments, _unwrapped)})"
        unwraps_here = returns_tensor
        if unwraps_here:
            unwrap = ["has_tensors = False"]
            unwrap += [f"written = {each.name}" for each in arguments if each.is_write]
            for argument in arguments:
                unwrap += _unwrap_here(argument)
        else:
            unwrap = [f"if {is_tensor}: return wrap({call_plain})"]
        if lists:
            checks = _list_checks(function, name, lists[0], [] if unwraps_here else unwrap)
            checks = [*(unwrap if unwraps_here else []), *checks]
        else:
            otherwise = f"return unusual({_passed(arguments, _plain)})" if unusual else ""
            if otherwise and unwraps_here:
                made = "written" if is_write else "Tensor(made) if has_tensors else made"
                otherwise = f"made = unusual({_passed(arguments, _plain)}); return {made}"
            checks = [*unwrap, *_checks(function, name, otherwise)]
        lines += (f"    {line}" for line in checks)
        if any(each.name == "dtype" for each in arguments) and not function.has_device:  # of a sum
            lines += [
                '    if dtype is not None and x.dtype.kind == "c":',
                f"        check_complex({name!r}, x.dtype, dtype)",
            ]
    functions: dict[str, Any] = {}
    if short and sum(argument.type.dispatches for argument in arguments) < 2 and not lists:
        short, functions = short.for_its_own()
    called = [
        *(_shortened(arguments, short) if short else ()),
        f"return function({_passed(arguments, _plain)})",
    ]
    if unwraps_here:
        called = [line.replace("return ", "made = ") for line in called]
        if short:
            called[-1:] = ["else:", f"    {called[-1]}"]
    lines += [
        "    try:",
        *(f"        {line}" for line in called),
        "    except NoCommonType as error:",
        f"        raise without_common_type({name!r}, error) from None",
        "    except TypeError as error:",
        f"        raise with_types({name!r}, error, {_listed(arguments)}) from None",
        "    except (ValueError, OverflowError, IndexError, RuntimeError) as error:",
        "        if isinstance(error, OpdispatchError):",
        "            raise",
        f"        raise with_shapes({name!r}, error, {_listed(arguments)}, "
        f"{_numbers(arguments)}) from None",
    ]
    if unwraps_here:
        lines += ["    return written"] if is_write else (f"    {line}" for line in _TENSOR_OF_MADE)
    namespace: dict[str, Any] = {
        "Tensor": Tensor,
        "np": np,
        **CHECKS,
        **functions,
        "ndarray": np.ndarray,
        "generic": np.generic,
        "asarray": np.asarray,
        "new": object.__new__,
        "TENSOR_BITS": TENSOR_BITS,
        **_USUAL_DTYPES,
        "DOUBTFUL_KINDS": DOUBTFUL_KINDS,
        "KINDS_OF_SCALAR": KINDS_OF_SCALAR,
        "check_pair": check_pair,
        "check_scalar": check_scalar,
        "check_numbers": check_numbers,
        "check_all": check_all,
        "check_each": check_each,
        "check_complex": check_complex,
        "with_shapes": with_shapes,
        "OpdispatchError": OpdispatchError,
        "NoCommonType": DTypePromotionError,
        "without_common_type": without_common_type,
        "with_types": with_types,
        "wrap": wrap,
        "plain": plain,
        "function": call,
        "unusual": unusual,
        **{f"default_{each.name}": each.default for each in arguments if each.has_default},
    }
    title = f"kernel of array::{function.operator}"
    kernel: Kernel = compile_function(title, "\n".join(lines), namespace, "kernel")
    kernel.__name__ = kernel.__qualname__ = function.operator
    return kernel


def plain(value: Any) -> Any:
    """Return the array of a tensor; a list of tensors as a list of arrays."""
    if type(value) is Tensor:
        return value.array
    if type(value) is list or type(value) is tuple:
        return [plain(each) for each in value]
    return value


def wrap(result: Any) -> Any:
    """Wrap arrays, one or several, as tensors."""
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


def _numbers(arguments: Sequence[Argument]) -> str:
    """Return the source of a dict of the axis and count arguments by name, except the shape.

    Starts and stops of slices are excluded: NumPy accepts any integer there.
    """
    kinds = {each.name: str(each.type) for each in arguments}
    names = [each for each, kind in kinds.items() if kind.startswith("int") and kind != "int?[]"]
    return "{" + ", ".join(f"{each!r}: {each}" for each in names if each != "shape") + "}"


def _has_tensor(argument: Argument) -> str:
    if not argument.type.dispatches:
        return ""
    name = argument.name
    if str(argument.type).endswith("[]"):
        return f"Tensor in map(type, {name})"
    return f"type({name}) is Tensor"


def _unwrap_here(argument: Argument) -> list[str]:
    """Return lines that replace the tensors of an argument by their arrays."""
    name = argument.name
    if not argument.type.dispatches:
        return []
    if str(argument.type) in ("Tensor", "Tensor?"):
        return [f"if type({name}) is Tensor: {name}, has_tensors = {name}.array, True"]
    return [  # not a comprehension, which is another function call
        "given = []",
        f"for each in {name}:",
        "    if type(each) is Tensor: each, has_tensors = each.array, True",
        "    given.append(each)",
        f"{name} = given",
    ]


def _unwrapped(argument: Argument) -> str:
    name = argument.name
    if str(argument.type) in ("Tensor", "Tensor?"):
        return f"{name}.array if type({name}) is Tensor else {name}"
    return f"plain({name})" if argument.type.dispatches else name


def _plain(argument: Argument) -> str:
    """Return the source that passes the argument to an array library: lists of ints as tuples."""
    name = argument.name
    if str(argument.type).startswith("int["):
        return f"tuple({name}) if type({name}) is list else {name}"
    return name


def _shortened(arguments: Sequence[Argument], short: NumpyCall) -> Iterator[str]:
    """Yield lines that return the value of ``short`` if its condition holds."""
    arrays = [each.name for each in arguments if str(each.type) == "Tensor"]
    conditions = [*(f"type({each}) is ndarray" for each in arrays[:1]), short.condition]
    values = {each.name: _plain(each) for each in arguments}
    yield f"if {' and '.join(filter(None, conditions))}:"
    yield f"    return {short.expression.format_map(values)}"


def _checks(function: ArrayFunction, name: str, otherwise: str) -> list[str]:
    """Return lines that check dtypes, and run ``otherwise`` for doubtful ones."""
    kinds = {each.name: str(each.type) for each in function.schema.arguments}
    promoted = [each for each in function.promoted if kinds[each].startswith("Tensor")]
    lines = []
    if all(kinds[each] == "Tensor" for each in promoted):
        lines = _promotion_checks(function, name, promoted, otherwise)
    elif promoted:
        lines = [f"check_all({name!r}, ({', '.join(promoted)},))"]
    checked = promoted if lines else []
    for each, kind in kinds.items():
        if each in checked or kind not in ("Tensor", "Tensor?"):
            continue
        check = [
            f"one = {each}.dtype",
            f"if {_IS_UNUSUAL} and one.kind in DOUBTFUL_KINDS:",
            f"    check_numbers({name!r}, one)",
            *([f"    {otherwise}"] if otherwise else []),
        ]
        if kind == "Tensor?":
            check = [f"if {each} is not None:", *(f"    {line}" for line in check)]
        lines += check
    return lines


def _promotion_checks(
    function: ArrayFunction, name: str, promoted: Sequence[str], otherwise: str
) -> list[str]:
    """Return lines that check the promotion of tensors, and of scalars with the first tensor."""
    if not promoted:
        return []
    kinds = {each.name: str(each.type) for each in function.schema.arguments}
    first, *others = promoted
    lines = []
    for scalar in (each for each in function.promoted if kinds[each] == "Scalar"):
        lines += [
            f"if (type({scalar}) is not float or (one := {first}.dtype) is not FLOAT32 and "
            f"one is not FLOAT64) and {first}.dtype.kind not in KINDS_OF_SCALAR[type({scalar})]:",
            f"    doubtful = check_scalar({name!r}, {first}.dtype, {scalar})",
            *([f"    if doubtful: {otherwise}"] if otherwise else []),
        ]
    doubts = "one.kind in DOUBTFUL_KINDS" + (" or one.itemsize == 2" if otherwise else "")
    for other in others:
        lines += [
            f"if (one := {first}.dtype) is not {other}.dtype or {_IS_UNUSUAL} and ({doubts}):",
            f"    check_pair({name!r}, one, {other}.dtype)",
            *([f"    {otherwise}"] if otherwise else []),
        ]
    return lines


def _list_checks(
    function: ArrayFunction, name: str, arrays: str, unwrap: Sequence[str]
) -> list[str]:
    """Return lines that check the dtypes of a list of arrays, and unwrap tensors in it.

    They set ``are_alike`` to whether all are instances of ``ndarray`` itself, of one usual dtype.
    """
    check = "check_all" if arrays in function.promoted else "check_each"
    return [
        f"one = {arrays}[0].dtype if {arrays} else None",
        f"are_alike = not ({_IS_UNUSUAL})",
        f"for each in {arrays}:",
        "    if not are_alike or type(each) is not ndarray or each.dtype is not one:",
        *(f"        {line}" for line in unwrap),
        f"        {check}({name!r}, {arrays})",
        "        are_alike = False",
        "        break",
    ]


def check_all(name: str, arrays: Iterable[Any]) -> None:
    """Raise ArgumentError unless each two of the arrays have a promoted dtype; None is skipped.

    Checking neighbours does not suffice: uint8 promotes with uint64 and with int8, which do not
    promote together.
    """
    dtypes: list[np.dtype[Any]] = []
    for each in arrays:
        if each is not None and each.dtype not in dtypes:
            for dtype in dtypes or [each.dtype]:
                check_pair(name, dtype, each.dtype)
            dtypes.append(each.dtype)


def check_each(name: str, arrays: Iterable[Any]) -> None:
    """Raise ArgumentError unless all of the arrays have bool or numeric dtypes."""
    for each in arrays:
        if each.dtype.kind in DOUBTFUL_KINDS:
            check_numbers(name, each.dtype)


def without_common_type(name: str, error: DTypePromotionError) -> ArgumentError:
    """Return the error for dtypes that NumPy fails to promote, such as float16 and bfloat16.

    ``check_pair`` accepts these, because some of NumPy's functions do.
    """
    return ArgumentError(
        f"array::{name} was given arrays whose dtypes have no common type: {error}",
        hint="convert one of them with astype",
        operator=name,
    )


def with_types(
    name: str, error: TypeError, values: Sequence[Any], wanted: int | Sequence[int] | None
) -> TypeError:
    """Return the error to raise for an array library's TypeError, naming the dtypes passed."""
    if isinstance(error, OpdispatchError):
        return error
    types: list[str] = []
    for value in values:
        items = value if isinstance(value, list | tuple) else [value]
        types += [str(each.dtype) for each in items if hasattr(each, "dtype")]
        if type(value) in KINDS_OF_SCALAR:
            types.append(repr(value))
    return ArgumentError(
        f"array::{name} is not defined for {' and '.join(types)}: {error}", operator=name
    )


def with_shapes(
    name: str,
    error: Exception,
    values: Sequence[Any],
    wanted: int | Sequence[int] | None,
    numbers: Mapping[str, Any],
) -> Exception:
    """Return the error to raise for an array library's, with shapes if its message lacks them.

    The shapes are those of the arguments, and the requested one. The error is an ArgumentError,
    with the axes and counts passed, for sizes and axes that no array can have, ScalarRangeError for
    a scalar out of the dtype's range, and else a ValueError or ``error`` itself.
    """
    shapes: list[tuple[int, ...]] = []
    for value in values:
        items = value if isinstance(value, list | tuple) else [value]
        shapes += [tuple(each.shape) for each in items if _is_array(each)]
    if wanted is not None:
        shapes.append(as_tuple(wanted))
    text = str(error)
    if is_of_no_array(error, numbers.values()):
        given = " and ".join(f"{key} {each}" for key, each in numbers.items() if each is not None)
        places = (f"of {show(*shapes)}" if shapes else "", f"with {given}" if given else "")
        return refusal(name, f"{' '.join(filter(None, places))}: {text}")
    if type(error) is OverflowError:
        given_types = [each for each in values if isinstance(each, np.dtype)]
        for dtype in given_types or [each.dtype for each in values if _is_array(each)]:
            if (found := find_out_of_range(name, values, dtype)) is not None:
                return found
    if type(error) is not ValueError or not shapes or all(_is_in(each, text) for each in shapes):
        return error
    return ValueError(f"array::{name} of {show(*shapes)}: {text}")


def _is_array(value: Any) -> bool:
    return hasattr(value, "shape") and not isinstance(value, np.dtype)


def _is_in(shape: tuple[int, ...], text: str) -> bool:
    """Return whether ``text`` contains the shape as NumPy formats it."""
    return str(shape).replace(" ", "") in text.replace(" ", "")
