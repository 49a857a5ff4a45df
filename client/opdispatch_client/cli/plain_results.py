"""Plain results of operators, formatted as by ``results``, without NumPy. Pure functions.

None stands for a result that is not plain, which is left to ``results``.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from typing import Any

from opdispatch_wire.v1 import execution_pb2, values_pb2

_CODES = {
    "bool": "?",
    **{f"int{8 * size}": code for size, code in zip((1, 2, 4, 8), "bhiq", strict=True)},
    **{f"uint{8 * size}": code for size, code in zip((1, 2, 4, 8), "BHIQ", strict=True)},
    "float32": "f",
    "float64": "d",
}
# NumPy's defaults: larger arrays are abbreviated, and longer rows wrapped.
_MOST_PRINTED = 1000
_LONGEST_ROW = 75
_PRECISION = 8
_SINGLE_DIGITS = range(1, 10)
_SCALARS = frozenset({"boolean", "integer", "floating", "text"})


def plain_value(reply: execution_pb2.CallReply) -> values_pb2.Value | None:
    """Return the single result of a call without other effects, if it is in the message."""
    if reply.HasField("error") or reply.mutations or reply.generators or len(reply.returns) != 1:
        return None
    value = reply.returns[0]
    kind = value.WhichOneof("kind")
    return value if kind in _SCALARS or (kind == "tensor" and _is_plain(value.tensor)) else None


def describe_plain(value: values_pb2.Value) -> list[str] | None:
    """Return the lines that describe a result, a tensor as NumPy prints it."""
    kind = value.WhichOneof("kind")
    if kind != "tensor":
        return [str(getattr(value, kind))]
    tensor = value.tensor
    elements = _elements_of(tensor)
    if len(elements) > _MOST_PRINTED:
        return None
    texts = _texts_of(elements, tensor.dtype, bool(tensor.shape))
    if texts is None:
        return None
    lines = _nested(texts, list(tensor.shape), 1).splitlines()
    if any(len(line) > _LONGEST_ROW for line in lines):
        return None
    return [f"{tensor.dtype} {list(tensor.shape)}", *lines]


def plain_to_json(value: values_pb2.Value) -> Any:
    """Return a result as ``results.value_to_json`` does."""
    kind = value.WhichOneof("kind")
    if kind != "tensor":
        found = getattr(value, kind)
        return None if kind == "floating" and not math.isfinite(found) else found
    elements = _elements_of(value.tensor)
    if not all(map(math.isfinite, elements)):
        return None
    shape = list(value.tensor.shape)
    return {"dtype": value.tensor.dtype, "shape": shape, "data": _lists(elements, shape)}


def _is_plain(tensor: values_pb2.Tensor) -> bool:
    code = _CODES.get(tensor.dtype)
    if code is None or tensor.device not in ("", "cpu"):
        return False
    if tensor.dispatch_keys or tensor.requires_grad or tensor.HasField("memory"):
        return False
    if tensor.HasField("chunked") or tensor.HasField("device_memory"):
        return False
    size = 1 if code == "?" else array(code).itemsize
    return 0 < len(tensor.data) == size * math.prod(tensor.shape)


def _elements_of(tensor: values_pb2.Tensor) -> list[Any]:
    if tensor.dtype == "bool":
        return [byte != 0 for byte in tensor.data]
    return array(_CODES[tensor.dtype], tensor.data).tolist()


def _lists(elements: list[Any], shape: Sequence[int]) -> Any:
    """Return the elements in nested lists; for a tensor without dimensions, the single element."""
    for size in reversed(shape[1:]):
        elements = [elements[start : start + size] for start in range(0, len(elements), size)]
    return elements if shape else elements[0]


def _nested(texts: list[str], shape: list[int], indent: int) -> str:
    if not shape:
        return texts[0]
    if len(shape) == 1:
        return f"[{', '.join(texts)}]"
    each = len(texts) // shape[0]
    parts = [
        _nested(texts[start : start + each], shape[1:], indent + 1)
        for start in range(0, len(texts), each)
    ]
    separator = "," + "\n" * (len(shape) - 1) + " " * indent
    return f"[{separator.join(parts)}]"


def _texts_of(elements: list[Any], dtype: str, has_shape: bool) -> list[str] | None:
    """Return the elements as NumPy prints them, all of equal width."""
    if dtype.startswith("float"):
        return _texts_of_floats(elements, is_single=dtype == "float32")
    texts = list(map(str, elements))
    width = max(map(len, texts)) if dtype != "bool" else 5 * has_shape
    return [text.rjust(width) for text in texts]


def _texts_of_floats(elements: list[float], *, is_single: bool) -> list[str] | None:
    sizes = [abs(element) for element in elements if element]
    if not all(map(math.isfinite, elements)):
        return None
    # Other numbers have exponents.
    if sizes and (max(sizes) >= 1e8 or min(sizes) < 1e-4 or max(sizes) / min(sizes) > 1000):
        return None
    parts = [_shortest(element, is_single=is_single).split(".") for element in elements]
    left = max(len(whole) for whole, _ in parts)
    right = max(len(fraction) for _, fraction in parts)
    return [f"{whole.rjust(left)}.{fraction.ljust(right)}" for whole, fraction in parts]


def _shortest(element: float, *, is_single: bool) -> str:
    """Return the fewest digits that identify a number, up to NumPy's precision."""
    text = repr(element)
    if is_single:
        candidates = (f"{element:.{digits}g}" for digits in _SINGLE_DIGITS)
        text = next(each for each in candidates if array("f", [float(each)])[0] == element)
        text = f"{float(text):f}" if "e" in text else text
    whole, _, fraction = text.partition(".")
    if len(fraction) > _PRECISION:
        whole, _, fraction = f"{element:.{_PRECISION}f}".partition(".")
    return f"{whole}.{fraction.rstrip('0')}"
