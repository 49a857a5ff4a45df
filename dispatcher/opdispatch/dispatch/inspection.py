"""Queries about one operator that calls do not need.

Mirrors the methods of ``OperatorHandle`` (``ATen/core/dispatch/Dispatcher.h``) and the functions of
``torch._C`` that begin with ``_dispatch_``. Those about a *computed* kernel consult the dispatch
table, which includes composite kernels and fallbacks; the others consult what is registered for
exactly that key.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from opdispatch.dispatch.dispatch_key_extractor import is_fallthrough, table_key
from opdispatch.dispatch.operator_dump import TableRow
from opdispatch.dispatch.operator_handle import OperatorHandle
from opdispatch.errors import DispatchKeyError
from opdispatch.keys.dispatch_key import DispatchKey, is_alias_key, parse_dispatch_key
from opdispatch.keys.dispatch_key_set import DispatchKeySet, bits_of_key

if TYPE_CHECKING:
    from opdispatch.local_state.operator import Operator

UNOBSERVED_OPERATORS: Final = frozenset(
    {
        "aten::size",
        "aten::is_leaf",
        "aten::output_nr",
        "aten::_version",
        "aten::is_complex",
        "profiler::_record_function_enter",
        "profiler::_record_function_exit",
    }
)
"""The operators that a profiler does not record, as PyTorch lists them."""


def is_observed(op: Operator) -> bool:
    """Return whether a profiler should record the operator: all but a few cheap ones."""
    return op.name.name not in UNOBSERVED_OPERATORS


def has_kernel_for_any_dispatch_key(op: OperatorHandle, keys: DispatchKeySet) -> bool:
    """Return whether a kernel is registered for any of ``keys`` itself.

    Alias keys are not expanded.
    """
    return any(not is_alias_key(kernel.key) and keys.has(kernel.key) for kernel in op.kernels())


def is_kernel_for_dispatch_key_fallthrough(op: OperatorHandle, key: DispatchKey | str) -> bool:
    """Return whether the kernel registered for exactly ``key`` is a fallthrough.

    Raises NoKernelError if there is none.
    """
    key = parse_dispatch_key(key) if isinstance(key, str) else key
    for kernel in op.kernels():
        if kernel.key is key and kernel.active:
            return is_fallthrough(kernel.registration)
    raise op.no_kernel_error(str(key), f"{op.name} has no kernel registered for {key}")


def has_computed_kernel_for_dispatch_key(op: OperatorHandle, key: DispatchKey | str) -> bool:
    """Return whether the dispatch table has a row for ``key``, fallthrough and ambiguous included.

    A functionality with several backends stands for its CPU row. Raises DispatchKeyError for an
    alias key, which has no row.
    """
    return _find_row(op, key) is not None


def get_computed_kernel_for_dispatch_key(op: OperatorHandle, key: DispatchKey | str) -> TableRow:
    """Return the row of the dispatch table for ``key``: its kernel, and the reason.

    Raises NoKernelError if there is none, DispatchKeyError for an alias key.
    """
    row = _find_row(op, key)
    if row is None:
        raise op.no_kernel_error(str(key), f"{op.name} has no kernel for {key} in its table")
    return row


def _find_row(op: OperatorHandle, key: DispatchKey | str) -> TableRow | None:
    key = parse_dispatch_key(key) if isinstance(key, str) else key
    if is_alias_key(key):
        raise DispatchKeyError(
            f"the alias key {key} has no row in a dispatch table",
            hint="ask for one of the runtime keys that it stands for",
            key=str(key),
        )
    slot = table_key(bits_of_key(key))
    return next((row for row in op.table_rows() if row.key is slot), None)
