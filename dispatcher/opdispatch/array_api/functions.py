"""The functions of the namespace, generated from schemas; each calls one operator's overloads.

def sum(x, /, *, axis=None, dtype=None, keepdims=False):
    return operator(x, axis=axis, dtype=dtype, keepdims=keepdims)
"""

from __future__ import annotations

from collections import defaultdict, namedtuple
from collections.abc import Callable, Sequence
from typing import Any

from opdispatch.array_api.operators import OPERATORS
from opdispatch.boxing.generated_source import compile_function
from opdispatch.dispatch.call_source import CallSource
from opdispatch.dispatch.compiled_call import COMPILE
from opdispatch.dispatch.operator_handle import OperatorHandle
from opdispatch.local_state.tracing_state import note_reading
from opdispatch.schema.function_schema import NO_DEFAULT, Argument, FunctionSchema
from opdispatch.schema.types import SCALAR, TENSOR, ListType, OptionalType
from opdispatch.tensors.tensor import Tensor, new_tensor

Function = Callable[..., Any]

SCALARS = frozenset({bool, int, float, complex})
"""The Python scalar types accepted in place of an array."""

# Functions with positional-only parameters other than arrays in the standard, and their number.
_POSITIONAL_ONLY = {
    "arange": 1,
    "astype": 2,
    "eye": 2,
    "fft_fftfreq": 1,
    "fft_rfftfreq": 1,
    "linalg_matrix_power": 2,
    "linspace": 2,
    "moveaxis": 3,
    "repeat": 2,
    "tile": 2,
}
# Greater than any array's extents, so that diagonal is empty.
_FARTHEST = 2**62
# Functions often called with 0-d arrays in place of numbers.
_NUMBERS = ("arange", "full", "full_like", "linspace")
_LIST = ListType(TENSOR)
_SCALAR = (SCALAR, OptionalType(SCALAR))
_BINARY = ("Tensor", "Scalar", "ScalarFirst")


def number(value: Any) -> Any:
    """Convert a 0-d array or tensor to a Python number; return any other value as is."""
    array = value.array if isinstance(value, Tensor) else value
    if getattr(array, "shape", None) != ():
        return value
    note_reading(value, "a number out of a tensor")
    return array.item()


def diagonal(k: Any) -> Any:
    """Clamp a diagonal's offset to 64 bits; out-of-range offsets stay outside every array."""
    return max(-_FARTHEST, min(k, _FARTHEST)) if type(k) is int else k


def make_functions(schemas: Sequence[FunctionSchema], module: str) -> dict[str, Function]:
    """Return functions for the operators, keyed by operator name; ``module`` is their module."""
    overloads = defaultdict(list)
    for schema in schemas:
        overloads[schema.name.name.rpartition("::")[2]].append(schema)
    return {name: _make_function(name, each, module) for name, each in overloads.items()}


def _make_function(name: str, overloads: Sequence[FunctionSchema], module: str) -> Function:
    first = overloads[0]
    packet = getattr(OPERATORS, name)
    names = tuple(schema.name.overload_name for schema in overloads)
    scope: dict[str, Any] = {
        "SCALARS": SCALARS,
        "number": number,
        "diagonal": diagonal,
        "Tensor": Tensor,
        "new_tensor": new_tensor,
        **{f"default_{each.name}": each.default for each in first.arguments},
    }
    if names == _BINARY:
        scope |= {f"operator_{each}": getattr(packet, each) for each in names}
        lines = [
            "    if type(x2) in SCALARS:",
            "        return operator_Scalar(x1, x2)",
            "    if type(x1) in SCALARS:",
            "        return operator_ScalarFirst(x1, x2)",
            "    return operator_Tensor(x1, x2)",
        ]
        parameters = "x1, x2, /"
    else:
        scope["operator"] = packet if len(overloads) > 1 else getattr(packet, names[0] or "default")
        spelled = _as_number if name in _NUMBERS else _as_it_is
        call = f"operator({_passed(first.arguments, spelled)})"
        if not any(each.type.dispatches for each in first.arguments):
            call = f"_made if isinstance(_made := {call}, Tensor) else new_tensor(_made)"
        elif len(first.returns) > 1:
            scope["Result"] = _result_type(name, first)
            call = f"Result(*{call})"
        elif first.returns[0].type == _LIST:
            call = f"tuple({call})"
        lines = [f"    return {call}"]
        parameters = _parameters(name, first.arguments)
    handle = scope.get("operator_Tensor") or scope["operator"]
    if COMPILE and isinstance(handle, OperatorHandle) and _can_be_direct(name, first):
        lines = _with_direct_call(handle, scope, parameters, lines)
    text = "\n".join([f"def {name}({parameters}):", *lines])
    function: Function = compile_function(f"array_api.{name}", text, scope, name)
    function.__name__ = function.__qualname__ = name.removeprefix("linalg_").removeprefix("fft_")
    function.__module__ = module
    function.__doc__ = _documentation(name, overloads)
    return function


