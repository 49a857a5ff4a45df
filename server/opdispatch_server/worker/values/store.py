"""The tensors that an interpreter keeps for clients."""

from __future__ import annotations

import functools
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NoReturn

import numpy as np

from opdispatch.arrays import ArrayBackend, copy_of, find_backend, find_layout
from opdispatch.arrays.layout import read_only_view
from opdispatch.autograd.remote_history import name_leaf
from opdispatch.autograd.variable import edge_of, meta_of
from opdispatch.tensors.tensor import Tensor
from opdispatch_server.serving.reading_turn import hand_over_turn
from opdispatch_server.value_ids import ids_meant
from opdispatch_server.worker.values.backend_forms import Form, StoredValue, with_history_of
from opdispatch_server.worker.values.direct_keeps import DirectKeeps
from opdispatch_wire.errors import DeadlineExceededError, RemoteValueGoneError
from opdispatch_wire.layouts import refuse_misfits
from opdispatch_wire.nesting_limits import ValueCount, check_nesting
from opdispatch_wire.remote_values import (
    FIRST_PLACE,
    ID_BYTES,
    PREFIX_BYTES,
    RemoteFacts,
    id_of,
    place_of,
    store_key,
    value_id,
)
from opdispatch_wire.tensors import is_tensor, refuse_masked
from opdispatch_wire.v1 import remote_pb2, values_pb2

_NONE: Mapping[bytes, StoredValue] = MappingProxyType({})
_Wanted = Sequence[tuple[values_pb2.RemoteTensor, str]]


