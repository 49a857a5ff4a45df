"""The placeholder for a kernel in the daemon's dispatcher."""

from __future__ import annotations

from typing import Any

from opdispatch import DispatchKeySet, KernelFunction, OperatorHandle
from opdispatch.errors import InternalError


class KernelRoute:
    """A kernel's function in the daemon's dispatcher: the kernel's index in its library's batch.

    ``OperatorRegistry`` maps a registration to the library: versions refer to registrations, and
    those to kernels, but not the other way round, so a version is freed with the last reference to
    it.

    The daemon looks up slots and forwards calls itself, so that this function is never called.
    """

    def __init__(self, place: int, documentation: str) -> None:
        self.place = place
        self.__doc__ = documentation

    def __call__(self, op: OperatorHandle, keys: DispatchKeySet, stack: list[Any]) -> None:
        """Raise InternalError."""
        raise InternalError(f"the daemon was about to run the kernel of {op.name} itself")

    @classmethod
    def kernel(cls, place: int, documentation: str) -> KernelFunction:
        """Return a placeholder for the kernel at ``place`` in a library's batch."""
        return KernelFunction.from_boxed(cls(place, documentation))
