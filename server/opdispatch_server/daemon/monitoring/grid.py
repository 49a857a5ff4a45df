"""The operators of a daemon by dispatch keys, as the page shows them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from opdispatch import parse_dispatch_key
from opdispatch.errors import OpdispatchError
from opdispatch.keys.dispatch_key import is_alias_key
from opdispatch.schema.parser import parse_schema
from opdispatch_server.daemon.servicers.operator_log import OperatorLog
from opdispatch_server.daemon.servicers.registry_view import RegistryView
from opdispatch_wire.v1 import registry_pb2 as pb

MOST_CELLS: Final = 200
"""The most operators of one request for cells."""

FIRST_CELLS: Final = 40
"""The number of operators whose cells the first reply contains."""

ALWAYS: Final = (
    "CPU",
    "CUDA",
    "Meta",
    "AutogradCPU",
    "AutogradCUDA",
    "AutocastCPU",
    "FuncTorchBatched",
    "Functionalize",
)
"""The columns shown even if no operator has a kernel of its own for them."""

ORIGINS: Final = {
    "kernel": "exact",
    "autograd kernel": "alias",
    "math kernel": "composite",
    "default backend kernel": "composite",
    "nested kernel": "composite",
    "batched kernel": "composite",
    "backend fallback": "fallback",
    "ambiguous autogradother": "ambiguous",
}
"""The origin of a cell's kernel, by the reason in the dispatch table."""


class OperatorGrid:
    """The operators, and which of them have changed. Any thread may use it."""

    def __init__(self, view: RegistryView) -> None:
        self._view = view

    def since(self, log: OperatorLog, epoch: int | None) -> dict[str, Any]:
        """Return the rows changed since ``epoch``; all if it is None or no longer remembered."""
        found = log.since(epoch)
        names = [each.name for each in found.changed]
        # A page shows the first rows at once; it requests others as they become visible.
        first = self.cells(log, names[:FIRST_CELLS]) if found.is_whole else {}
        return {
            "epoch": found.epoch,
            "whole": found.is_whole,
            "changed": [[each.name, list(each.libraries)] for each in found.changed],
            "removed": found.gone,
            "columns": _columns(log.keys),
            "cells": first,
        }

    def cells(self, log: OperatorLog, names: Sequence[str]) -> dict[str, dict[str, list[str]]]:
        """Return the cells of operators by column: origin, reason, and where registered.

        Operators that do not exist are left out, as are cells without a kernel.
        """
        found: dict[str, dict[str, list[str]]] = {}
        columns = set(_columns(log.keys))
        for name in names[:MOST_CELLS]:
            try:
                table = self._view.dispatch_table(name).rows
            except OpdispatchError:  # it has just been removed
                found[name] = {}
                continue
            found[name] = {
                row.key: [origin_of(row), row.reason, row.kernel]
                for row in table
                if row.key in columns
            }
        return found

    def describe(self, name: str) -> dict[str, Any]:
        """Return everything about one operator. Raises OperatorNotFoundError."""
        about = self._view.describe_operator(name)
        return {
            "name": about.summary.name,
            "schema": about.summary.schema,
            "arguments": _arguments(about.summary.schema),
            "libraries": list(about.summary.libraries),
            "documentation": about.documentation,
            "defined_at": about.defined_at,
            "tags": list(about.tags),
            "errors": about.summary.kernel_errors,
            "kernels": [
                [k.key, k.registered_at, k.library, k.interpreter, k.active] for k in about.kernels
            ],
            "table": [
                [row.key, origin_of(row), row.reason, row.kernel]
                for row in self._view.dispatch_table(name).rows
            ],
        }


def origin_of(row: pb.TableRow) -> str:
    """Return where a cell's kernel comes from, in one word."""
    return "fallthrough" if row.fallthrough else ORIGINS.get(row.reason, "exact")


def _arguments(schema: str) -> list[list[str]]:
    """Return name, type and default of each argument; the default is empty if there is none."""
    found = parse_schema(schema).arguments if schema else ()
    return [
        [each.name, str(each.type), str(each.default) if each.has_default else ""] for each in found
    ]


def _columns(keys: Iterable[str]) -> list[str]:
    """Return the columns: the permanent ones, and all keys with a kernel of their own."""
    own = {key for key in keys if not is_alias_key(parse_dispatch_key(key))}
    return [*ALWAYS, *sorted(own.difference(ALWAYS))]