class ValueStore:
    """The kept values, by session and ``store_key``. Any thread may use it.

    ``_changed`` protects changes of ``_sessions``, in which each session has at least one value,
    and of the values; it is notified when a value loses its last writer or changes, for which
    writers wait. Readers need no lock: they look into two dicts, and find the value or not. The
    daemon decides what is released, and when.

    Note [Direct calls with values]
        The daemon knows where a value is, and moves it only while no call that it has routed uses
        it. It does not know of direct calls. These find a value by its id, whatever the number of
        its place in this interpreter, until another interpreter asks for it in order to become its
        home: from then on, calls there may write to it. Direct calls that arrived before read the
        value as it was; none of them may write to it. They keep it until they have ended, even if
        it is released meanwhile. If the move fails, the daemon releases the place to which the
        value should have moved, here as well. Messages may cross: the value may move to another
        place before that release arrives, or an interpreter whose move has failed may ask for it
        afterwards. So the latest place of each kind counts.
    """

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._changed = threading.Condition(self._mutex)
        self._sessions: dict[bytes, dict[bytes, StoredValue]] = {}
        # The values that direct calls find, by session and id.
        self._newest: dict[bytes, dict[bytes, StoredValue]] = {}
        self.keeps = DirectKeeps(self.release)
        """The values that direct calls have kept."""
        self.waiting = 0
        """How many calls wait for the writers of a value."""

    def find(self, session: bytes, key: bytes) -> Any:
        """Return the value of that key for reading; None if it is not here.

        It is an array of the backend that now makes arrays for its device, so that kernels of a
        library's next version know it: see Note [Values of two versions]. Raises DeviceError, and
        DeviceMemoryError.
        """
        stored = self._sessions.get(session, _NONE).get(key)
        if stored is None:
            return None
        form = stored.form
        wanted = form.find_wanted()
        if wanted is None:
            return form.value
        with self._changed:
            form = stored.form
            stays = bool(stored.writers) or stored.is_changing
            if form.backend is not wanted and not stays:
                stored.is_changing = True
        if form.backend is wanted:
            return form.value
        return form.converted(wanted).value if stays else self._change(stored, wanted)

    def get(self, message: values_pb2.RemoteTensor, at: str, writable: bool) -> Any:
        """Return the named value for a writer of it; or a read-only value.

        Raises RemoteValueGoneError, DeviceError and DeviceMemoryError.
        """
        if writable:
            return self._get(message, at).form.value
        value = self.find(message.session, store_key(message.id, message.place))
        return _read_only(self._gone(message, at) if value is None else value)

    def find_here(self, session: bytes, number: bytes) -> Any:
        """Return the value of that id for a direct call, which cannot write to it.

        None if it is not here, is leaving, or has to be converted. See Note [Direct calls with
        values].
        """
        stored = self._newest.get(session, _NONE).get(number)
        if stored is None or stored.is_leaving:
            return None
        value, backend = form = stored.form
        if backend is not None and form.find_wanted() is not None:
            return None
        if type(value) is not np.ndarray:
            return _read_only(value)
        view = value.view()  # ``read_only_view``, inlined
        view.flags.writeable = False
        return view

    def pin(self, messages: Sequence[values_pb2.RemoteTensor]) -> tuple[StoredValue, ...] | None:
        """Keep the values that a direct call names until ``unpin``.

        Write their places into ``messages``.

        None if not all of them are here to stay. See Note [Direct calls with values].
        """
        found = []
        with self._changed:
            for message in messages:
                stored = self._newest.get(message.session, _NONE).get(message.id)
                if stored is None or stored.is_leaving:
                    return None
                found.append(stored)
            for message, stored in zip(messages, found, strict=True):
                message.place = place_of(stored.key)
                stored.pins += 1
        return tuple(found)

    def unpin(self, values: Sequence[StoredValue]) -> None:
        """End what ``pin`` began."""
        with self._changed:
            for stored in values:
                stored.pins -= 1
                if stored.is_released and not stored.pins:
                    self._drop(stored)

    def note_leaving(self, message: values_pb2.RemoteTensor) -> None:
        """Record that a value's next home is about to fetch it."""
        with self._changed:
            stored = self._sessions.get(message.session, _NONE).get(
                store_key(message.id, message.place)
            )
            if stored is not None:
                stored.note_next_place(message.next_place)

    def begin_writes(self, wanted: _Wanted, deadline: float | None) -> Sequence[StoredValue]:
        """Make the caller a writer of these values, once each, until ``end_writes`` of the result.

        Waits for writers of them in other forms: see Note [Values of two versions]. ``deadline`` is
        a time of ``time.monotonic``. Raises RemoteValueGoneError, DeviceError, DeviceMemoryError
        and DeadlineExceededError; the caller is then a writer of none.
        """
        found = [(self._get(message, at), at) for message, at in wanted]
        places = {stored: at for stored, at in found if stored.form.backend is not None}
        if not places:
            return ()
        with self._changed:
            writes = None if _find_busy(places) else self._add_writer(places)
        if writes is None:
            hand_over_turn()
            writes = self._wait_to_write(places, deadline)
        try:
            for stored, backend in writes.items():
                if backend is not None:
                    self._change(stored, backend)
        except BaseException:
            with self._changed:
                for stored in writes:
                    stored.is_changing = False  # no other thread has begun to: there is a writer
            self.end_writes(tuple(writes))
            raise
        return tuple(writes)

    def end_writes(self, values: Sequence[StoredValue]) -> None:
        """End the writes of a caller of ``begin_writes``."""
        with self._changed:
            for stored in values:
                stored.writers -= 1
            self._changed.notify_all()

    def _wait_to_write(
        self, places: Mapping[StoredValue, str], deadline: float | None
    ) -> Mapping[StoredValue, ArrayBackend | None]:
        with self._changed:
            self.waiting += 1
            try:
                while at := _find_busy(places):
                    left = None if deadline is None else deadline - time.monotonic()
                    if left is not None and left <= 0:
                        raise DeadlineExceededError(
                            f"{at}: the deadline passed while a call of another version of a "
                            "library was writing to the remote tensor; this call never started",
                            started="no",
                        )
                    self._changed.wait(left)
                return self._add_writer(places)
            finally:
                self.waiting -= 1

    @staticmethod
    def _add_writer(
        places: Mapping[StoredValue, str],
    ) -> Mapping[StoredValue, ArrayBackend | None]:
        """Add a writer to the values; return the form to which the caller is to change each.

        The caller holds ``_changed``.
        """
        writes = {stored: stored.form.find_wanted() for stored in places}
        for stored, backend in writes.items():
            stored.writers += 1
            stored.is_changing = backend is not None
        return writes

    def _change(self, stored: StoredValue, wanted: ArrayBackend) -> Any:
        """Change the form of a value that ``is_changing``; only one thread may."""
        form = stored.form
        try:
            form = form.converted(wanted)
        finally:
            with self._changed:
                stored.form = form
                stored.is_changing = False
                self._changed.notify_all()
        return form.value

    def _get(self, message: values_pb2.RemoteTensor, at: str) -> StoredValue:
        values = self._sessions.get(message.session, _NONE)
        stored = values.get(store_key(message.id, message.place))
        return self._gone(message, at) if stored is None else stored

    @staticmethod
    def _gone(message: values_pb2.RemoteTensor, at: str) -> NoReturn:
        raise RemoteValueGoneError(
            f"{at}: the remote tensor {message.id.hex()} is not in this interpreter",
            value=message.id.hex(),
            reason="it is not there",
        )

    def add(self, session: bytes, key: bytes, value: Any, form: Form | None = None) -> None:
        """Keep a value, in the given form if known."""
        stored = StoredValue(form or Form.of(value), session, key)
        with self._mutex:
            self._sessions.setdefault(session, {})[key] = stored
            # ``id_of``, inlined
            self._newest.setdefault(session, {})[key[: -len(FIRST_PLACE)]] = stored

    def release(self, message: remote_pb2.ReleaseValues) -> None:
        """Release some of a session's values, or all. What is in use stays until then.

        A value whose next place is released instead stays here, and direct calls find it again.
        """
        if not message.ids:
            self.keeps.close(message.session)
        with self._changed:
            values = self._sessions.get(message.session)
            if values is None:
                return
            newest = self._newest[message.session]
            if not message.ids:
                del self._sessions[message.session], self._newest[message.session]
            for key in ids_meant(message.ids, values):
                if (stored := values.get(key)) is not None:
                    self._drop(stored)
                elif (stored := newest.get(id_of(key))) is not None:
                    stored.note_unreached_place(place_of(key))

    def clear(self) -> None:
        """Release all values."""
        with self._changed:
            self._sessions.clear()
            self._newest.clear()
        self.keeps.clear()

    def count(self) -> int:
        """Return the number of values."""
        with self._changed:
            return sum(len(values) for values in self._sessions.values())

    def _drop(self, stored: StoredValue) -> None:
        """Drop a value, once no direct call uses it. The caller holds ``_changed``."""
        session, number = stored.session, id_of(stored.key)
        newest = self._newest.get(session, {})
        if newest.get(number) is stored:
            del newest[number]
        stored.is_released = True
        values = self._sessions.get(session, {})
        if not stored.pins and values.get(stored.key) is stored:
            del values[stored.key]
            if not values:
                del self._sessions[session], self._newest[session]


