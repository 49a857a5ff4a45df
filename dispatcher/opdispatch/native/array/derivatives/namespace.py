"""The namespace ``xp`` of formulas: ``opdispatch.array_api``, imported on first use.

Formulas may call all of its operators: these are registered before their derivatives.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from opdispatch.autograd.view_nodes import with_room_for
from opdispatch.functionalities.derivative import RESULT, Formulas, Forward
from opdispatch.local_state.lazy_imports import array_namespace, array_operators


class _Namespace:
    def __init__(self, find: Callable[[], Any]) -> None:
        self._find = find

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._find(), name)
        setattr(self, name, value)
        return value


xp: Any = _Namespace(array_namespace)
OPERATORS: Any = _Namespace(array_operators)
"""Operators that are not functions of the standard, such as ``OPERATORS.getitem``."""


def conj(x: Any) -> Any:
    """Return the complex conjugate; a real ``x`` is returned itself."""
    return xp.conj(x) if x.dtype.kind == "c" else x


def adjoint(x: Any) -> Any:
    """Return the conjugate transpose of each matrix."""
    return conj(xp.matrix_transpose(x))


def as_complex(x: Any) -> Any:
    """Return ``x`` in the complex type of the same precision."""
    return x if x.dtype.kind == "c" else xp.astype(x, xp.result_type(x.dtype, xp.complex64))


def zeros_like(grad: Any) -> Any:
    """Return the gradient of a function that is constant almost everywhere."""
    return xp.zeros_like(grad)


def masked(mask: Any, x: Any) -> Any:
    """Return ``x`` where the mask is set, zeros elsewhere."""
    return OPERATORS.where.ScalarOther(mask, x, 0.0)


def with_forward(forward: Forward, table: Mapping[str, Formulas]) -> dict[str, Formulas]:
    """Return ``table`` with ``forward`` as the forward-mode formula of entries without one."""
    return {name: {RESULT: forward, **formulas} for name, formulas in table.items()}


def direction(x: Any) -> Any:
    """Return the sign of ``x``; detached for real numbers.

    Otherwise its zero gradient would become NaN where it is multiplied by an infinity.
    """
    return xp.sign(x if x.dtype.kind == "c" else x.detach())


def zeros_for(shape: Any, grad: Any, *others: Any) -> Any:
    """Return writable zeros of that shape, with the dtype and device of ``grad``.

    They are batched by ``vmap`` if ``grad`` or any of ``others`` is, so that these can be written.
    """
    whole = xp.zeros(shape, dtype=grad.dtype, device=grad.device)
    return with_room_for(whole, grad, *others)


def copy_for(grad: Any, *others: Any) -> Any:
    """Return a writable copy of ``grad``, batched by ``vmap`` if any of ``others`` is."""
    return with_room_for(+grad, *others)
