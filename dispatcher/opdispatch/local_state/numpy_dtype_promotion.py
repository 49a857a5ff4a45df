"""``numpy_dtype_promotion``: enables type promotion that the array API standard leaves undefined.

The standard does not define the result of mixing integer and floating-point arrays, since libraries
differ, so the operators of ``array`` raise an error by default. Code written for NumPy often relies
on such promotion. JAX has a similar option, ``jax.numpy_dtype_promotion``.

https://data-apis.org/array-api/2025.12/API_specification/type_promotion.html
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import Self

from opdispatch.local_state.mode_decorator import ModeDecorator

NUMPY_PROMOTION: ContextVar[bool] = ContextVar("opdispatch_numpy_promotion", default=False)
"""Whether this task promotes as NumPy does. Read only when a call would otherwise fail."""


class numpy_dtype_promotion(ModeDecorator):  # noqa: N801 - a mode, as no_grad is one
    """Promotes dtypes as NumPy does where the array API standard leaves promotion undefined.

    A context manager and decorator that affects the current task, like ``no_grad``.
    ``numpy_dtype_promotion(False)`` restores the strict rules within a block. The setting is not
    sent to other processes.
    """

    def __init__(self, enabled: bool = True) -> None:
        self._enabled = enabled
        self._previous: list[bool] = []

    def __enter__(self) -> Self:
        self._previous.append(NUMPY_PROMOTION.get())
        NUMPY_PROMOTION.set(self._enabled)
        return self

    def __exit__(self, *exc: object) -> None:
        NUMPY_PROMOTION.set(self._previous.pop())

    def clone(self) -> Self:
        """Return a new instance."""
        return type(self)(self._enabled)
