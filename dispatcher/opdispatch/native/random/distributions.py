"""Convert random 64-bit words to numbers of a distribution, on any device.

The number of words depends only on the number and dtype of the elements, so that a generator can
reserve them before they are computed. ``xp`` is the array namespace of the words: NumPy or CuPy.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from opdispatch.errors import ArgumentError

_DIGITS = {"float64": 53, "float32": 24, "float16": 11, "bfloat16": 8}
_COMPLEX = ("complex64", "complex128")


@dataclass(frozen=True, slots=True)
class Distribution:
    """A conversion from random uint64 words to elements."""

    count: Callable[[int, Any], int]
    """``count(size, dtype)`` is the number of words needed for ``size`` elements."""
    values: Callable[..., Any]
    """``values(xp, words, size, dtype)`` is a flat array of ``size`` elements; its dtype may
    differ from ``dtype``, to which the caller converts it."""


@functools.cache
def _digits_of(dtype: Any) -> int:
    """Return the precision in bits of a floating dtype, or of a complex dtype's parts; else 0."""
    if dtype.kind == "c":
        return _DIGITS.get(f"float{4 * dtype.itemsize}", 0)
    return _DIGITS.get(dtype.name, 0)


def check_floating(name: str, dtype: Any) -> None:
    """Raise ArgumentError unless ``dtype`` is a supported floating or complex dtype."""
    if not _digits_of(dtype):
        raise ArgumentError(
            f"random::{name} makes numbers of {', '.join([*_DIGITS, *_COMPLEX])}, not of {dtype}"
        )


def check_bounds(name: str, low: int, high: int, dtype: Any) -> None:
    """Raise ArgumentError if ``low >= high``, or if ``dtype`` cannot represent every integer in
    ``[low, high)``."""
    if high <= low:
        raise ArgumentError(
            f"random::{name} was given low={low} and high={high}; expected low < high"
        )
    if dtype.kind in "iu":
        bits = 8 * dtype.itemsize
        least, most = (0, 2**bits) if dtype.kind == "u" else (-(2 ** (bits - 1)), 2 ** (bits - 1))
    elif dtype.kind != "c" and (digits := _digits_of(dtype)):
        most = 2**digits + 1
        least = 1 - most
    else:
        raise ArgumentError(f"random::{name} makes integers of a real dtype, not of {dtype}")
    if low < least or high > most:
        raise ArgumentError(
            f"random::{name} makes integers from {low} to below {high}, and {dtype} cannot "
            "represent all of them"
        )


def uniform(low: float, high: float) -> Distribution:
    """Return the uniform distribution on ``[low, high)``; of complex numbers, for each part.

    Numbers are multiples of ``(high - low) / 2**p``, with ``p`` the dtype's precision: 53 for
    float64, 24 for float32. Raises ArgumentError unless ``high - low`` is finite and not negative.
    """
    if not (low <= high and math.isfinite(high - low)):
        raise ArgumentError(
            f"the interval is from {low} to {high}; expected finite bounds, low <= high"
        )

    def values(xp: Any, words: Any, size: int, dtype: Any) -> Any:
        digits = _digits_of(dtype)
        made = (words >> xp.uint64(64 - digits)).astype("float64") * 2.0**-digits
        if (low, high) != (0.0, 1.0):
            made = made * (high - low) + low
        return _complex(xp, made, dtype)

    return Distribution(_one_for_each_part, values)


def normal(mean: float, std: float) -> Distribution:
    """Return the normal distribution with that mean and standard deviation, by Box-Muller.

    Each part of a complex number has half the variance. Raises ArgumentError if ``std < 0``.
    """
    if not std >= 0:
        raise ArgumentError(f"the standard deviation is {std}; expected 0 or more")

    def values(xp: Any, words: Any, size: int, dtype: Any) -> Any:
        pairs = words.reshape(-1, 2) >> xp.uint64(11)
        made = xp.empty(pairs.shape, "float64")
        # In (0, 1], so that the logarithm is finite.
        radius = xp.sqrt(-2.0 * xp.log((pairs[:, 0].astype("float64") + 1.0) * 2.0**-53))
        angle = pairs[:, 1].astype("float64") * (2.0**-53 * 2 * math.pi)
        made[:, 0] = radius * xp.cos(angle)
        made[:, 1] = radius * xp.sin(angle)
        made = made.reshape(-1)
        if dtype.kind == "c":
            return _complex(xp, made * (std * math.sqrt(0.5)), dtype) + mean
        return made[:size] * std + mean

    def count(size: int, dtype: Any) -> int:
        return 2 * size if dtype.kind == "c" else size + size % 2

    return Distribution(count, values)


def integers(low: int, high: int) -> Distribution:
    """Return the distribution of integers in ``[low, high)``, by remainder as in PyTorch.

    For a range of n numbers, the probabilities differ by a relative error of up to n / 2**64.
    """

    def values(xp: Any, words: Any, size: int, dtype: Any) -> Any:
        made = words if high - low == 2**64 else words % xp.uint64(high - low)
        made = made + xp.uint64(low % 2**64)  # wraps modulo 2**64
        return made if dtype.kind == "u" else made.view("int64")

    return Distribution(_one_for_each, values)


def permutation() -> Distribution:
    """Return the distribution of permutations of ``range(size)``: the argsort of random words."""

    def values(xp: Any, words: Any, size: int, dtype: Any) -> Any:
        return xp.argsort(words, kind="stable")

    return Distribution(_one_for_each, values)


def bernoulli(p: Any) -> Distribution:
    """Return the Bernoulli distribution: 1 with probability ``p``, a number or an array, else 0.

    Raises ArgumentError unless ``p`` is in [0, 1]: at once for a number, on drawing for an array.
    """
    if isinstance(p, float):
        _check_probability(0 <= p <= 1, p)

    def values(xp: Any, words: Any, size: int, dtype: Any) -> Any:
        made = (words >> xp.uint64(11)).astype("float64") * 2.0**-53
        if isinstance(p, float):
            return made < p
        _check_probability(bool(xp.all((p >= 0) & (p <= 1))), "out of range")
        return made < p.reshape(-1).astype("float64")

    return Distribution(_one_for_each, values)


def _check_probability(is_one: bool, given: object) -> None:
    if not is_one:
        raise ArgumentError(f"the probability is {given}; expected a number from 0 to 1")


def _one_for_each(size: int, dtype: Any) -> int:
    return size


def _one_for_each_part(size: int, dtype: Any) -> int:
    return 2 * size if dtype.kind == "c" else size


def _complex(xp: Any, parts: Any, dtype: Any) -> Any:
    """Return adjacent pairs as complex numbers if ``dtype`` is complex, else ``parts``."""
    return parts.view("complex128") if dtype.kind == "c" else parts
