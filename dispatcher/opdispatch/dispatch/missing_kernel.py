"""Errors for calls that no kernel serves: which key they arrived at, and why.

Mirrors ``OperatorEntry::reportError`` of PyTorch 2.13.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from opdispatch.dispatch.dispatch_table import AMBIGUOUS
from opdispatch.errors import AmbiguousKernelError, NoKernelError

if TYPE_CHECKING:
    from opdispatch.dispatch.operator_state import OperatorState
    from opdispatch.dispatch.registration import Registration


def missing_kernel_error(
    state: OperatorState,
    operator: str,
    arrived: str,
    reason: str,
    registration: Registration | None,
) -> NoKernelError | AmbiguousKernelError:
    """Return the error for a call of ``operator`` that arrived at the key ``arrived``.

    ``registration`` and ``reason`` are those of its slot: None, or a kernel that falls through.
    """
    if reason == AMBIGUOUS:
        return AmbiguousKernelError(
            f"{operator} has a CompositeImplicitAutograd kernel and a kernel for a backend "
            "that shares AutogradOther, so which of them autograd should use is ambiguous",
            hint="register a kernel for AutogradOther, or CompositeExplicitAutograd instead",
            operator=operator,
            key=arrived,
        )
    if registration is not None:
        what = f"{operator} falls through at {arrived}, which a redispatch cannot do"
    elif arrived == "Named":
        what = (
            f"{operator} is not yet supported with named tensors: call it with tensors whose "
            "names are dropped, `tensor.rename(None)`, and name its result"
        )
    elif arrived == "Undefined":
        what = f"{operator} was called without tensor arguments, and has no kernel for that"
    else:
        what = f"{operator} has no kernel for arguments from the {arrived} backend"
    error = no_kernel_error(state, operator, arrived, what)
    if arrived == "Undefined" and registration is None:
        error.hint = (
            "register one for CompositeExplicitAutograd, which needs no tensor; tensors in a "
            "Dict do not choose a kernel"
        )
    return error


def no_kernel_error(state: OperatorState, operator: str, key: str, what: str) -> NoKernelError:
    """Return the error for a call described by ``what``, with the keys that have kernels."""
    served = [str(k) for k in state.keys_with_kernel()]
    have = f"kernels serve {_shorten(served)}" if served else "no key has a kernel"
    return NoKernelError(f"{what}; {have}", operator=operator, key=key, available=", ".join(served))


def _shorten(names: Sequence[str], most: int = 12) -> str:
    if len(names) <= most:
        return ", ".join(names)
    return f"{', '.join(names[:most])} and {len(names) - most} more"