class CallWrites:
    """The values of a store that one call writes to. For one thread."""

    __slots__ = ("_deadline", "_held", "_store")

    def __init__(self, store: ValueStore, deadline: float | None) -> None:
        self._store = store
        self._deadline = deadline
        self._held: Sequence[StoredValue] = ()

    def begin(self, wanted: _Wanted) -> None:
        """Call ``ValueStore.begin_writes``, once at most."""
        self._held = self._store.begin_writes(wanted, self._deadline)

    def end(self) -> None:
        """End the writes of a call, whether it has begun to write or not."""
        if self._held:
            self._store.end_writes(self._held)


class KeptResults:
    """Keeps the tensors among the results of one call. For one thread.

    Its caller must hold the only reference to each result, so that results that the kernel itself
    still refers to can be recognized: see ``take``.
    """

    def __init__(self, store: ValueStore, session: bytes, prefix: bytes, interpreter: str) -> None:
        self._store = store
        self._session = session
        self._prefix = prefix
        self._interpreter = interpreter
        self._values = ValueCount()
        self.kept: list[tuple[bytes, RemoteFacts]] = []
        """The ids of the kept values, and their facts."""
        self.nbytes = 0
        """The size of their elements."""

    def take(self, results: list[Any], place: int, at: str = "$.returns") -> Any:
        """Return the message for one result: a KeptValue for a tensor, also in lists.

        Removes it from the list. A tensor to which the kernel, the caller or another value may
        refer, too, is copied: no other code must be able to write to it. Raises WireError, which
        begins with the place in ``at``, for one that could not be fetched as it is, and
        ArgumentError for lists that are nested too deeply to be sent, or have too many values.
        """
        if type(results[place]) is not np.ndarray:
            check_nesting(results[place], f"{at}[{place}]", self._values)
            return self._take(results, place, at)
        # As ``_take`` does, for the most frequent kinds of results.
        is_known = sys.getrefcount(results[place]) > 2
        value = results[place]
        results[place] = None
        flags = value.flags
        if is_known or value.base is not None or not (flags.c_contiguous and flags.writeable):
            value = _own(value, is_known=is_known)
        number = self._prefix + len(self.kept).to_bytes(ID_BYTES - PREFIX_BYTES)
        facts = _facts_of_array(value.dtype, value.shape, f"{at}[{place}]")
        self.kept.append((number, facts))
        self.nbytes += value.nbytes
        form = tuple.__new__(Form, (value, None))  # without a Python call
        self._store.add(self._session, number + FIRST_PLACE, value, form)
        return KeptValue(number, facts, self._interpreter)

    def _take(self, results: list[Any], place: int, at: str) -> Any:
        at = f"{at}[{place}]"
        # One reference is the list's, the other getrefcount's own. A local variable may add one:
        # Python 3.14 passes it on without.
        is_known = sys.getrefcount(results[place]) > 2
        value = results[place]
        results[place] = None
        if isinstance(value, list | tuple):
            items = list(value)
            del value
            return [self._take(items, i, at) for i in range(len(items))]
        if not is_tensor(value):
            return value
        refuse_masked(value.array if isinstance(value, Tensor) else value, at=at)
        refuse_misfits(value, at=at)
        value = _own(value, is_known=is_known)
        facts = RemoteFacts.of(value, at=at)
        number = value_id(self._prefix, len(self.kept))
        name_leaf(value, number)
        self.kept.append((number, facts))
        self.nbytes += facts.nbytes
        self._store.add(self._session, number + FIRST_PLACE, value)
        return KeptValue(number, facts, self._interpreter)


