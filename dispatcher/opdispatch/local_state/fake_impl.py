"""Fake kernels, and the context that they get from ``get_ctx``.

Mirrors ``torch/_library/fake_impl.py``. There are no symbolic sizes: the fake kernel of an operator
with a data-dependent result shape calls ``new_dynamic_size``, which raises.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NoReturn

from opdispatch.errors import ArgumentError, DataDependentOutputError


class FakeImplCtx:
    """The context of a fake kernel's call."""

    def __init__(self, operator: str, *, is_fake: bool) -> None:
        self.operator = operator
        self.is_fake = is_fake
        """True for a call with fake tensors, False for one with tensors on ``meta``."""

    def new_dynamic_size(self, *, min: int = 0, max: int | None = None) -> NoReturn:
        """Raise DataDependentOutputError, because a result's size depends on values.

        ``min`` and ``max`` are the bounds of the size. Raises ArgumentError for invalid bounds.
        """
        if min < 0 or (max is not None and max < min):
            raise ArgumentError(
                f"new_dynamic_size of {self.operator} was given min={min} and max={max}; expected "
                "0 <= min <= max",
                operator=self.operator,
            )
        raise self._refusal("fake tensors have none")

    def _refusal(self, why: str) -> DataDependentOutputError:
        return DataDependentOutputError(
            f"the shape of what {self.operator} returns depends on the values of its arguments, "
            f"and {why}",
            hint="call it with tensors that have elements",
            operator=self.operator,
        )


_CTX: ContextVar[FakeImplCtx | None] = ContextVar("opdispatch_fake_impl_ctx", default=None)


def get_ctx() -> FakeImplCtx | None:
    """Return the context of the running fake kernel; None outside of fake kernels.

    Raises DataDependentOutputError in a call with tensors on ``meta``, as PyTorch does, since only
    kernels with data-dependent results need the context. As ``torch.library.get_ctx``.
    """
    ctx = _CTX.get()
    if ctx is not None and not ctx.is_fake:
        raise ctx._refusal("tensors on meta have none")
    return ctx


@contextmanager
def fake_call(operator: str) -> Iterator[None]:
    """Run fake kernels in the block with the context of a call with fake tensors."""
    token = _CTX.set(FakeImplCtx(operator, is_fake=True))
    try:
        yield
    finally:
        _CTX.reset(token)


def fake_kernel(operator: str, fn: Callable[..., Any]) -> Callable[..., Any]:
    """Return the Meta kernel for a function passed to ``register_fake``."""

    @functools.wraps(fn)
    def kernel(*args: Any, **kwargs: Any) -> Any:
        ctx = _CTX.get()
        if ctx is not None and ctx.operator == operator and ctx.is_fake:
            return fn(*args, **kwargs)
        token = _CTX.set(FakeImplCtx(operator, is_fake=False))
        try:
            return fn(*args, **kwargs)
        finally:
            _CTX.reset(token)

    return kernel
