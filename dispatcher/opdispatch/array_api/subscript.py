"""The fast path of ``x[index]``: a function that calls the kernel of ``array::getitem`` directly.

It handles small ints, slices with small bounds, tuples of ints, slices and None, and NumPy arrays.
Other indices, and calls before the kernel is known, fall back on ``getitem`` of
``tensors/indexing.py``, as do all calls if compiled calls are disabled.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from opdispatch.array_api.operators import OPERATORS
from opdispatch.boxing.generated_source import compile_function
from opdispatch.dispatch.call_source import CallSource
from opdispatch.dispatch.compiled_call import COMPILE
from opdispatch.tensors.indexing import getitem

# Python compares small ints faster, and larger ones must be checked against 64 bits.
_IS_SMALL = "type({0}) is int and -0x3FFFFFFF < {0} < 0x3FFFFFFF"
_IS_END = f"({{0}} is None or {_IS_SMALL})"
_OTHERS = "return otherwise(x, index)"
_LINES = f"""\
kind = type(index)
if kind is int and -0x3FFFFFFF < index < 0x3FFFFFFF: start, stop, step = [index], [None], [None]
elif kind is slice:
    first, last, by = index.start, index.stop, index.step
    if by is None: by = 1
    elif not ({_IS_SMALL.format("by")}): {_OTHERS}
    if not ({_IS_END.format("first")} and {_IS_END.format("last")}): {_OTHERS}
    start, stop, step = [first], [last], [by]
elif kind is tuple:
    start, stop, step = [], [], []
    for each in index:
        first, last, by = each, None, None
        if type(each) is slice:
            first, last, by = each.start, each.stop, each.step
            if by is None: by = 1
            elif not ({_IS_SMALL.format("by")}): {_OTHERS}
            if not {_IS_END.format("last")}: {_OTHERS}
        if not {_IS_END.format("first")}: {_OTHERS}
        start.append(first)
        stop.append(last)
        step.append(by)
elif kind is _ndarray: return places.call_converted(x, [None], [None], [None], [index])
else: {_OTHERS}
"""


def make_getitem() -> Callable[[Any, Any], Any]:
    """Return the function for ``Tensor.__getitem__``."""
    if not COMPILE:
        return getitem
    operator, places = OPERATORS.getitem.default, OPERATORS.getitem.Tensor
    source = CallSource(operator.schema)
    lines = [*_LINES.splitlines(), *source.direct(_OTHERS)]
    text = "\n    ".join(["def __getitem__(x, index):", *lines]) + "\n"
    scope = source.globals | {"_op": operator, "otherwise": getitem, "places": places}
    function: Callable[[Any, Any], Any] = compile_function(
        "index of a tensor", text, scope, "__getitem__"
    )
    return function
