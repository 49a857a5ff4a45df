"""Dumps of an operator: its registrations and its dispatch table, as rows and as text.

The texts are those of ``OperatorEntry::dumpState`` and ``dumpComputedTable`` of
``ATen/core/dispatch/OperatorEntry.cpp``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from opdispatch.boxing.kernel_function import KernelFunction
from opdispatch.dispatch.dispatch_key_extractor import is_fallthrough
from opdispatch.dispatch.dispatch_table import AMBIGUOUS
from opdispatch.dispatch.operator_state import OperatorState
from opdispatch.dispatch.registration import Registration
from opdispatch.keys.dispatch_key import DispatchKey, is_alias_key
from opdispatch.keys.dispatch_key_set import RUNTIME_KEYS


class TableRow(NamedTuple):
    """One line of a dumped table."""

    key: DispatchKey
    registered_at: str
    reason: str
    fallthrough: bool
    registration: Registration | None


class RegisteredKernel(NamedTuple):
    """A kernel of an operator; ``active`` unless a newer one for the same key covers it."""

    key: DispatchKey
    registration: Registration
    active: bool


def table_rows(state: OperatorState) -> list[TableRow]:
    """Return the computed dispatch table, Undefined first; keys without a kernel have no row."""
    rows = []
    for key in RUNTIME_KEYS:
        registration, reason = state.slot(key)
        if registration is not None:
            fallthrough = is_fallthrough(registration)
            rows.append(TableRow(key, registration.site, reason, fallthrough, registration))
        elif reason == AMBIGUOUS:
            rows.append(TableRow(key, "", reason, False, None))
    return rows


def format_table(rows: Iterable[TableRow]) -> str:
    """Format the rows as text, a line for each."""
    lines = []
    for row in rows:
        debug = row.registration.debug if row.registration else "ambiguous_autogradother"
        fallthrough = "fallthrough " if row.fallthrough else ""
        lines.append(f"{row.key}: {fallthrough}{debug} [{row.reason}]\n")
    return "".join(lines)


def format_registrations(
    name: str, definition: Registration | None, kernels: Iterable[RegisteredKernel]
) -> str:
    """Format the definition, if there is one, then a line for each kernel."""
    lines = [f"name: {name}"]
    if definition is not None:
        lines += [f"schema: {definition.schema}", f"debug: {definition.debug}"]
        lines += [f"alias analysis kind: {definition.alias_analysis}"]
    else:
        lines += ["schema: (none)"]
    for key, registration, active in kernels:
        alias = "[alias]" if is_alias_key(key) else ""
        inactive = "" if active else " (inactive)"
        assert registration.kernel is not None
        text = _dumped(registration.kernel)
        lines.append(f"{key}{alias}{inactive}: {registration.debug} :: {text}")
    return "\n".join(lines) + "\n"


def _dumped(kernel: KernelFunction) -> str:
    """Return a kernel's signature and flags; as in PyTorch, "boxed" for one without a signature."""
    if kernel.signature is not None:
        return f"{kernel.signature} [ boxed unboxed ]"
    return f"(none) [ {'fallthrough ' if kernel.is_fallthrough else ''}boxed ]"
