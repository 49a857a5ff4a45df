"""Functional variants of views and assignment, for functionalized functions.

``getitem_copy`` and the like return copies of what the view operators return. ``setitem`` returns a
copy of its argument with the write of ``setitem_`` applied, as ``copy`` does for ``copy_``;
``real_scatter`` and ``imag_scatter`` replace the real or imaginary part. They correspond to
PyTorch's ``slice_copy``, ``slice_scatter`` and others.

Their kernels call the view operator and copy, on every backend without a kernel of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from opdispatch.arrays import find_backend
from opdispatch.functionalities.functional_counterpart import copied, functional_schema
from opdispatch.library.library import Library
from opdispatch.native.array.operators.functions import FUNCTIONS
from opdispatch.native.array.operators.indexing import INDEXING
from opdispatch.native.array.operators.kernels import plain
from opdispatch.native.array.operators.meta_shapes import refusal
from opdispatch.schema.function_schema import FunctionSchema, OperatorName
from opdispatch.schema.parser import parse_schema

VIEWS = (
    *("broadcast_to", "expand_dims", "flip", "getitem", "imag", "linalg_diagonal"),
    *("matrix_transpose", "moveaxis", "permute_dims", "real", "reshape", "squeeze", "unstack"),
)
"""The operators that return views, except ``astype``, which may copy."""

COPY_ = parse_schema("copy_(Tensor(a!) x, Tensor src) -> Tensor(a!)")
_SCATTERS = ("real", "imag")


def _without_aliases(schema: FunctionSchema, name: str) -> FunctionSchema:
    functional = functional_schema(schema)
    return functional.with_name(OperatorName(name, schema.name.overload_name))


def _schemas() -> dict[str, FunctionSchema]:
    """Return the schemas of the operators that return views or write, by name."""
    return {str(each.schema.name): each.schema for each in (*FUNCTIONS, *INDEXING)}


def register_functional_variants(library: Library) -> None:
    """Define the variants in the library of the view operators, in one publication."""
    dispatcher, schemas = library.dispatcher, _schemas()

    def find(name: str) -> Callable[..., Any]:
        """Return a function that looks the operator up when called: it is not published yet."""
        return lambda *args, **kwargs: dispatcher.get_schema(f"array::{name}")(*args, **kwargs)

    with dispatcher.transaction():
        for view in VIEWS:
            name = library.define(str(_without_aliases(schemas[view], f"{view}_copy")))
            library.impl(name, _copying(find(view)), _KEY)
        for overload in ("Scalar", "Tensor"):
            write = f"setitem_.{overload}"
            name = library.define(str(_without_aliases(schemas[write], "setitem")))
            library.impl(name, _writing_to_a_copy(find(write)), _KEY)
        for part in _SCATTERS:
            name = library.define(f"{part}_scatter(Tensor x, Tensor src) -> Tensor")
            library.impl(name, _scattering(find(part), find("setitem_.Tensor")), _KEY)
        library.define(str(COPY_))
        library.impl("copy_", copy_, "CompositeExplicitAutograd")
        library.impl(library.define(str(_without_aliases(COPY_, "copy"))), copy, _KEY)


_KEY = "CompositeExplicitAutogradNonFunctional"


def _copying(view: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *args, **kwargs: copied(view(*args, **kwargs))


def _writing_to_a_copy(write: Callable[..., Any]) -> Callable[..., Any]:
    def write_to_a_copy(x: Any, *args: Any) -> Any:
        copy_of_x = copied(x)
        write(copy_of_x, *args)
        return copy_of_x

    return write_to_a_copy


def _scattering(part: Callable[..., Any], write: Callable[..., Any]) -> Callable[..., Any]:
    def scatter(x: Any, src: Any) -> Any:
        copy_of_x = copied(x)
        write(part(copy_of_x), [], [], [], [], src)
        return copy_of_x

    return scatter


def copy_(x: Any, src: Any) -> Any:
    """Write the elements of ``src`` to ``x`` and return ``x``, on any devices.

    Raises ArgumentError unless both are dense and of the same shape and dtype, DeviceError if the
    transfer fails.
    """
    _check_alike("copy_", x, src)
    target = plain(x)
    backend = find_backend(type(target))
    if backend is None:
        raise refusal("copy_", "writes to dense tensors; expected such")
    contents = plain(src)
    owner = find_backend(type(contents))
    if owner is not None and owner is not backend:
        contents = owner.to_host(contents)  # every backend accepts host arrays
    backend.assign(target, contents)
    return x


def copy(x: Any, src: Any) -> Any:
    """Return the result of ``x.copy_(src)``: a copy of ``src``. Raises ArgumentError."""
    _check_alike("copy", x, src)
    return copied(src)


def _check_alike(name: str, x: Any, src: Any) -> None:
    if tuple(x.shape) != tuple(src.shape) or x.dtype != src.dtype:
        raise refusal(
            name,
            f"takes tensors of one shape and dtype, not {list(x.shape)} of {x.dtype} and "
            f"{list(src.shape)} of {src.dtype}",
        )
