"""Generate random arrays in host memory, on a GPU, or as shapes only (Meta)."""

from __future__ import annotations

import functools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, ClassVar, NamedTuple

import numpy as np

from opdispatch.arrays import MetaArray, split_device
from opdispatch.arrays.cupy_errors import import_cupy
from opdispatch.arrays.size_limits import is_of_possible_size
from opdispatch.errors import ArgumentError, DeviceError
from opdispatch.native.random.distributions import Distribution
from opdispatch.native.random.philox_cuda import philox_words
from opdispatch.tensors.generator import Generator, default_generator, words_from


class Draw(NamedTuple):
    """A random array to generate: operator name, distribution, shape, dtype, device, generator."""

    name: str
    distribution: Distribution
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    device: str | None
    """None means the current device."""
    generator: Any

    def fill(self, library: Any, place: str, words: Callable[[Any, int], Any]) -> Any:
        """Return the array, computed with ``library`` from ``words(state, count)``.

        Advances the generator by the words used. Raises ArgumentError and DeviceError for a
        ``generator`` that is not one of ``place``.
        """
        size = math.prod(self.shape)
        count = self.distribution.count(size, self.dtype)
        state = _generator_for(self.name, self.generator, place).reserve(count)
        made = self.distribution.values(library, words(state, count), size, self.dtype)
        return made.astype(self.dtype, copy=False).reshape(self.shape)


class Place(ABC):
    """A device type on which random arrays are generated or filled in place."""

    key: ClassVar[str]
    """The dispatch key under which its kernels are registered."""

    @abstractmethod
    def make(self, draw: Draw) -> Any:
        """Return a new array of ``draw``'s shape and dtype, on its device.

        Raises ArgumentError if ``draw.generator`` is not a Generator, DeviceError if it is one of
        another device.
        """

    def write(self, target: Any, draw: Draw) -> None:
        """Fill ``target``, of ``draw``'s shape and dtype, in place."""
        target[...] = self.make(draw)

    def masked(self, array: Any, mask: Any, scale: float) -> Any:
        """Return ``array * scale`` where ``mask`` is set, and 0 elsewhere."""
        return array * mask.astype(array.dtype) * array.dtype.type(scale)


class Host(Place):
    """Host memory: NumPy arrays."""

    key = "CPU"

    def make(self, draw: Draw) -> Any:
        """See ``Place``."""
        return draw.fill(np, "cpu", words_from)


class Cuda(Place):
    """A GPU: CuPy arrays, with the same random words as on the host."""

    key = "CUDA"

    def make(self, draw: Draw) -> Any:
        """See ``Place``."""
        if not is_of_possible_size(draw.shape):  # see Note [Sizes that wrap around]
            raise ArgumentError(
                f"random::{draw.name} was given the shape {list(draw.shape)}, of more elements "
                "than an array can have"
            )
        cupy = import_cupy(draw.device or "cuda")
        number = split_device(draw.device)[1] if draw.device is not None else None
        with cupy.cuda.Device(number) if number is not None else nullcontext():
            place = f"cuda:{cupy.cuda.runtime.getDevice()}"
            return draw.fill(cupy, place, functools.partial(philox_words, cupy))


class Nowhere(Place):
    """Meta arrays, without elements. An explicit generator still advances as if there were some."""

    key = "Meta"

    def make(self, draw: Draw) -> Any:
        """See ``Place``."""
        if draw.generator is not None:
            count = draw.distribution.count(math.prod(draw.shape), draw.dtype)
            _checked(draw.name, draw.generator).reserve(count)
        return MetaArray(draw.shape, draw.dtype)

    def write(self, target: Any, draw: Draw) -> None:
        """Check and advance the generator; write nothing."""
        self.make(draw)

    def masked(self, array: Any, mask: Any, scale: float) -> Any:
        """Return a meta array of the shape and dtype of ``array``."""
        return MetaArray(array.shape, array.dtype)


PLACES: tuple[Place, ...] = (Host(), Cuda(), Nowhere())
"""All places; kernels are registered for each."""


def _checked(name: str, generator: Any) -> Generator:
    if isinstance(generator, Generator):
        return generator
    raise ArgumentError(
        f"random::{name} takes an opdispatch.Generator, but was given one of "
        f"{type(generator).__module__}.{type(generator).__qualname__}"
    )


def _generator_for(name: str, generator: Any, device: str) -> Generator:
    """Return ``generator``, or the device's default if None.

    Raises ArgumentError for another type, DeviceError for a generator of another device.
    """
    if generator is None:
        return default_generator(device)
    found = _checked(name, generator)
    wanted, given = split_device(device), split_device(found.device)
    if wanted[0] != given[0] or (given[1] is not None and wanted[1] not in (None, given[1])):
        raise DeviceError(
            f"Expected a {device!r} device type for generator but found {found.device!r} (in a "
            f"call of random::{name})",
            hint="make one with opdispatch.Generator(device)",
        )
    return found
