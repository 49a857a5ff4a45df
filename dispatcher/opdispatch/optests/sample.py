"""Sample arguments of an operator, and functions that compare its results."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import numpy as np

from opdispatch.arrays import (
    FakeArray,
    MetaArray,
    copy_of,
    device_of,
    find_backend,
    find_key_bits,
    find_layout,
    on_host,
)
from opdispatch.arrays.math_bits import stored
from opdispatch.dispatch.operator_handle import OperatorHandle
from opdispatch.errors import OpCheckError
from opdispatch.local_state.lazy_imports import array_namespace
from opdispatch.tensors.generator import Generator, with_default_generators
from opdispatch.tensors.tensor import Tensor
from opdispatch.tracing.pytree import leaves, map_leaves

# The relative and absolute tolerances of torch.testing.assert_close.
_TOLERANCES = {
    "float16": (1e-3, 1e-5),
    "bfloat16": (1.6e-2, 1e-5),
    "float32": (1.3e-6, 1e-5),
    "complex64": (1.3e-6, 1e-5),
    "float64": (1e-7, 1e-7),
    "complex128": (1e-7, 1e-7),
}


class Tolerance(NamedTuple):
    """The tolerances of a comparison; None means the default of the dtype."""

    rtol: float | None = None
    atol: float | None = None

    def of(self, dtype: np.dtype[Any]) -> tuple[float, float]:
        """Return the relative and the absolute tolerance."""
        rtol, atol = _TOLERANCES.get(dtype.name, (0.0, 0.0))
        return (
            rtol if self.rtol is None else self.rtol,
            atol if self.atol is None else self.atol,
        )


class Sample(NamedTuple):
    """The arguments of one call, which stay unchanged: checks call the operator with ``copies``."""

    op: OperatorHandle
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    tolerance: Tolerance = Tolerance()

    @property
    def tensors(self) -> list[Any]:
        """The tensors and arrays among the arguments."""
        return tensors_in((self.args, self.kwargs))

    @property
    def is_abstract(self) -> bool:
        """Whether any argument has no elements, so that results cannot be compared."""
        return any(isinstance(array_of(each), MetaArray | FakeArray) for each in self.tensors)

    @property
    def is_dense(self) -> bool:
        """Whether all arguments are dense, so that they have fake counterparts."""
        return all(find_backend(type(stored(array_of(each)))) is not None for each in self.tensors)

    @property
    def requires_grad(self) -> bool:
        """Whether any argument requires gradients."""
        return any(_requires_grad(each) for each in self.tensors)

    def copies(self, change: Callable[[Any], Any] = lambda each: each) -> tuple[Any, Any]:
        """Return the arguments with each tensor copied and passed through ``change``.

        A tensor that occurs twice is copied twice.
        """

        def copied(leaf: Any) -> Any:
            return change(_copied(leaf)) if _is_tensor(leaf) else leaf

        return map_leaves(copied, (tuple(self.args), dict(self.kwargs)))  # type: ignore[no-any-return]

    def same_random_numbers(self) -> AbstractContextManager[None]:
        """Return a context manager that makes operators draw the same random numbers each time."""
        devices = {"cpu", *(device_of(array_of(each)) for each in self.tensors)}
        return with_default_generators({each: Generator(each).manual_seed(0) for each in devices})


def off_leaf(tensor: Any) -> Any:
    """Return a tensor that operators may write to: a non-leaf if it requires gradients."""
    if not _requires_grad(tensor) or find_layout(type(tensor.array)) is not None:
        return tensor
    return array_namespace().positive(tensor)


def array_of(tensor: Any) -> Any:
    """Return the array of a tensor; return an array as is."""
    return tensor.array if isinstance(tensor, Tensor) else tensor


def tensors_in(values: Any) -> list[Any]:
    """Return the tensors and arrays in lists, tuples and dicts."""
    return [leaf for leaf in leaves(values) if _is_tensor(leaf)]


def content_of(tensor: Any) -> tuple[Any, ...]:
    """Return a comparable snapshot of everything in a tensor that a write would change."""
    parts = [np.asarray(on_host(part)) for part in _parts_of(tensor)]
    return tuple((part.shape, part.dtype, part.tobytes()) for part in parts)


def share_memory(one: Any, other: Any) -> bool:
    """Return whether tensors in two values share memory, or may do so."""
    return any(
        _may_share(first, second)
        for tensor in tensors_in(one)
        for first in _parts_of(tensor)
        for another in tensors_in(other)
        for second in _parts_of(another)
    )


def check_close(actual: Any, expected: Any, tolerance: Tolerance, what: str, where: str) -> None:
    """Raise OpCheckError unless the values are close; the message names ``what`` and ``where``."""
    ours, theirs = list(leaves(actual)), list(leaves(expected))
    if len(ours) != len(theirs):
        raise OpCheckError(f"{what} are {len(ours)} {where}, and {len(theirs)} otherwise")
    for place, (found, wanted) in enumerate(zip(ours, theirs, strict=True)):
        if difference := _difference(found, wanted, tolerance):
            raise OpCheckError(f"{what} differ {where}, in place {place}: {difference}")


def describe(tensor: Any) -> str:
    """Describe a tensor by its dtype, shape and device."""
    array = array_of(tensor)
    return f"{array.dtype}{list(array.shape)} on {device_of(array)}"


def _difference(found: Any, wanted: Any, tolerance: Tolerance) -> str:
    if not (_is_tensor(found) and _is_tensor(wanted)):
        same = found is wanted or bool(found == wanted) or (found != found and wanted != wanted)
        return "" if same else f"{found!r} and not {wanted!r}"
    if describe(found) != describe(wanted):
        return f"{describe(found)} and not {describe(wanted)}"
    for mine, other in zip(_parts_of(found), _parts_of(wanted), strict=True):
        one, two = np.asarray(on_host(mine)), np.asarray(on_host(other))
        if one.shape != two.shape:
            return f"parts of the shapes {list(one.shape)} and {list(two.shape)}"
        rtol, atol = tolerance.of(one.dtype)
        if not np.allclose(one, two, rtol, atol, equal_nan=one.dtype.kind in "fc"):
            most = np.abs(np.subtract(one, two, dtype=np.result_type(one, np.float64))).max()
            return f"elements differ by up to {most:.3g}"
    return ""


def _is_tensor(value: Any) -> bool:
    return find_key_bits(value) is not None and not isinstance(value, Generator)


def _requires_grad(value: Any) -> bool:
    return isinstance(value, Tensor) and value.requires_grad


def _copied(tensor: Any) -> Any:
    if not isinstance(tensor, Tensor):
        return copy_of(tensor) if find_layout(type(tensor)) else copy.deepcopy(tensor)
    copied = copy.deepcopy(tensor.detach())
    return copied.requires_grad_() if tensor.requires_grad else copied


def _parts_of(tensor: Any) -> Iterator[Any]:
    array = array_of(tensor)
    layout = find_layout(type(array))
    yield from [stored(array)] if layout is None else layout.parts(array)


def _may_share(first: Any, second: Any) -> bool:
    if first is second:
        return True
    module = sys.modules.get(type(first).__module__.partition(".")[0])
    ask = getattr(module, "may_share_memory", None)
    return ask is not None and type(first) is type(second) and bool(ask(first, second))
