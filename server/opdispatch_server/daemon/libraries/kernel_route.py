"""The stand-in for a kernel in the daemon's dispatcher."""

from __future__ import annotations

from typing import Any

from opdispatch import DispatchKeySet, KernelFunction, OperatorHandle
from opdispatch.errors import InternalError


class KernelRoute:
    """The function of a kernel in the daemon's dispatcher: its place in its library's batch.

    Whose batch that is, ``OperatorRegistry`` knows of the registration: a version has its
    registrations, they have their kernels, and those know nothing of it. So a version that is
    over goes with the last reference to it.

    The daemon looks slots up and forwards calls without waiting for them; so nothing here is
    ever called.
    """

    def __init__(self, place: int, documentation: str) -> None:
        self.place = place
        self.__doc__ = documentation

    def __call__(self, op: OperatorHandle, keys: DispatchKeySet, stack: list[Any]) -> None:
        """Raise InternalError."""
        raise InternalError(f"the daemon was about to run the kernel of {op.name} itself")

    @classmethod
    def kernel(cls, place: int, documentation: str) -> KernelFunction:
        """Return a kernel that stands for the one at ``place`` in a library's batch."""
        return KernelFunction.from_boxed(cls(place, documentation))
