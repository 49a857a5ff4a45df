"""Results of an operator, as text, as JSON, or as arrays for a file."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from opdispatch.arrays import Layout, find_backend, find_layout, on_host
from opdispatch.schema.function_schema import FunctionSchema
from opdispatch.tensors.tensor import Tensor

_NOT_FINITE = {math.inf: "Infinity", -math.inf: "-Infinity"}


def list_returns(result: Any, schema: FunctionSchema | None) -> list[tuple[str, Any]]:
    """Return the returns of a call by name, in order; unnamed ones are out0, out1, ..."""
    if schema is not None and len(schema.returns) == 1:
        values = [result]
    elif isinstance(result, tuple):
        values = list(result)
    else:
        values = [] if result is None else [result]
    names = [f"out{place}" for place in range(len(values))]
    if schema is not None and len(schema.returns) == len(values):
        names = [
            returned.name or name for returned, name in zip(schema.returns, names, strict=True)
        ]
    return list(zip(names, values, strict=True))


def list_arrays(returns: list[tuple[str, Any]]) -> dict[str, np.ndarray[Any, Any]]:
    """Return the tensors among the returns by name.

    Those in a list or a dict have their index or key after the name. One with another layout than
    strided is split into its parts and facts.
    """
    return {name: array for label, value in returns for name, array in _arrays_of(label, value)}


def describe_returns(returns: list[tuple[str, Any]], *, tensors: bool = True) -> list[str]:
    """Describe the returns as text; a tensor by its dtype, shape and abbreviated elements.

    With ``tensors`` false, only returns without tensors.
    """
    labels = [f"{name}: " if len(returns) > 1 else "" for name, _ in returns]
    return [
        line
        for label, (name, value) in zip(labels, returns, strict=True)
        if tensors or not list(_arrays_of(name, value))
        for line in _describe(value, label)
    ]


def value_to_json(value: Any) -> Any:
    """Convert the value to JSON.

    A tensor is an object with dtype, shape and data (nested lists); with another layout than
    strided it has the layout, the shape and its parts. A complex number is an object; inside a
    tensor it is a pair. Numbers that JSON lacks are the strings "NaN", "Infinity" and "-Infinity".
    """
    if (array := _as_array(value)) is not None:
        return {
            "dtype": array.dtype.name,
            "shape": list(array.shape),
            "data": _elements_to_json(array.tolist()),
        }
    if (found := _parts_of(value)) is not None:
        layout, shape, parts, facts = found
        named = {name: value_to_json(part) for name, part in parts.items()}
        return {"layout": layout.name, "shape": shape, **named, **facts}
    match value:
        case list() | tuple():
            return [value_to_json(item) for item in value]
        case dict():
            return {str(key): value_to_json(item) for key, item in value.items()}
        case complex():
            real, imaginary = _elements_to_json(value)
            return {"real": real, "imaginary": imaginary}
        case np.dtype():
            return value.name
        case bool() | int() | float() | str() | None:
            return _elements_to_json(value)
    return str(value)


def _elements_to_json(element: Any) -> Any:
    match element:
        case list():
            return [_elements_to_json(item) for item in element]
        case complex():
            return [_elements_to_json(element.real), _elements_to_json(element.imag)]
        case float() if not math.isfinite(element):
            return _NOT_FINITE.get(element, "NaN")
        case float() | int() | str() | None:
            return element
    return float(element)  # an element of a type of ml_dtypes


def _describe(value: Any, label: str) -> Iterator[str]:
    if (array := _as_array(value)) is not None:
        yield f"{label}{array.dtype.name} {list(array.shape)}"
        yield from np.array2string(array, separator=", ").splitlines()
    elif (found := _parts_of(value)) is not None:
        layout, shape, parts, facts = found
        yield f"{label}{layout.name} {shape}"
        for name, part in parts.items():
            yield from _describe(part, f"{name}: ")
        yield from (f"{name}: {fact}" for name, fact in facts.items())
    elif any(_as_array(item) is not None for _, item in _items_of(value)):
        for key, item in _items_of(value):
            yield from _describe(item, f"{label.removesuffix(': ')}[{key!r}]: ")
    else:
        yield f"{label}{value.name if isinstance(value, np.dtype) else value}"


def _arrays_of(label: str, value: Any) -> Iterator[tuple[str, np.ndarray[Any, Any]]]:
    if (array := _as_array(value)) is not None:
        yield label, array
    elif (found := _parts_of(value)) is not None:
        layout, shape, parts, facts = found
        # the parts do not determine it
        size = {"shape": shape} if "shape" in layout.fact_names else {}
        rest = {name: np.asarray(fact) for name, fact in {**facts, **size}.items()}
        yield from ((f"{label}_{name}", part) for name, part in {**parts, **rest}.items())
    for key, item in _items_of(value):
        yield from _arrays_of(f"{label}_{key}", item)


def _items_of(value: Any) -> list[tuple[Any, Any]]:
    """Return the items of a dict or a list with their keys or indices; [] for anything else."""
    match value:
        case list() | tuple():
            return list(enumerate(value))
        case dict():
            return list(value.items())
    return []


def _parts_of(
    value: Any,
) -> tuple[Layout, list[int | None], dict[str, np.ndarray[Any, Any]], dict[str, Any]] | None:
    """Return the layout, the shape, and by name the parts and facts; None for a dense array."""
    array = value.array if isinstance(value, Tensor) else value
    layout = find_layout(type(array))
    if layout is None:
        return None
    array = on_host(array)
    facts = layout.facts(array)
    parts = dict(zip(layout.part_names, layout.parts(array), strict=True))
    others = {name: getattr(facts, name) for name in layout.fact_names if name != "shape"}
    return layout, list(array.shape), parts, others


def _as_array(value: Any) -> np.ndarray[Any, Any] | None:
    if isinstance(value, Tensor):
        value = value.array
    if isinstance(value, np.generic):
        return None
    backend = find_backend(type(value))  # CuPy's, if the reply contains one and CuPy is installed
    return backend.to_host(value) if backend is not None else None
