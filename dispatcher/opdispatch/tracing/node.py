"""The parts of a graph: frozen values, which refer to one another by number."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from opdispatch.arrays import device_of, find_key_bits, find_layout
from opdispatch.schema.function_schema import FunctionSchema
from opdispatch.tracing.structure import leaves, map_leaves


class Source(StrEnum):
    """Where a value comes from."""

    INPUT = "input"
    CONSTANT = "constant"
    NODE = "node"


@dataclass(frozen=True, slots=True)
class Value:
    """A tensor in a graph: an input, a constant, or what a node returns.

    ``number`` counts those of its source. ``items`` lead to one of several returns, or into a list.
    """

    source: Source
    number: int
    items: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class TensorFacts:
    """Facts of a tensor in the trace. An extent is None where a nested tensor has several."""

    dtype: str
    shape: tuple[int | None, ...]
    device: str = "cpu"
    layout: str = "strided"

    @classmethod
    def of(cls, tensor: Any) -> TensorFacts:
        """Return the facts of a tensor of any class."""
        return cls(
            str(getattr(tensor, "dtype", "?")),
            tuple(getattr(tensor, "shape", ())),
            _device_of(tensor),
            _layout_of(tensor),
        )

    def __str__(self) -> str:
        """Return ``float32[2, 3]``, and what is unusual: ``float32[2, 3] cuda:0 sparse_coo``."""
        extents = ", ".join("?" if each is None else str(each) for each in self.shape)
        unusual = [f" {self.device}"] if self.device != "cpu" else []
        unusual += [f" {self.layout}"] if self.layout != "strided" else []
        return f"{self.dtype}[{extents}]{''.join(unusual)}"


@dataclass(frozen=True, slots=True)
class Input:
    """A tensor that the function is given."""

    name: str
    facts: TensorFacts


@dataclass(frozen=True, slots=True, eq=False)
class Constant:
    """A tensor that the function was not given: the very tensor that it used, and no copy."""

    name: str
    tensor: Any
    facts: TensorFacts


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of the function, and what it was given: a tree with Values for tensors."""

    name: str
    kind: inspect._ParameterKind
    given: Any


@dataclass(frozen=True, slots=True, eq=False)
class Node:
    """A call of an operator.

    ``args`` and ``kwargs`` have Values in the place of tensors; what is left out has its default.
    ``returns`` is what the operator returned: TensorFacts in the place of tensors, the numbers
    themselves. ``schema`` is None if the operator is one that this process did not know.
    ``shares_memory`` is whether a result was seen to be a view of an argument of which the schema
    does not say so.
    """

    name: str
    operator: str
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    returns: Any
    schema: FunctionSchema | None = None
    shares_memory: bool = False

    @property
    def uses(self) -> Iterator[Value]:
        """The values among its arguments, in order."""
        return values_in([self.args, dict(self.kwargs)])

    @property
    def written(self) -> Iterator[Value]:
        """The values among its arguments that it writes to; without a schema, none is known."""
        for argument, given in self._given():
            if argument.is_write:
                yield from values_in(given)

    @property
    def is_aliasing(self) -> bool:
        """Whether what it returns may be, or be a view of, what it is given."""
        if self.schema is None or self.shares_memory:
            return True
        return any(each.alias_info for each in self.schema.returns)

    @property
    def aliased(self) -> Iterator[Value]:
        """The values among its arguments that what it returns may be a view of."""
        if self.schema is None or self.shares_memory:
            yield from self.uses
            return
        for argument, given in self._given():
            if argument.alias_info is not None:
                yield from values_in(given)

    @property
    def has_side_effects(self) -> bool:
        """Whether it may do something that no value of the graph shows."""
        if self.schema is None or (not self.schema.returns and not self.schema.is_mutable):
            return True
        return any(str(each.type).startswith("Generator") for each in self.schema.arguments)

    def _given(self) -> Iterator[tuple[Any, Any]]:
        """Yield arguments of the schema with their given values; omitted ones are left out."""
        if self.schema is None:
            return
        for place, argument in enumerate(self.schema.arguments):
            if argument.name in self.kwargs:
                yield argument, self.kwargs[argument.name]
            elif place < len(self.args) and not argument.kwarg_only:
                yield argument, self.args[place]


def values_in(tree: Any) -> Iterator[Value]:
    """Iterate over the values in lists, tuples and dicts, in order."""
    return (each for each in leaves(tree) if isinstance(each, Value))


def facts_in(returned: Any) -> Any:
    """Return a call's results with TensorFacts in place of the tensors."""
    return map_leaves(
        lambda each: each if find_key_bits(each) is None else TensorFacts.of(each), returned
    )


def _layout_of(tensor: Any) -> str:
    layout = getattr(tensor, "layout", None)
    if isinstance(layout, str):
        return layout
    found = find_layout(type(tensor))
    return "strided" if found is None else found.pytorch_name


def _device_of(tensor: Any) -> str:
    device = getattr(tensor, "device", None)  # a CuPy array's is not a string
    return device if isinstance(device, str) else device_of(tensor)
