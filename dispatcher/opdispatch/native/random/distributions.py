"""Random words as numbers of a distribution: what the kernels of all devices have in common.

A distribution says how many words of 64 bits so many elements take, which depends on nothing but
their number and type, and what they are made to. ``xp`` is the namespace of the array library whose
arrays the words are in.
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
    """How random words become elements."""

    count: Callable[[int, Any], int]
    """How many words so many elements of a dtype take."""
    values: Callable[..., Any]
    """Of ``(xp, words, size, dtype)``: so many elements, in a flat array that may have another
    type."""


@functools.cache
def _digits_of(dtype: Any) -> int:
    """Return the number of binary digits of its numbers or of their parts; 0 for other types."""
    if dtype.kind == "c":
        return _DIGITS.get(f"float{4 * dtype.itemsize}", 0)
    return _DIGITS.get(dtype.name, 0)


def check_floating(name: str, dtype: Any) -> None:
    """Raise ArgumentError unless the numbers of a continuous distribution can be of that type."""
    if not _digits_of(dtype):
        raise ArgumentError(
            f"random::{name} makes numbers of {', '.join([*_DIGITS, *_COMPLEX])}, not of {dtype}"
        )


def check_bounds(name: str, low: int, high: int, dtype: Any) -> None:
    """Raise ArgumentError unless there are numbers from ``low`` to below ``high``, all of that
    type."""
    if high <= low:
        raise ArgumentError(
            f"random::{name} makes numbers from {low} to below {high}: there is none"
        )
    if dtype.kind in "iu":
        bits = 8 * dtype.itemsize
        least, most = (0, 2**bits) if dtype.kind == "u" else (-(2 ** (bits - 1)), 2 ** (bits - 1))
    elif dtype.kind != "c" and (digits := _digits_of(dtype)):
        most = 2**digits + 1
        least = 1 - most
    else:
        raise ArgumentError(f"random::{name} makes integers, of a real type, not of {dtype}")
    if low < least or high > most:
        raise ArgumentError(
            f"random::{name} makes numbers from {low} to below {high}, and {dtype} does not have "
            "all of them"
        )


def uniform(low: float, high: float) -> Distribution:
    """Return the distribution of real numbers from ``low`` to ``high``.

    Of complex ones, both parts.

    Multiples of the interval divided by 2**53, of float32 by 2**24, and so on. Raises ArgumentError
    unless the interval is finite and not negative.
    """
    if not (low <= high and math.isfinite(high - low)):
        raise ArgumentError(f"numbers cannot be uniformly distributed from {low} to {high}")

    def values(xp: Any, words: Any, size: int, dtype: Any) -> Any:
        digits = _digits_of(dtype)
        made = (words >> xp.uint64(64 - digits)).astype("float64") * 2.0**-digits
        if (low, high) != (0.0, 1.0):
            made = made * (high - low) + low
        return _complex(xp, made, dtype)

    return Distribution(_one_for_each_part, values)


def normal(mean: float, std: float) -> Distribution:
    """Return the normal distribution of that mean and standard deviation, by the Box-Muller method.

    A complex number has half the variance in each part. Raises ArgumentError for a negative one.
    """
    if not std >= 0:
        raise ArgumentError(f"a standard deviation is not negative, and {std} was given")

    def values(xp: Any, words: Any, size: int, dtype: Any) -> Any:
        pairs = words.reshape(-1, 2) >> xp.uint64(11)
        made = xp.empty(pairs.shape, "float64")
        # From above 0 up to 1, so that the logarithm is finite.
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
    """Return the distribution of integers from ``low`` to below ``high``, by remainder as in
    PyTorch.

    Of a range of n numbers, some are more likely by n / 2**64.
    """

    def values(xp: Any, words: Any, size: int, dtype: Any) -> Any:
        made = words if high - low == 2**64 else words % xp.uint64(high - low)
        made = made + xp.uint64(low % 2**64)  # counts on from 0 after 2**64 - 1
        return made if dtype.kind == "u" else made.view("int64")

    return Distribution(_one_for_each, values)


def permutation() -> Distribution:
    """Return the distribution of permutations of the integers from 0 up.

    The order of their words.
    """

    def values(xp: Any, words: Any, size: int, dtype: Any) -> Any:
        return xp.argsort(words, kind="stable")

    return Distribution(_one_for_each, values)


def bernoulli(p: Any) -> Distribution:
    """Return the distribution of 1 with probability ``p``, a number or an array of them, and else
    0.

    Raises ArgumentError, of a number at once, unless they are from 0 to 1.
    """
    if isinstance(p, float):
        _check_probability(0 <= p <= 1, p)

    def values(xp: Any, words: Any, size: int, dtype: Any) -> Any:
        made = (words >> xp.uint64(11)).astype("float64") * 2.0**-53
        if isinstance(p, float):
            return made < p
        _check_probability(bool(xp.all((p >= 0) & (p <= 1))), "another one")
        return made < p.reshape(-1).astype("float64")

    return Distribution(_one_for_each, values)


def _check_probability(is_one: bool, given: object) -> None:
    if not is_one:
        raise ArgumentError(f"a probability is from 0 to 1, and {given} was given")


def _one_for_each(size: int, dtype: Any) -> int:
    return size


def _one_for_each_part(size: int, dtype: Any) -> int:
    return 2 * size if dtype.kind == "c" else size


def _complex(xp: Any, parts: Any, dtype: Any) -> Any:
    """Return adjacent numbers as the parts of complex ones, if that is the type."""
    return parts.view("complex128") if dtype.kind == "c" else parts
