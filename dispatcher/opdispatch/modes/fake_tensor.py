"""Fake tensors: shapes, element types and devices, without elements and without devices.

    from opdispatch import array_api as xp
    from opdispatch.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        x = xp.zeros((1024, 1024), device="cuda")       # no GPU is needed
        print((x @ x).device)                           # cuda:0

Mirrors ``torch/_subclasses/fake_tensor.py``. To import it gives the key Fake its fallback.
"""

from __future__ import annotations

from contextvars import Token
from typing import Any, Self

from opdispatch.arrays import FakeArray
from opdispatch.errors import ArgumentError
from opdispatch.functionalities.fake import ALLOWS_REAL, make_fake, run_on_meta
from opdispatch.keys.dispatch_key import DispatchKey
from opdispatch.library.library import Library
from opdispatch.local_state.local_dispatch_key_set import IncludeDispatchKeyGuard
from opdispatch.tensors.tensor import Tensor

lib = Library("_", "IMPL")
lib.fallback(run_on_meta, "Fake")


class FakeTensorMode:
    """A block in which operators make fake tensors, of any device that PyTorch has a name for.

    A fake tensor stays one outside of the block, too; what is made there of no tensor is real. With
    ``allow_non_fake_inputs``, a tensor with elements counts for what it would be as a fake one;
    else it is an ArgumentError, but for those of the host without dimensions. Blocks may lie
    in each other; the mode may be entered again. It is of the current thread or task.
    """

    def __init__(self, *, allow_non_fake_inputs: bool = False) -> None:
        self.allow_non_fake_inputs = allow_non_fake_inputs
        self._entered: list[tuple[IncludeDispatchKeyGuard, Token[bool]]] = []

    def from_tensor(self, tensor: Any) -> Tensor:
        """Return a fake tensor of the shape, dtype and device of a tensor.

        A leaf that requires gradients if that does. A fake tensor is returned as it is. Raises
        ArgumentError for any value but a dense tensor.
        """
        given = tensor if isinstance(tensor, Tensor) else Tensor(tensor)
        if isinstance(given.array, FakeArray):
            return given
        if given.layout != "strided":
            raise ArgumentError(f"a fake tensor is dense, and this one is {given.layout}")
        return Tensor(make_fake(given.array), requires_grad=given.requires_grad)

    def __enter__(self) -> Self:
        guard = IncludeDispatchKeyGuard(DispatchKey.Fake)
        guard.__enter__()
        self._entered.append((guard, ALLOWS_REAL.set(self.allow_non_fake_inputs)))
        return self

    def __exit__(self, *exc: object) -> None:
        guard, token = self._entered.pop()
        ALLOWS_REAL.reset(token)
        guard.__exit__(*exc)


def is_fake(value: Any) -> bool:
    """Return whether it is a tensor without elements that pretends to be on a device."""
    array = value.array if isinstance(value, Tensor) else value
    return isinstance(array, FakeArray)
