"""Fake tensors: tensors with a shape, a dtype and a device, but without elements.

    from opdispatch import array_api as xp
    from opdispatch.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        x = xp.zeros((1024, 1024), device="cuda")       # no GPU is needed
        print((x @ x).device)                           # cuda:0

Mirrors ``torch/_subclasses/fake_tensor.py``. Importing the module registers the fallback of the key
Fake.
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
    """A mode in which operators create fake tensors, on any device type that PyTorch knows.

    Fake tensors can also be used outside of the block, but new tensors created there are real. With
    ``allow_non_fake_inputs``, real tensor arguments are converted to fake ones; otherwise, they
    raise ArgumentError, except for 0-d tensors on the CPU. The mode applies to the current thread
    or task; blocks can be nested, and the mode can be entered again.
    """

    def __init__(self, *, allow_non_fake_inputs: bool = False) -> None:
        self.allow_non_fake_inputs = allow_non_fake_inputs
        self._entered: list[tuple[IncludeDispatchKeyGuard, Token[bool]]] = []

    def from_tensor(self, tensor: Any) -> Tensor:
        """Create a fake tensor with the shape, dtype and device of ``tensor``.

        It is a leaf, and requires gradients if ``tensor`` does. A fake tensor is returned as is.
        Raises ArgumentError for anything but a dense tensor.
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
    """Return whether ``value`` is a fake tensor."""
    array = value.array if isinstance(value, Tensor) else value
    return isinstance(array, FakeArray)
