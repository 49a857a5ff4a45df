"""Lazy conjugate and negative views, and the operators that handle their bits."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from opdispatch.arrays.math_bits import toggled
from opdispatch.boxing.boxing import BoxedFunction
from opdispatch.boxing.kernel_function import KernelFunction
from opdispatch.functionalities.math_bits_fallback import KEYS, make_view_kernel
from opdispatch.functionalities.zero_tensor_fallback import (
    zeros_added,
    zeros_divided,
    zeros_of_zeros,
)
from opdispatch.library.library import Library, fallthrough_kernel
from opdispatch.native.array.operators.functional_variants import VIEWS
from opdispatch.tensors.tensor import Tensor

MATH_BIT_VIEWS = ("_conj", "_neg_view")
"""The operators that toggle the conjugate and the negative bit."""

_PRODUCTS = ("multiply.Tensor", "multiply.Scalar", "multiply.ScalarFirst")
_ZERO_RULES: dict[BoxedFunction, tuple[str, ...]] = {
    zeros_of_zeros: (*VIEWS, *MATH_BIT_VIEWS, *_PRODUCTS),
    zeros_divided: ("divide.Tensor", "divide.Scalar"),
    zeros_added: ("add.Tensor", "subtract.Tensor"),
}


def register_math_bits(library: Library) -> None:
    """Define them, and the kernels of views for these bits, in one publication."""
    toggles = {"_conj": partial(toggled, conj=True), "_neg_view": partial(toggled, neg=True)}
    rules = {
        "real": make_view_kernel(drops_conj=True),
        "imag": make_view_kernel(conj_negates=True),
    }
    others = make_view_kernel()
    with library.dispatcher.transaction():
        for name in MATH_BIT_VIEWS:
            library.define(f"{name}(Tensor(a) x) -> Tensor(a)")
            library.impl(name, _of_tensors(toggles[name]), "CompositeExplicitAutograd")
            for key in KEYS:
                library.impl(name, fallthrough_kernel, key)
        for name in VIEWS:
            for key in KEYS:
                library.impl(name, rules.get(name, others), key)
        for kernel, names in _ZERO_RULES.items():
            for name in names:
                library.impl(name, KernelFunction.from_boxed(kernel), "ZeroTensor")


def _of_tensors(toggle: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda x: Tensor(toggle(x.array)) if type(x) is Tensor else toggle(x)
