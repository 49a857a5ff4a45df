"""The operators of the library ``random``: draw random tensors from a ``Generator``.

distributions   convert random 64-bit words to numbers of a distribution
philox_cuda     generate random words on a GPU
places          generate arrays on the host, on a GPU, or without elements (Meta)
operators       schemas, and the kernels for each place

``opdispatch.random_library`` calls ``register`` to add them to a dispatcher. They have PyTorch's
names. All are tagged ``nondeterministic_seeded``, as PyTorch's are (``tags.yaml``).
"""

from __future__ import annotations

from typing import Any

from opdispatch.functionalities.adinplace_or_view import make_write_kernel
from opdispatch.functionalities.derivative import Formulas
from opdispatch.functionalities.derivative_kernel import make_derivative_kernel
from opdispatch.functionalities.layer_kernel_source import FindOperator
from opdispatch.library.library import Library
from opdispatch.native.array.derivatives.namespace import masked, zeros_like
from opdispatch.native.array.operators.creation import make_selection
from opdispatch.native.random.operators import (
    CONSTANT,
    DROPOUT,
    FACTORIES,
    WRITES,
    Kernel,
    dropout_scale,
    make_kernels,
)
from opdispatch.native.random.places import PLACES
from opdispatch.schema.function_schema import FunctionSchema

NAMESPACE = "random"
NONDETERMINISTIC = "nondeterministic_seeded"
"""The tag of operators whose results depend on a generator."""


def register(library: Library) -> None:
    """Define all operators in ``library``, of the namespace ``random``, in one publication."""

    def find(name: str) -> FindOperator:
        return library.dispatcher.finder_of(f"{NAMESPACE}::{name}")

    def schema_of(name: str) -> FunctionSchema:
        return library.dispatcher.get_schema(f"{NAMESPACE}::{name}").schema

    with library.dispatcher.transaction():
        factories, constant, writes, [native_dropout, dropout] = (
            [library.define(schema, tags=NONDETERMINISTIC) for schema in schemas]
            for schemas in (FACTORIES, CONSTANT, WRITES, DROPOUT)
        )
        for place in PLACES:
            for name, kernel in make_kernels(place).items():
                library.impl(name, kernel, place.key)
        for name in factories:
            library.impl(name, make_selection(schema_of(name), find(name)), "BackendSelect")
        library.impl(dropout, _make_dropout(find(native_dropout)))
        derivatives: dict[str, Formulas] = {
            **{key: {} for key in constant},
            **{key: {"x": zeros_like} for key in writes},
            native_dropout: {"x": _dropout_gradient},
        }
        for name, formulas in derivatives.items():
            library.impl(name, make_derivative_kernel(schema_of(name), formulas), "Autograd")
        for name in writes:
            library.impl(name, make_write_kernel(schema_of(name)), "ADInplaceOrView")


def _make_dropout(native: FindOperator) -> Kernel:
    def dropout(x: Any, p: float, train: bool, *, generator: Any) -> Any:
        if not train or p == 0.0:
            return x
        return native()(x, p, train, generator=generator)[0]

    return dropout


def _dropout_gradient(grads: Any, results: Any, p: float, train: bool) -> Any:
    if grads[0] is None:
        return None
    return masked(results[1], grads[0] * dropout_scale(p, train))
