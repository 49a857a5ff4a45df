"""The operators of a daemon by dispatch keys, as the page shows them."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

from opdispatch import parse_dispatch_key
from opdispatch.errors import OpdispatchError
from opdispatch.keys.dispatch_key import is_alias_key
from opdispatch_server.daemon.servicers.registry_view import RegistryView
from opdispatch_wire.v1 import registry_pb2 as pb

MOST_CELLS: Final = 200
"""How many operators one request may ask for."""

EPOCHS_KEPT: Final = 256

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
"""The columns that are there without a kernel of their own."""

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
"""Where the kernel of a cell comes from, by the reason that the dispatch table gives."""


class _Row(NamedTuple):
    libraries: tuple[str, ...]
    keys: tuple[str, ...]
    schema: str


class _Change(NamedTuple):
    epoch: int
    names: frozenset[str]


class OperatorGrid:
    """The operators, and which of them have changed. Any thread may ask: ``_lock`` guards all."""

    def __init__(self, view: RegistryView) -> None:
        self._view = view
        self._lock = threading.Lock()
        self._epoch = -1
        self._rows: dict[str, _Row] = {}
        self._changes: deque[_Change] = deque(maxlen=EPOCHS_KEPT)

    def since(self, epoch: int) -> dict[str, Any]:
        """Return the rows that have changed since an epoch, or all where that is too long ago."""
        with self._lock:
            before = self._epoch
            self._update()
            rows = self._rows
            known = self._changes[0].epoch if self._changes else self._epoch
            is_whole = not known <= epoch <= max(before, self._epoch) or epoch < 0
            if is_whole:
                names: Iterable[str] = rows
            else:
                names = set().union(*(c.names for c in self._changes if c.epoch > epoch))
            changed = [[name, rows[name].libraries] for name in sorted(names) if name in rows]
            gone = sorted(name for name in names if name not in rows)
            return {
                "epoch": self._epoch,
                "whole": is_whole,
                "changed": changed,
                "removed": gone,
                "columns": _columns(rows.values()),
            }

    def _update(self) -> None:
        epoch = self._view.epoch
        if epoch == self._epoch:
            return
        message = pb.ListOperatorsReply.FromString(self._view.list_operators(""))
        rows = {
            each.name: _Row(tuple(each.libraries), tuple(each.keys), each.schema)
            for each in message.operators
        }
        changed = {
            name
            for name in rows.keys() | self._rows.keys()
            if rows.get(name) != self._rows.get(name)
        }
        self._rows, self._epoch = rows, epoch
        self._changes.append(_Change(epoch, frozenset(changed)))

    def cells(self, names: Sequence[str]) -> dict[str, dict[str, list[str]]]:
        """Return the cells of operators by dispatch key: origin, reason, and where registered.

        Operators that are not there have none; one key that has no kernel has no cell.
        """
        found: dict[str, dict[str, list[str]]] = {}
        for name in names[:MOST_CELLS]:
            try:
                table = self._view.dispatch_table(name).rows
            except OpdispatchError:  # it has just gone
                found[name] = {}
                continue
            found[name] = {row.key: [origin_of(row), row.reason, row.kernel] for row in table}
        return found

    def describe(self, name: str) -> dict[str, Any]:
        """Return everything about one operator. Raises OperatorNotFoundError."""
        about = self._view.describe_operator(name)
        return {
            "name": about.summary.name,
            "schema": about.summary.schema,
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


def _columns(rows: Iterable[_Row]) -> list[str]:
    """Return the columns: those that are always there, and all keys with a kernel of their own."""
    used = {key for row in rows for key in row.keys}
    own = {key for key in used if not is_alias_key(parse_dispatch_key(key))}
    return [*ALWAYS, *sorted(own.difference(ALWAYS))]
