"""Conjugates, negatives and zeros that are computed when they are needed: methods of ``Tensor``.

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
    """A base of ``Tensor``, which has an ``array``."""

    __slots__ = ()

    array: Any

    def conj(self) -> Any:
        """Return a view of a complex tensor's conjugate; a real tensor itself.

        A view of the same elements, with the key Conjugate: operators get what it stands for.
        ``array_api.conj`` computes at once.
        """
        return array_operators()._conj.default(self) if self.array.dtype.kind == "c" else self

    def is_conj(self) -> bool:
        """Return whether the tensor stands for the conjugates of its elements."""
        return type(self.array) is MathBitsArray and self.array.is_conj

    def is_neg(self) -> bool:
        """Return whether the tensor stands for the negatives of its elements, as the imaginary part
        of a view of a conjugate does.
        """
        return type(self.array) is MathBitsArray and self.array.is_neg

    def resolve_conj(self) -> Any:
        """Return a tensor with the elements that this one stands for.

        Itself, unless ``is_conj``.
        """
        return array_operators().positive.default(self) if self.is_conj() else self

    def resolve_neg(self) -> Any:
        """Return a tensor with the elements that this one stands for: itself, unless ``is_neg``."""
        return array_operators().positive.default(self) if self.is_neg() else self

    def _neg_view(self) -> Any:
        """Return a view of the negatives of its elements."""
        return array_operators()._neg_view.default(self)

    def _is_zerotensor(self) -> bool:
        """Return whether the tensor is zeros without elements."""
        return isinstance(self.array, ZeroArray)

    @classmethod
    def _efficientzerotensor(
        cls, shape: Sequence[int], *, dtype: Any = "float64", device: str = "cpu"
    ) -> Self:
        """Return zeros without elements, with the key ZeroTensor; they cannot be written to.

        Raises DeviceError, and TypeError for anything but a dtype.
        """
        base: Any = cls
        made: Self = base._over(ZeroArray(tuple(shape), dtype, device), None)
        if is_inference_mode_enabled():
            make_inference(made)
        return made
