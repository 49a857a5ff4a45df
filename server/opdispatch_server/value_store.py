"""The tensors that an interpreter keeps for clients."""

from __future__ import annotations

import sys
import threading
from collections.abc import Collection, Iterable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from opdispatch.arrays import ArrayBackend, backend_of_device, copy_of, find_backend, find_layout
from opdispatch.arrays.layout import read_only_view
from opdispatch.arrays.layouts import elements_of
from opdispatch.autograd.variable import edge_of, meta_of
from opdispatch.errors import DeviceError
from opdispatch.tensor import Tensor
from opdispatch_wire.errors import RemoteValueGoneError, WireError
from opdispatch_wire.remote_values import (
    PREFIX_BYTES,
    SESSION_BYTES,
    RemoteFacts,
    store_key,
    value_id,
)
from opdispatch_wire.tensors import is_tensor, refuse_masked
from opdispatch_wire.v1 import remote_pb2, values_pb2


class _Kept(NamedTuple):
    """A value, and the backend of its elements if they are on a device; None: on the host."""

    value: Any
    backend: ArrayBackend | None

    @classmethod
    def of(cls, value: Any) -> _Kept:
        backend = find_backend(type(elements_of(getattr(value, "array", value))))
        return cls(value, None if backend is None or backend.device_type == "cpu" else backend)

    def in_force(self) -> _Kept:
        """Itself, or the same on its device by the backend that makes arrays for that now."""
        if self.backend is None:
            return self
        array = getattr(self.value, "array", self.value)
        device = self.backend.device_of(elements_of(array))
        try:
            wanted = backend_of_device(device)
        except DeviceError:  # its library was unloaded, and may come back
            return self
        if wanted is self.backend:
            return self
        layout = find_layout(type(array))
        parts = [array] if layout is None else layout.parts(array)
        moved = [wanted.from_host(self.backend.to_host(part), device) for part in parts]
        made = moved[0] if layout is None else layout.assemble(moved, layout.facts(array))
        if isinstance(self.value, Tensor):
            made = _with_history_of(self.value, made)
        return _Kept(made, wanted)


_NONE: Mapping[bytes, _Kept] = MappingProxyType({})


class ValueStore:
    """Values by the session whose they are, and by ``store_key``. Any thread may use it.

    ``_lock`` protects the changes of ``_sessions``: a session has at least one value. Readers need
    no lock: they look into two dicts, and find the value or do not. The daemon says what is let go
    of, and when; here nothing is.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sessions: dict[bytes, dict[bytes, _Kept]] = {}

    def find(self, session: bytes, key: bytes) -> Any:
        """The value of that key; None if it is not here.

        It is an array of the backend that makes arrays for its device now, so that kernels of a
        library's next version know it: what another one has made is copied through host memory.
        Raises DeviceError, and DeviceMemoryError.
        """
        kept = self._sessions.get(session, _NONE).get(key)
        if kept is None:
            return None
        current = kept.in_force()
        if current is not kept:
            with self._lock:
                values = self._sessions.get(session, {})
                if values.get(key) is kept:
                    values[key] = current
        return current.value

    def get(self, message: values_pb2.RemoteTensor, at: str, writable: bool) -> Any:
        """The value that is meant, or a view that cannot be written to.

        Raises RemoteValueGoneError.
        """
        value = self.find(message.session, store_key(message.id, message.place))
        if value is None:
            raise RemoteValueGoneError(
                f"{at}: the remote tensor {message.id.hex()} is not in this interpreter",
                value=message.id.hex(),
                reason="it is not there",
            )
        return value if writable else _read_only(value)

    def add(self, session: bytes, key: bytes, value: Any) -> None:
        """Keeps a value."""
        with self._lock:
            self._sessions.setdefault(session, {})[key] = _Kept.of(value)

    def release(self, message: remote_pb2.ReleaseValues) -> None:
        """Lets go of some of a session's values, or of all. What is in use stays until then."""
        with self._lock:
            values = self._sessions.get(message.session)
            if values is None:
                return
            if not message.ids:
                values.clear()
            for key in ids_meant(message.ids, values):
                values.pop(key, None)
            if not values:
                del self._sessions[message.session]

    def clear(self) -> None:
        """Lets go of everything."""
        with self._lock:
            self._sessions.clear()

    def count(self) -> int:
        """How many values there are."""
        with self._lock:
            return sum(len(values) for values in self._sessions.values())


