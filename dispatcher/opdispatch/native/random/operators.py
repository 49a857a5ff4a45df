"""The operators of the library ``random``: their schemas, and their kernels for each place."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from opdispatch.arrays import device_of
from opdispatch.errors import ArgumentError
from opdispatch.native.random.distributions import (
    Distribution,
    bernoulli,
    check_bounds,
    check_floating,
    integers,
    normal,
    permutation,
    uniform,
)
from opdispatch.native.random.places import Draw, Place
from opdispatch.tensors.tensor import Tensor

Kernel = Callable[..., Any]

_NEW = "ScalarType? dtype=None, Device? device=None"
_FROM = "Generator? generator=None"

FACTORIES = f"""
rand(int[1] size, *, {_NEW}, {_FROM}) -> Tensor
randn(int[1] size, *, {_NEW}, {_FROM}) -> Tensor
randint(int high, int[1] size, *, {_NEW}, {_FROM}) -> Tensor
randint.low(int low, int high, int[1] size, *, {_NEW}, {_FROM}) -> Tensor
randperm(int n, *, {_NEW}, {_FROM}) -> Tensor
""".strip().splitlines()
"""Operators without a tensor argument: ``device`` selects the kernel."""

CONSTANT = f"""
rand_like(Tensor x, *, ScalarType? dtype=None, {_FROM}) -> Tensor
randn_like(Tensor x, *, ScalarType? dtype=None, {_FROM}) -> Tensor
bernoulli(Tensor x, *, {_FROM}) -> Tensor
bernoulli.p(Tensor x, float p, *, {_FROM}) -> Tensor
""".strip().splitlines()
"""Operators whose results have a zero gradient, or none."""

WRITES = f"""
uniform_(Tensor(a!) x, float low=0.0, float high=1.0, *, {_FROM}) -> Tensor(a!)
normal_(Tensor(a!) x, float mean=0.0, float std=1.0, *, {_FROM}) -> Tensor(a!)
bernoulli_(Tensor(a!) x, float p=0.5, *, {_FROM}) -> Tensor(a!)
""".strip().splitlines()
"""Operators that write to their first argument, and return it."""

DROPOUT = f"""
native_dropout(Tensor x, float p=0.5, bool train=True, *, {_FROM}) -> (Tensor, Tensor)
dropout(Tensor x, float p=0.5, bool train=True, *, {_FROM}) -> Tensor
""".strip().splitlines()
"""``native_dropout`` has kernels and a derivative; ``dropout`` is composite and calls it."""

_FLOAT, _INTEGER = np.dtype("float64"), np.dtype("int64")


def make_kernels(place: Place) -> Mapping[str, Kernel]:
    """Return the kernels that draw at ``place``, by operator name."""

    def rand(size: Any, *, dtype: Any, device: Any, generator: Any) -> Any:
        return new("rand", uniform(0.0, 1.0), size, dtype, device, generator)

    def randn(size: Any, *, dtype: Any, device: Any, generator: Any) -> Any:
        return new("randn", normal(0.0, 1.0), size, dtype, device, generator)

    def new(
        name: str, distribution: Distribution, size: Any, dtype: Any, device: Any, generator: Any
    ) -> Any:
        dtype = _FLOAT if dtype is None else dtype
        check_floating(name, dtype)
        shape = _checked_shape(name, size)
        return Tensor(place.make(Draw(name, distribution, shape, dtype, device, generator)))

    def randint(high: int, size: Any, *, dtype: Any, device: Any, generator: Any) -> Any:
        return randint_low(0, high, size, dtype=dtype, device=device, generator=generator)

    def randint_low(
        low: int, high: int, size: Any, *, dtype: Any, device: Any, generator: Any
    ) -> Any:
        dtype = _INTEGER if dtype is None else dtype
        check_bounds("randint", low, high, dtype)
        shape = _checked_shape("randint", size)
        made = place.make(Draw("randint", integers(low, high), shape, dtype, device, generator))
        return Tensor(made)

    def randperm(n: int, *, dtype: Any, device: Any, generator: Any) -> Any:
        dtype = _INTEGER if dtype is None else dtype
        shape = _checked_shape("randperm", (n,))
        check_bounds("randperm", 0, max(n, 1), dtype)
        return Tensor(place.make(Draw("randperm", permutation(), shape, dtype, device, generator)))

    def rand_like(x: Any, *, dtype: Any, generator: Any) -> Any:
        return like("rand_like", uniform(0.0, 1.0), x, dtype, generator)

    def randn_like(x: Any, *, dtype: Any, generator: Any) -> Any:
        return like("randn_like", normal(0.0, 1.0), x, dtype, generator)

    def like(name: str, distribution: Distribution, x: Any, dtype: Any, generator: Any) -> Any:
        dtype = x.dtype if dtype is None else dtype
        check_floating(name, dtype)
        return made_like(name, distribution, x, dtype, generator)

    def made_like(name: str, distribution: Distribution, x: Any, dtype: Any, generator: Any) -> Any:
        array = _plain(x)
        shape = tuple(array.shape)
        made = place.make(Draw(name, distribution, shape, dtype, device_of(array), generator))
        return Tensor(made) if type(x) is Tensor else made

    def bernoulli_of(x: Any, *, generator: Any) -> Any:
        check_floating("bernoulli", x.dtype)
        array = _plain(x)
        return made_like("bernoulli", bernoulli(array), x, x.dtype, generator)

    def bernoulli_p(x: Any, p: float, *, generator: Any) -> Any:
        return made_like("bernoulli", bernoulli(p), x, x.dtype, generator)

    def write(name: str, distribution: Distribution, x: Any, generator: Any) -> Any:
        array = _plain(x)
        shape = tuple(array.shape)
        draw = Draw(name, distribution, shape, array.dtype, device_of(array), generator)
        place.write(array, draw)
        return x

    def uniform_(x: Any, low: float, high: float, *, generator: Any) -> Any:
        check_floating("uniform_", x.dtype)
        return write("uniform_", uniform(low, high), x, generator)

    def normal_(x: Any, mean: float, std: float, *, generator: Any) -> Any:
        check_floating("normal_", x.dtype)
        return write("normal_", normal(mean, std), x, generator)

    def bernoulli_(x: Any, p: float, *, generator: Any) -> Any:
        return write("bernoulli_", bernoulli(p), x, generator)

    def native_dropout(x: Any, p: float, train: bool, *, generator: Any) -> Any:
        check_floating("native_dropout", x.dtype)
        kept = bernoulli(1.0 - p if train else 1.0)
        array = _plain(x)
        shape, dtype = tuple(array.shape), np.dtype(bool)
        draw = Draw("native_dropout", kept, shape, dtype, device_of(array), generator)
        mask = place.make(draw)
        result = place.masked(array, mask, dropout_scale(p, train))
        return (Tensor(result), Tensor(mask)) if type(x) is Tensor else (result, mask)

    return {
        "rand": rand,
        "randn": randn,
        "randint": randint,
        "randint.low": randint_low,
        "randperm": randperm,
        "rand_like": rand_like,
        "randn_like": randn_like,
        "bernoulli": bernoulli_of,
        "bernoulli.p": bernoulli_p,
        "uniform_": uniform_,
        "normal_": normal_,
        "bernoulli_": bernoulli_,
        "native_dropout": native_dropout,
    }


def dropout_scale(p: float, train: bool) -> float:
    """Return the factor by which dropout multiplies the elements that it keeps."""
    return 1.0 if not train else 0.0 if p == 1.0 else 1.0 / (1.0 - p)


def _checked_shape(name: str, size: Any) -> tuple[int, ...]:
    if any(extent < 0 for extent in size):
        raise ArgumentError(
            f"random::{name} was given the shape {list(size)}; expected extents of 0 or more"
        )
    return tuple(size)


def _plain(x: Any) -> Any:
    return x.array if type(x) is Tensor else x
