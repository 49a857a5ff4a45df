"""The kinds of schemas that calls differ by: for the benchmark, and for the count of functions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

TENSOR, OTHER, DTYPE, LIST = object(), object(), object(), object()
"""Parts of arguments: a tensor, another one, a dtype, and a list of two tensors."""


class SchemaKind(NamedTuple):
    """One kind: its schema without a name, a kernel, and the arguments of a call by name."""

    schema: str
    kernel: Callable[..., Any]
    given: Mapping[str, Any]
    keyword_only: tuple[str, ...] = ()
    gradients: int = 0
    """How many gradients the backward of its derivative returns; 0 if it has none."""

    @property
    def title(self) -> str:
        """The schema, and the arguments that are no tensors."""
        given = ", ".join(f"{n}={v}" for n, v in self.given.items() if type(v) is not object)
        return f"{self.schema}{'; ' if given else ''}{given}"

    @property
    def is_recorded(self) -> bool:
        """Whether it has a derivative, so that calls are recorded."""
        return self.gradients > 0

    @property
    def writes(self) -> bool:
        """Whether a kernel writes to an argument: versions are counted."""
        return "!" in self.schema

    def backward(self, ctx: Any, *grads: Any) -> Any:
        """Return the gradient of the result for each tensor, and None for other arguments."""
        tensors = [value is TENSOR or value is OTHER for value in self.given.values()]
        found = [grads[0] if each else None for each in tensors]
        return tuple(found + [None] * (self.gradients - len(found)))[: self.gradients]

    def arguments(
        self, make: Callable[[], Any], dtype: Any, *, by_name: bool
    ) -> tuple[list[Any], dict[str, Any]]:
        """The arguments of a call, by position or by name. ``make()`` is a new tensor."""
        args, named = [], {}
        for name, value in self.given.items():
            if value is TENSOR or value is OTHER:
                value = make()
            elif value is LIST:
                value = [make(), make()]
            elif value is DTYPE:
                value = dtype
            if by_name or name in self.keyword_only:
                named[name] = value
            else:
                args.append(value)
        return args, named


_TWO = {"x": TENSOR, "y": OTHER}
KINDS: dict[str, SchemaKind] = {
    "tensors": SchemaKind("(Tensor x, Tensor y) -> Tensor", lambda x, y: x, _TWO, gradients=2),
    "nothing": SchemaKind("(Tensor x, Tensor y) -> ()", lambda x, y: None, _TWO),
    "int": SchemaKind("(Tensor x, Tensor y) -> int", lambda x, y: 1, _TWO),
    "bool": SchemaKind("(Tensor x, Tensor y) -> bool", lambda x, y: True, _TWO),
    "str": SchemaKind("(Tensor x, Tensor y) -> str", lambda x, y: "a", _TWO),
    "float": SchemaKind("(Tensor x, Tensor y) -> float", lambda x, y: 0.5, _TWO),
    "ints": SchemaKind("(Tensor x, Tensor y) -> int[]", lambda x, y: [1, 2], _TWO),
    "tensor_int": SchemaKind("(Tensor x, Tensor y) -> (Tensor, int)", lambda x, y: (x, 1), _TWO),
    "two": SchemaKind(
        "(Tensor x, Tensor y) -> (Tensor, Tensor)", lambda x, y: (x, y), _TWO, gradients=2
    ),
    "list_returned": SchemaKind("(Tensor x, Tensor y) -> Tensor[]", lambda x, y: [x, y], _TWO),
    "list_given": SchemaKind("(Tensor[] x) -> Tensor", lambda x: x[0], {"x": LIST}),
    "optional": SchemaKind("(Tensor x, Tensor? y) -> Tensor", lambda x, y: x, _TWO, gradients=2),
    "optional_none": SchemaKind(
        "(Tensor x, Tensor? y=None) -> Tensor", lambda x, y=None: x, {"x": TENSOR}, gradients=2
    ),
    "int_for_float": SchemaKind(
        "(Tensor x, float a) -> Tensor", lambda x, a: x, {"x": TENSOR, "a": 2}, gradients=2
    ),
    "scalar": SchemaKind(
        "(Tensor x, Scalar a) -> Tensor", lambda x, a: x, {"x": TENSOR, "a": 2.5}, gradients=2
    ),
    "sizes_default": SchemaKind(
        "(Tensor x, int[2] s=1) -> Tensor", lambda x, s=1: x, {"x": TENSOR}, gradients=2
    ),
    "sizes_int": SchemaKind(
        "(Tensor x, int[2] s=1) -> Tensor", lambda x, s: x, {"x": TENSOR, "s": 2}, gradients=2
    ),
    "sizes": SchemaKind(
        "(Tensor x, int[] s) -> Tensor", lambda x, s: x, {"x": TENSOR, "s": (2, 3)}, gradients=2
    ),
    "writes": SchemaKind("(Tensor(a!) x, Tensor y) -> Tensor(a!)", lambda x, y: x, _TWO),
    "out": SchemaKind(
        "(Tensor x, *, Tensor(a!) out) -> Tensor(a!)",
        lambda x, *, out: out,
        {"x": TENSOR, "out": OTHER},
        ("out",),
    ),
    "dtype_default": SchemaKind(
        "(Tensor x, Tensor y, *, ScalarType? dtype=None) -> Tensor",
        lambda x, y, *, dtype=None: x,
        _TWO,
        ("dtype",),
        gradients=2,
    ),
    "dtype": SchemaKind(
        "(Tensor x, Tensor y, *, ScalarType? dtype=None) -> Tensor",
        lambda x, y, *, dtype=None: x,
        {**_TWO, "dtype": DTYPE},
        ("dtype",),
        gradients=2,
    ),
    "bool_str": SchemaKind(
        "(Tensor x, bool b=True, str s='a') -> Tensor",
        lambda x, b=True, s="a": x,
        {"x": TENSOR, "b": False, "s": "b"},
        gradients=3,
    ),
}
"""By the names of their operators."""
