"""Lazy conjugates, negatives and zeros, which are computed when needed: methods of ``Tensor``.

https://docs.pytorch.org/docs/2.13/generated/torch.conj.html
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

from opdispatch.arrays.math_bits import MathBitsArray
from opdispatch.arrays.zero_array import ZeroArray
from opdispatch.autograd.inference_tensor import make_inference
from opdispatch.local_state.grad_mode import is_inference_mode_enabled
from opdispatch.local_state.lazy_imports import array_operators


class TensorMathBits:
    """A base class of ``Tensor`` with the methods of lazy conjugation and negation."""

    __slots__ = ()

    array: Any

    def conj(self) -> Any:
        """Return a lazy conjugate of a complex tensor; return a real tensor as is.

        The result is a view of the same elements with the key Conjugate, which makes operators
        compute with the conjugates. ``array_api.conj`` computes them immediately.
        """
        return array_operators()._conj.default(self) if self.array.dtype.kind == "c" else self

    def is_conj(self) -> bool:
        """Return whether the tensor is a lazy conjugate of its elements."""
        return type(self.array) is MathBitsArray and self.array.is_conj

    def is_neg(self) -> bool:
        """Return whether the tensor is a lazy negation, such as the imaginary part of a lazy
        conjugate.
        """
        return type(self.array) is MathBitsArray and self.array.is_neg

    def resolve_conj(self) -> Any:
        """Materialize a lazy conjugate; return the tensor as is unless ``is_conj()``."""
        return array_operators().positive.default(self) if self.is_conj() else self

    def resolve_neg(self) -> Any:
        """Materialize a lazy negation; return the tensor as is unless ``is_neg()``."""
        return array_operators().positive.default(self) if self.is_neg() else self

    def _neg_view(self) -> Any:
        """Return a lazy negation: a view of the same elements with the key Negative."""
        return array_operators()._neg_view.default(self)

    def _is_zerotensor(self) -> bool:
        """Return whether the tensor consists of zeros that occupy no memory."""
        return isinstance(self.array, ZeroArray)

    @classmethod
    def _efficientzerotensor(
        cls, shape: Sequence[int], *, dtype: Any = "float64", device: str = "cpu"
    ) -> Self:
        """Create a read-only tensor of zeros that occupy no memory, with the key ZeroTensor.

        Raises DeviceError, and TypeError for an invalid dtype.
        """
        base: Any = cls
        made: Self = base._over(ZeroArray(tuple(shape), dtype, device), None)
        if is_inference_mode_enabled():
            make_inference(made)
        return made