def ids_meant(ids: Collection[bytes], known: Iterable[bytes]) -> list[bytes]:
    """The ids themselves, and for a prefix those of ``known`` that begin with it."""
    meant = [number for number in ids if len(number) != PREFIX_BYTES]
    prefixes = {number for number in ids if len(number) == PREFIX_BYTES}
    if prefixes:
        meant += [number for number in known if number[:PREFIX_BYTES] in prefixes]
    return meant


def check_keep(keep: remote_pb2.Keep) -> None:
    """Raises WireError if what is to be kept could have no ids."""
    for name, value, length in (
        ("session", keep.session, SESSION_BYTES),
        ("prefix", keep.prefix, PREFIX_BYTES),
    ):
        if len(value) != length:
            raise WireError(f"$.keep.{name} has {len(value)} bytes; expected {length}")


class KeptResults:
    """Keeps the tensors among the results of one call. For one thread.

    It must be given each result by the only one who knows it, so that what a kernel has kept for
    itself is told from what it has not: see ``take``.
    """

    def __init__(self, store: ValueStore, keep: remote_pb2.Keep, interpreter: str) -> None:
        self._store = store
        self._keep = keep
        self._interpreter = interpreter
        self._count = 0

    def take(self, results: list[Any], place: int, at: str = "$.returns") -> Any:
        """What is to be sent for one result: a KeptValue for a tensor, in lists as well.

        Takes it off the list. A tensor that the kernel, the caller or another value may know,
        too, is copied: nobody else must be able to write to it. Raises WireError, which begins
        with the place in ``at``, for one that could not be fetched as it is.
        """
        at = f"{at}[{place}]"
        value = results[place]
        results[place] = None
        if isinstance(value, list | tuple):
            items = list(value)
            del value
            return [self.take(items, i, at) for i in range(len(items))]
        if not is_tensor(value):
            return value
        refuse_masked(value.array if isinstance(value, Tensor) else value, at=at)
        # One reference is `value`, the other one is getrefcount's own.
        is_known = sys.getrefcount(value) > 2
        value = _own(value, is_known=is_known)
        number = value_id(self._keep.prefix, self._count)
        self._count += 1
        self._store.add(self._keep.session, store_key(number, 0), value)
        return KeptValue(number, RemoteFacts.of(value), self._interpreter)


class KeptValue:
    """Stands for a value that was kept, in a reply."""

    __slots__ = ("_facts", "_interpreter", "_number")

    def __init__(self, number: bytes, facts: RemoteFacts, interpreter: str) -> None:
        self._number = number
        self._facts = facts
        self._interpreter = interpreter

    def __opdispatch_fill_value__(self, message: values_pb2.Value, at: str) -> None:
        remote = message.remote
        remote.id = self._number
        remote.interpreter = self._interpreter
        self._facts.write_to(remote, at=at)


def _read_only(value: Any) -> Any:
    """What a kernel that must not write gets; of a tensor, one with the same history."""
    if isinstance(value, Tensor):
        return _with_history_of(value, _read_only(value.array))
    if isinstance(value, np.ndarray):
        return read_only_view(value)
    layout = find_layout(type(value))
    return value if layout is None else layout.read_only(value)


def _with_history_of(tensor: Tensor, array: Any) -> Tensor:
    shown = Tensor(array, keys=tensor.key_set)
    shown.autograd_meta = meta_of(tensor)
    shown.requires_grad_flag = tensor.requires_grad_flag
    return shown


def _own(value: Any, *, is_known: bool) -> Any:
    """The tensor, or a copy if somebody else could write to it, or nobody can."""
    if isinstance(value, Tensor):
        # Two references are the tensor's and getrefcount's.
        is_known = is_known or sys.getrefcount(value.array) > 2
        own = _own(value.array, is_known=is_known)
        kept = Tensor(own, keys=value.key_set, requires_grad=value.requires_grad)
        if not value.is_leaf:  # a gradient of the copy is one of what it was copied from
            meta_of(kept).edge = edge_of(value)
        return kept
    backend = find_backend(type(value))
    if backend is None and find_layout(type(value)) is not None:
        return copy_of(value)  # nobody can tell who else knows of its parts
    if backend is None:
        return np.array(value)  # somebody's array by its protocol
    return value if not is_known and backend.is_its_own(value) else backend.copy(value)
