"""Whether dtypes are promoted that the array API standard promotes to none.

An array of integers and one of floating-point numbers have no common type in the standard, so
that an operator of ``array`` refuses them: libraries promote them to different ones. Much that was
written for NumPy counts on it all the same. JAX has the same choice, in
``jax.numpy_dtype_promotion``.

https://data-apis.org/array-api/2025.12/API_specification/type_promotion.html
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import Self

from opdispatch.local_state.mode_decorator import ModeDecorator

NUMPY_PROMOTION: ContextVar[bool] = ContextVar("opdispatch_numpy_promotion", default=False)
"""Whether this task promotes as NumPy does. Asked where a call would be refused otherwise."""


class numpy_dtype_promotion(ModeDecorator):  # noqa: N801 - a mode, as no_grad is one
    """Within it, dtypes are promoted as NumPy promotes them, where the standard leaves that open.

    A block, or a decorator; of this task, like ``no_grad``. ``numpy_dtype_promotion(False)`` is
    for a part that is to be as strict as ever. Calls to other processes do not take it along.
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
