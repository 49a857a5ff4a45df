"""The operators of the registry, and the epoch in which each last changed."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from opdispatch_server.daemon.servicers.registry_view import OperatorRow
from opdispatch_wire.v1 import registry_pb2 as pb

GONE_KEPT: Final = 10_000
"""How many removed operators are remembered."""


class OperatorChanges(NamedTuple):
    """The operators that have changed since an epoch."""

    epoch: int
    """The epoch up to which changes are included."""
    is_whole: bool
    """Whether these are all existing operators, because the epoch was too long ago."""
    changed: Sequence[pb.OperatorSummary]
    """In order of name."""
    gone: Sequence[str]


class OperatorLog:
    """Keeps the operators as of one epoch. Any thread may call it: ``_lock`` guards everything.

    On a new epoch, an unchanged operator costs one comparison of two objects.
    """

    def __init__(self, read: Callable[[Mapping[str, OperatorRow]], dict[str, OperatorRow]]) -> None:
        """Take ``read``, which is called with its previous result; see ``RegistryView``."""
        self._read = read
        self._lock = threading.Lock()
        self._epoch = -1
        self._rows: dict[str, OperatorRow] = {}
        self._changed: dict[str, int] = {}
        self._gone: OrderedDict[str, int] = OrderedDict()
        self._first = 0  # the first epoch since which every change is known
        self._keys: frozenset[str] = frozenset()

    @property
    def epoch(self) -> int:
        """The epoch of the remembered operators; -1 before the first update."""
        return self._epoch

    @property
    def keys(self) -> frozenset[str]:
        """The dispatch keys for which some operator has a kernel of its own."""
        return self._keys

    def update(self, epoch: int) -> None:
        """Read all operators, as of an epoch that must not end meanwhile."""
        with self._lock:
            if epoch == self._epoch:
                return
            before = self._rows
            self._rows = rows = self._read(before)
            changed = [name for name, row in rows.items() if before.get(name) is not row]
            for name in changed:
                self._changed[name] = epoch
                self._gone.pop(name, None)
            for name in before.keys() - rows.keys():
                del self._changed[name]
                self._gone[name] = epoch
            while len(self._gone) > GONE_KEPT:
                _, self._first = self._gone.popitem(last=False)
            if self._epoch < 0:
                self._first = epoch
            self._epoch = epoch
            self._keys = frozenset(key for row in rows.values() for key in row.summary.keys)

    def since(self, epoch: int | None) -> OperatorChanges:
        """Return what has changed since an epoch; everything, for None or an unknown one."""
        with self._lock:
            is_whole = epoch is None or not self._first <= epoch <= self._epoch
            if epoch is None or is_whole:
                names = sorted(self._rows)
                gone: list[str] = []
            else:
                names = sorted(name for name, at in self._changed.items() if at > epoch)
                gone = sorted(name for name, at in self._gone.items() if at > epoch)
            changed = [self._rows[name].summary for name in names]
            return OperatorChanges(self._epoch, is_whole, changed, gone)
