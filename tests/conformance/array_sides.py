"""Functions that programs of arrays call, and transforms: ours, and PyTorch's by the same names."""

from __future__ import annotations

from typing import Any

import torch

from opdispatch import Tensor, array_api, func, vmap


class _Ours:
    """The standard's functions, and the transforms."""

    func = func
    vmap = staticmethod(vmap)
    tensor = Tensor
    copy = staticmethod(array_api.positive)

    def __getattr__(self, name: str) -> Any:
        return getattr(array_api, name)


class _Torch:
    """PyTorch's functions by the standard's names."""

    func = torch.func
    vmap = staticmethod(torch.func.vmap)
    tensor = staticmethod(torch.tensor)
    copy = staticmethod(torch.clone)
    min = staticmethod(torch.amin)
    max = staticmethod(torch.amax)
    concat = staticmethod(torch.cat)
    permute_dims = staticmethod(torch.permute)
    cumulative_sum = staticmethod(torch.cumsum)
    cumulative_prod = staticmethod(torch.cumprod)

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)

    def std(self, x: Any, axis: Any = None) -> Any:
        return torch.std(x, dim=axis, correction=0)

    def var(self, x: Any, axis: Any = None) -> Any:
        return torch.var(x, dim=axis, correction=0)

    def sort(self, x: Any, axis: int, descending: bool = False) -> Any:
        return torch.sort(x, dim=axis, descending=descending, stable=True).values

    def take(self, x: Any, indices: Any, axis: int) -> Any:
        return torch.index_select(x, axis, indices)

    def take_along_axis(self, x: Any, indices: Any, axis: int) -> Any:
        return torch.gather(x, axis, indices)

    def matrix_transpose(self, x: Any) -> Any:
        return x.mT

    def flip(self, x: Any, axis: int) -> Any:
        return torch.flip(x, (axis,))

    def roll(self, x: Any, shift: int, axis: int) -> Any:
        return torch.roll(x, shift, axis)

    def argsort(self, x: Any, axis: int) -> Any:
        return torch.argsort(x, dim=axis, stable=True)

    def sign(self, x: Any) -> Any:
        if x.is_complex():
            return torch.sgn(x)
        return torch.where(x == x, torch.sign(x), torch.nan)  # of NaN, PyTorch's is 0

    def tensordot(self, x: Any, y: Any, axes: int) -> Any:
        return torch.tensordot(x, y, axes)


SIDES = (_Ours(), _Torch())