class KeptValue:
    """The proxy for a kept value in a reply."""

    __slots__ = ("_facts", "_interpreter", "_number")

    def __init__(self, number: bytes, facts: RemoteFacts, interpreter: str) -> None:
        self._number = number
        self._facts = facts
        self._interpreter = interpreter

    def __opdispatch_fill_value__(self, message: values_pb2.Value, at: str) -> None:
        remote = message.remote
        remote.id = self._number
        remote.interpreter = self._interpreter
        self._facts.write_to(remote)

    def __opdispatch_take_value__(self, key: list[Any], leaves: list[Any]) -> bool:
        facts = self._facts
        key += (
            KeptValue,
            facts.dtype_name,
            facts.shape,
            facts.device,
            facts.key_bits,
            facts.layout,
        )
        key += (facts.requires_grad, facts.part_bytes)
        leaves.append(self._number)
        return True


def _find_busy(places: Mapping[StoredValue, str]) -> str | None:
    """Return the place of a value whose writers the caller has to wait for; None if none is.

    The caller holds the store's lock. It decides by this one answer: which arrays a call is to have
    may change at any time.
    """
    return next((at for stored, at in places.items() if stored.must_wait), None)


@functools.lru_cache(1024)  # most results have earlier facts
def _facts_of_array(dtype: np.dtype[Any], shape: tuple[int, ...], at: str) -> RemoteFacts:
    return RemoteFacts.of(np.broadcast_to(np.zeros((), dtype), shape), at=at)


def _read_only(value: Any) -> Any:
    """Return a read-only argument for a kernel; for a tensor, one with the same history."""
    if isinstance(value, Tensor):
        return with_history_of(value, _read_only(value.array))
    if isinstance(value, np.ndarray):
        return read_only_view(value)
    layout = find_layout(type(value))
    return value if layout is None else layout.read_only(value)


def _own(value: Any, *, is_known: bool) -> Any:
    """Return the tensor, or a copy if other code could write to it, or if it is read-only."""
    if isinstance(value, Tensor):
        # Two references are the tensor's and getrefcount's.
        is_known = is_known or sys.getrefcount(value.array) > 2
        own = _own(value.array, is_known=is_known)
        kept = Tensor(own, keys=value.key_set, requires_grad=value.requires_grad)
        if not value.is_leaf:  # gradients of the copy are gradients of the original
            meta_of(kept).edge = edge_of(value)
        return kept
    backend = find_backend(type(value))
    if backend is None and find_layout(type(value)) is not None:
        return copy_of(value)  # other code may refer to its parts
    if backend is None:
        return np.array(value)  # another library's array, by its protocol
    return value if not is_known and backend.is_its_own(value) else backend.copy(value)
