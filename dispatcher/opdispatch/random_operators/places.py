"""Where random numbers are made: in host memory, on a GPU, or nowhere."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from contextlib import nullcontext
from typing import Any, ClassVar

import numpy as np

from opdispatch.arrays import MetaArray, split_device
from opdispatch.arrays.cupy_errors import import_cupy
from opdispatch.arrays.extents import is_of_possible_size
from opdispatch.errors import ArgumentError, DeviceError
from opdispatch.generator import Generator, default_generator, words_from
from opdispatch.random_operators.distributions import Distribution
from opdispatch.random_operators.philox_cuda import philox_words


class Place(ABC):
    """Makes arrays of random numbers, and writes them to arrays, on the devices of one type."""

    key: ClassVar[str]
    """The dispatch key of its kernels."""

    @abstractmethod
    def make(
        self,
        name: str,
        distribution: Distribution,
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
        device: str | None,
        generator: Any,
    ) -> Any:
        """An array of that shape and dtype on ``device``; None: on the one that is in use.

        Raises ArgumentError and DeviceError for what is no generator of the device's.
        """

    def write(
        self, name: str, distribution: Distribution, target: Any, device: str | None, generator: Any
    ) -> None:
        """Fills an array."""
        shape = tuple(target.shape)
        target[...] = self.make(name, distribution, shape, target.dtype, device, generator)

    def masked(self, array: Any, mask: Any, scale: float) -> Any:
        """The elements that a mask keeps, multiplied, and zeros."""
        return array * mask.astype(array.dtype) * array.dtype.type(scale)


class Host(Place):
    """NumPy's arrays."""

    key = "CPU"

    def make(
        self,
        name: str,
        distribution: Distribution,
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
        device: str | None,
        generator: Any,
    ) -> Any:
        """See ``Place``."""
        size = math.prod(shape)
        count = distribution.count(size, dtype)
        state = _generator_for(name, generator, "cpu").reserve(count)
        made = distribution.values(np, words_from(state, count), size, dtype)
        return made.astype(dtype, copy=False).reshape(shape)


class Cuda(Place):
    """CuPy's arrays: the same bits as on the host."""

    key = "CUDA"

    def make(
        self,
        name: str,
        distribution: Distribution,
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
        device: str | None,
        generator: Any,
    ) -> Any:
        """See ``Place``."""
        if not is_of_possible_size(shape):  # see Note [Sizes that wrap around]
            raise ArgumentError(
                f"random::{name} was asked for the shape {list(shape)}, of more elements than an "
                "array can have"
            )
        cupy = import_cupy(device or "cuda")
        number = split_device(device)[1] if device is not None else None
        with cupy.cuda.Device(number) if number is not None else nullcontext():
            place = f"cuda:{cupy.cuda.runtime.getDevice()}"
            size = math.prod(shape)
            count = distribution.count(size, dtype)
            state = _generator_for(name, generator, place).reserve(count)
            made = distribution.values(cupy, philox_words(cupy, state, count), size, dtype)
            return made.astype(dtype, copy=False).reshape(shape)


class Nowhere(Place):
    """Arrays without elements. A generator that is handed over goes on as if there were some."""

    key = "Meta"

    def make(
        self,
        name: str,
        distribution: Distribution,
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
        device: str | None,
        generator: Any,
    ) -> Any:
        """See ``Place``."""
        if generator is not None:
            _checked(name, generator).reserve(distribution.count(math.prod(shape), dtype))
        return MetaArray(shape, dtype)

    def write(
        self, name: str, distribution: Distribution, target: Any, device: str | None, generator: Any
    ) -> None:
        """Writes nothing."""
        self.make(name, distribution, tuple(target.shape), target.dtype, device, generator)

    def masked(self, array: Any, mask: Any, scale: float) -> Any:
        """As it is."""
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
    """The one that is given, or the device's own. Raises DeviceError for another device's."""
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