def _can_be_direct(name: str, schema: FunctionSchema) -> bool:
    """Return whether the function passes its arguments on unchanged and returns tensors."""
    returns = [each.type for each in schema.returns]
    takes_tensors = any(each.type.dispatches for each in schema.arguments)
    as_they_are = all(_as_it_is(each) == each.name for each in schema.arguments)
    return returns in ([TENSOR], [_LIST]) and takes_tensors and as_they_are and name not in _NUMBERS


def _with_direct_call(
    handle: OperatorHandle, scope: dict[str, Any], parameters: str, lines: Sequence[str]
) -> list[str]:
    """Return source lines that call the kernel for arrays or tensors directly, not by the handle.

    For other arguments, the function falls back on ``lines``.
    """
    schema = handle.schema
    source = CallSource(schema)
    arguments = _passed(schema.arguments, _as_it_is)
    text = "\n".join([f"def otherwise({parameters}):", *lines])
    otherwise = compile_function("array_api", text, dict(scope), "otherwise")
    scope |= source.globals | {"_op": handle, "_otherwise": otherwise}
    otherwise_line = f"return _otherwise({arguments})"
    if "operator_Scalar" in scope:
        of_scalar = f"operator_Scalar({arguments}) if type(x2) in SCALARS"
        otherwise_line = otherwise_line.replace("return", f"return {of_scalar} else")
    is_list = schema.returns[0].type == _LIST
    return [
        f"    {line}" for line in source.direct(otherwise_line, converts=True, as_tuple=is_list)
    ]


def _result_type(name: str, schema: FunctionSchema) -> type:
    named = f"{name.removeprefix('linalg_')}_result"
    result = namedtuple(named, [each.name for each in schema.returns])  # type: ignore[misc]
    globals()[named] = result  # pickle looks the class up here
    return result


def _documentation(name: str, overloads: Sequence[FunctionSchema]) -> str:
    extension, _, rest = name.partition("_")
    path = f"{extension}.{rest}" if extension in ("linalg", "fft") else name
    listed = "\n".join(f"    {schema}" for schema in overloads)
    return (
        f"``{path}`` of the array API standard.\n\n{listed}\n\n"
        "https://data-apis.org/array-api/2025.12/API_specification/generated/"
        f"array_api.{path}.html"
    )


def _parameters(name: str, arguments: Sequence[Argument]) -> str:
    tensors = sum(each.type.dispatches and not each.has_default for each in arguments)
    positional_only = _POSITIONAL_ONLY.get(name, tensors)
    parts, is_keyword = [], False
    for place, argument in enumerate(arguments):
        if argument.kwarg_only and not is_keyword:
            is_keyword = True
            parts.append("*")
        default = "" if argument.default is NO_DEFAULT else f"=default_{argument.name}"
        parts.append(f"{argument.name}{default}")
        if place + 1 == positional_only:
            parts.append("/")
    return ", ".join(parts)


def _passed(arguments: Sequence[Argument], spelled: Callable[[Argument], str]) -> str:
    return ", ".join(f"{a.name}={spelled(a)}" if a.kwarg_only else spelled(a) for a in arguments)


def _as_it_is(argument: Argument) -> str:
    return "diagonal(k)" if argument.name == "k" else argument.name


def _as_number(argument: Argument) -> str:
    return f"number({argument.name})" if argument.type in _SCALAR else argument.name
