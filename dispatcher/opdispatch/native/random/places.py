"""Where random numbers are made: in host memory, on a GPU, or nowhere."""

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
from opdispatch.arrays.extents import is_of_possible_size
from opdispatch.errors import ArgumentError, DeviceError
from opdispatch.native.random.distributions import Distribution
from opdispatch.native.random.philox_cuda import philox_words
from opdispatch.tensors.generator import Generator, default_generator, words_from


class Draw(NamedTuple):
    """An array of random numbers to make: for which operator, of what, by which generator."""

    name: str
    distribution: Distribution
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    device: str | None
    """None: the one that is in use."""
    generator: Any

    def fill(self, library: Any, place: str, words: Callable[[Any, int], Any]) -> Any:
        """Return the array of ``library``, of the words that a generator's state gives there."""
        size = math.prod(self.shape)
        count = self.distribution.count(size, self.dtype)
        state = _generator_for(self.name, self.generator, place).reserve(count)
        made = self.distribution.values(library, words(state, count), size, self.dtype)
        return made.astype(self.dtype, copy=False).reshape(self.shape)


class Place(ABC):
    """Makes arrays of random numbers, and writes them to arrays, on the devices of one type."""

    key: ClassVar[str]
    """The dispatch key of its kernels."""

    @abstractmethod
    def make(self, draw: Draw) -> Any:
        """Return an array of its shape and dtype, on its device.

        Raises ArgumentError and DeviceError for anything but a generator of the device's.
        """

    def write(self, target: Any, draw: Draw) -> None:
        """Fill an array of that shape and dtype."""
        target[...] = self.make(draw)

    def masked(self, array: Any, mask: Any, scale: float) -> Any:
        """Return the elements that a mask keeps, multiplied, and zeros."""
        return array * mask.astype(array.dtype) * array.dtype.type(scale)


class Host(Place):
    """NumPy's arrays."""

    key = "CPU"

    def make(self, draw: Draw) -> Any:
        """See ``Place``."""
        return draw.fill(np, "cpu", words_from)


class Cuda(Place):
    """CuPy's arrays: the same bits as on the host."""

    key = "CUDA"

    def make(self, draw: Draw) -> Any:
        """See ``Place``."""
        if not is_of_possible_size(draw.shape):  # see Note [Sizes that wrap around]
            raise ArgumentError(
                f"random::{draw.name} was asked for the shape {list(draw.shape)}, of more elements "
                "than an array can have"
            )
        cupy = import_cupy(draw.device or "cuda")
        number = split_device(draw.device)[1] if draw.device is not None else None
        with cupy.cuda.Device(number) if number is not None else nullcontext():
            place = f"cuda:{cupy.cuda.runtime.getDevice()}"
            return draw.fill(cupy, place, functools.partial(philox_words, cupy))


class Nowhere(Place):
    """Arrays without elements. A generator that is handed over goes on as if there were some."""

    key = "Meta"

    def make(self, draw: Draw) -> Any:
        """See ``Place``."""
        if draw.generator is not None:
            count = draw.distribution.count(math.prod(draw.shape), draw.dtype)
            _checked(draw.name, draw.generator).reserve(count)
        return MetaArray(draw.shape, draw.dtype)

    def write(self, target: Any, draw: Draw) -> None:
        """Write nothing."""
        self.make(draw)

    def masked(self, array: Any, mask: Any, scale: float) -> Any:
        """Return the array as it is."""
        return MetaArray(array.shape, array.dtype)


PLACES: tuple[Place, ...] = (Host(), Cuda(), Nowhere())
"""Those that there are kernels for."""


def _checked(name: str, generator: Any) -> Generator:
    if isinstance(generator, Generator):
        return generator
    raise ArgumentError(
        f"random::{name} takes an opdispatch.Generator, and was given one of "
        f"{type(generator).__module__}.{type(generator).__qualname__}"
    )


def _generator_for(name: str, generator: Any, device: str) -> Generator:
    """Return the given generator, or the device's own. Raises DeviceError for another device's."""
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
