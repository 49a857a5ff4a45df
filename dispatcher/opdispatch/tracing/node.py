"""The parts of a graph: frozen objects that refer to one another by index."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from opdispatch.arrays import device_of, find_key_bits, find_layout
from opdispatch.schema.function_schema import FunctionSchema
from opdispatch.tracing.pytree import leaves, map_leaves


class Source(StrEnum):
    """Origin of a value."""

    INPUT = "input"
    CONSTANT = "constant"
    NODE = "node"


@dataclass(frozen=True, slots=True)
class Value:
    """A tensor in a graph: an input, a constant, or a node's result.

    ``number`` is the index within its source. ``items`` are the indices that select one of several
    returns or an element of a list.
    """

    source: Source
    number: int
    items: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class TensorFacts:
    """Metadata of a tensor in the trace. A dimension is None if it is ragged in a nested tensor."""

    dtype: str
    shape: tuple[int | None, ...]
    device: str = "cpu"
    layout: str = "strided"

    @classmethod
    def of(cls, tensor: Any) -> TensorFacts:
        """Return the metadata of a tensor of any class."""
        return cls(
            str(getattr(tensor, "dtype", "?")),
            tuple(getattr(tensor, "shape", ())),
            _device_of(tensor),
            _layout_of(tensor),
        )

    def __str__(self) -> str:
        """Format as ``float32[2, 3]``, with device and layout if unusual: ``float32[2, 3] cuda:0
        sparse_coo``."""
        extents = ", ".join("?" if each is None else str(each) for each in self.shape)
        unusual = [f" {self.device}"] if self.device != "cpu" else []
        unusual += [f" {self.layout}"] if self.layout != "strided" else []
        return f"{self.dtype}[{extents}]{''.join(unusual)}"


@dataclass(frozen=True, slots=True)
class Input:
    """A tensor argument of the traced function."""

    name: str
    facts: TensorFacts


@dataclass(frozen=True, slots=True, eq=False)
class Constant:
    """A tensor that the traced function captured; it is kept itself, not copied."""

    name: str
    tensor: Any
    facts: TensorFacts


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of the traced function with its argument, where Values stand for tensors."""

    name: str
    kind: inspect._ParameterKind
    given: Any


@dataclass(frozen=True, slots=True, eq=False)
class Node:
    """A call of an operator.

    ``args`` and ``kwargs`` have Values in place of tensors; omitted arguments have their defaults.
    ``returns`` has TensorFacts in place of tensors, and other results themselves. ``schema`` is
    None for an operator that this process did not know. ``shares_memory`` tells whether a result
    was observed to be a view of an argument although the schema does not declare it.
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
        """Whether its results may alias its arguments."""
        if self.schema is None or self.shares_memory:
            return True
        return any(each.alias_info for each in self.schema.returns)

    @property
    def aliased(self) -> Iterator[Value]:
        """The values among its arguments that its results may alias."""
        if self.schema is None or self.shares_memory:
            yield from self.uses
            return
        for argument, given in self._given():
            if argument.alias_info is not None:
                yield from values_in(given)

    @property
    def has_side_effects(self) -> bool:
        """Whether it may have side effects that are not visible in the graph's values."""
        if self.schema is None or (not self.schema.returns and not self.schema.is_mutable):
            return True
        return any(str(each.type).startswith("Generator") for each in self.schema.arguments)

    def _given(self) -> Iterator[tuple[Any, Any]]:
        """Yield the schema's arguments with their values, without those that were omitted."""
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
    """Return a call's results with tensors replaced by TensorFacts."""
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
