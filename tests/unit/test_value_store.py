"""Values that an interpreter keeps for clients."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import numpy as np
import pytest

from opdispatch import DispatchKey, DispatchKeySet, Tensor, autograd
from opdispatch_server.value_ids import check_keep
from opdispatch_server.worker.values.store import KeptResults, ValueStore
from opdispatch_wire.errors import RemoteValueGoneError, WireError
from opdispatch_wire.remote_values import facts_from_proto, store_key, value_id
from opdispatch_wire.v1 import remote_pb2, values_pb2
from opdispatch_wire.values import value_to_proto

ME, OTHER = bytes(16), bytes([1] * 16)
PREFIX = bytes(range(12))


def _remote(session: bytes, number: bytes) -> values_pb2.RemoteTensor:
    return values_pb2.RemoteTensor(session=session, id=number[:-4], place=number[-1])


def _leaving(key: bytes, place: int) -> values_pb2.RemoteTensor:
    """Return what the interpreter asks for that is to have the value at that place."""
    message = _remote(ME, key)
    message.next_place = place
    return message


X_KEY, Y_KEY = store_key(b"x" * 16, 0), store_key(b"y" * 16, 0)


def _key(prefix: bytes, number: int) -> bytes:
    return store_key(value_id(prefix, number), 0)


def _keeping(store: ValueStore) -> KeptResults:
    return KeptResults(store, ME, PREFIX, "here")


def test_a_value_is_its_sessions_alone():
    store = ValueStore()
    x = np.arange(3)
    store.add(ME, X_KEY, x)
    assert store.get(_remote(ME, X_KEY), "$", True) is x
    for stranger in (_remote(OTHER, X_KEY), _remote(ME, Y_KEY)):
        with pytest.raises(RemoteValueGoneError, match=r"\$\.args\[0\]: the remote tensor"):
            store.get(stranger, "$.args[0]", True)
    with pytest.raises(RemoteValueGoneError):
        store.get(_remote(ME, store_key(b"x" * 16, 1)), "$", True)


def test_an_argument_that_is_not_written_to_cannot_be():
    store = ValueStore()
    x = np.arange(3)
    store.add(ME, X_KEY, x)
    view = store.get(_remote(ME, X_KEY), "$", False)
    assert not view.flags.writeable
    assert np.shares_memory(view, x)
    assert x.flags.writeable


def test_a_tensor_that_is_not_written_to_cannot_be_and_has_its_history():
    store = ValueStore()
    x = Tensor(np.arange(3.0), requires_grad=True)
    store.add(ME, X_KEY, x)
    shown = store.get(_remote(ME, X_KEY), "$", False)
    assert not shown.array.flags.writeable
    assert x.array.flags.writeable
    assert store.get(_remote(ME, X_KEY), "$", True) is x
    assert (shown.key_set, shown.requires_grad) == (x.key_set, True)
    [gradient] = autograd.grad(shown * shown, x, Tensor(np.ones(3)))
    assert gradient.array.tolist() == [0, 2, 4]


def test_release_removes_exactly_the_given_values():
    store = ValueStore()
    prefix = bytes(12)
    for number in (_key(prefix, 0), _key(prefix, 1), X_KEY, Y_KEY):
        store.add(ME, number, np.zeros(1))
    store.add(OTHER, X_KEY, np.zeros(1))
    store.release(remote_pb2.ReleaseValues(session=ME, ids=[X_KEY, b"unknown"]))
    assert store.count() == 4
    store.release(remote_pb2.ReleaseValues(session=ME, ids=[prefix]))
    assert store.find(ME, _key(prefix, 1)) is None
    assert store.find(ME, Y_KEY) is not None
    store.release(remote_pb2.ReleaseValues(session=ME))
    store.release(remote_pb2.ReleaseValues(session=b"absent"))
    assert store.count() == 1
    store.clear()
    assert store.count() == 0


def test_direct_calls_find_a_value_by_its_id_alone():
    store = ValueStore()
    x = np.arange(3)
    moved = store_key(b"x" * 16, 5)
    store.add(ME, moved, x)
    found = store.find_here(ME, b"x" * 16)
    assert np.shares_memory(found, x)
    assert not found.flags.writeable
    assert store.find_here(OTHER, b"x" * 16) is None
    assert store.find_here(ME, b"y" * 16) is None
    message = _remote(ME, X_KEY)
    assert store.pin([message]) is not None
    assert message.place == 5
    assert store.pin([_remote(ME, X_KEY), _remote(ME, Y_KEY)]) is None
    assert store.pin([_remote(OTHER, X_KEY)]) is None


def test_direct_calls_find_the_place_to_which_a_value_came_last():
    store = ValueStore()
    store.add(ME, X_KEY, np.arange(3))
    back = np.arange(3)
    store.add(ME, store_key(b"x" * 16, 2), back)
    store.release(remote_pb2.ReleaseValues(session=ME, ids=[X_KEY]))
    assert np.shares_memory(store.find_here(ME, b"x" * 16), back)


def test_direct_calls_do_not_find_what_is_to_move_away():
    store = ValueStore()
    store.add(ME, X_KEY, np.arange(3))
    store.note_leaving(_leaving(X_KEY, 1))
    assert store.find_here(ME, b"x" * 16) is None
    assert store.pin([_remote(ME, X_KEY)]) is None
    assert store.get(_remote(ME, X_KEY), "$", False) is not None  # the daemon's do
    store.note_leaving(_leaving(Y_KEY, 1))  # nothing: it has gone


def test_direct_calls_find_a_value_again_that_has_failed_to_move():
    store = ValueStore()
    store.add(ME, X_KEY, np.arange(3))

    def fail_to_move(place: int) -> None:
        store.release(remote_pb2.ReleaseValues(session=ME, ids=[store_key(b"x" * 16, place)]))

    store.note_leaving(_leaving(X_KEY, 1))
    fail_to_move(1)
    assert store.find_here(ME, b"x" * 16) is not None
    assert store.pin([_remote(ME, X_KEY)]) is not None
    store.note_leaving(_leaving(X_KEY, 1))  # late: what has asked for it has died
    assert store.find_here(ME, b"x" * 16) is not None
    store.note_leaving(_leaving(X_KEY, 3))  # before it is known that it has not moved to 2
    fail_to_move(2)
    assert store.find_here(ME, b"x" * 16) is None
    fail_to_move(3)
    assert store.find_here(ME, b"x" * 16) is not None


def test_a_pinned_value_stays_until_the_last_call_with_it_has_ended():
    store = ValueStore()
    store.add(ME, X_KEY, np.arange(3))
    first, second = store.pin([_remote(ME, X_KEY)]), store.pin([_remote(ME, X_KEY)])
    assert first is not None
    assert second is not None
    store.release(remote_pb2.ReleaseValues(session=ME, ids=[X_KEY]))
    assert store.find_here(ME, b"x" * 16) is None
    store.unpin(first)
    assert store.get(_remote(ME, X_KEY), "$", False) is not None
    store.unpin(second)
    assert store.count() == 0
    store.add(ME, X_KEY, np.arange(3))
    third = store.pin([_remote(ME, X_KEY)])
    assert third is not None
    store.release(remote_pb2.ReleaseValues(session=ME))  # its client has gone
    assert store.count() == 0
    store.unpin(third)
    assert store.count() == 0


def test_a_result_that_only_the_call_knows_is_not_copied():
    store = ValueStore()
    results: list[Any] = [np.arange(3.0)]
    address = results[0].ctypes.data
    _keeping(store).take(results, 0)
    kept = store.find(ME, _key(PREFIX, 0))
    assert kept.ctypes.data == address
    assert results == [None]


def _known() -> tuple[list[Any], Any]:
    x = np.arange(6.0)
    return [x], x


def _view() -> tuple[list[Any], Any]:
    return [np.arange(12.0)[::2]], None


def _read_only() -> tuple[list[Any], Any]:
    x = np.arange(6.0)
    x.flags.writeable = False
    return [x], None


def _known_array_of_a_tensor() -> tuple[list[Any], Any]:
    x = np.arange(6.0)
    return [Tensor(x)], x


@pytest.mark.parametrize("make", [_known, _view, _read_only, _known_array_of_a_tensor])
def test_result_that_other_code_could_write_to_is_copied(make: Any):
    store = ValueStore()
    results, known = make()
    address = getattr(results[0], "array", results[0]).ctypes.data
    _keeping(store).take(results, 0)
    kept = store.find(ME, _key(PREFIX, 0))
    kept = getattr(kept, "array", kept)
    assert kept.ctypes.data != address
    assert kept.flags.writeable
    assert kept.flags.c_contiguous
    if known is not None:
        known[:] = -1
        assert (kept >= 0).all()


def test_tensors_in_lists_are_kept_and_numbers_are_sent():
    store = ValueStore()
    sent = _keeping(store).take([[np.ones(2), 3, [np.float32(4.0)]]], 0)
    message = value_to_proto(sent)
    first, number, inner = message.list.items
    assert first.remote.id == value_id(PREFIX, 0)
    assert first.remote.interpreter == "here"
    assert number.integer == 3
    assert inner.list.items[0].remote.id == value_id(PREFIX, 1)
    assert store.find(ME, _key(PREFIX, 1)).shape == ()
    assert store.count() == 2


def test_facts_of_a_kept_value_are_those_of_the_tensor():
    store = ValueStore()
    keys = DispatchKeySet(DispatchKey.SparseCPU)
    tensor = Tensor(np.zeros((2, 3), np.float16), keys=keys, requires_grad=True)
    facts = facts_from_proto(value_to_proto(_keeping(store).take([tensor], 0)).remote, at="$")
    assert (facts.dtype, facts.shape, facts.device) == (np.dtype(np.float16), (2, 3), "cpu")
    assert (facts.key_bits, facts.requires_grad, facts.nbytes) == (keys.bits, True, 12)
    kept = store.find(ME, _key(PREFIX, 0))
    assert (kept.key_set, kept.requires_grad) == (keys, True)


def test_released_value_is_freed():
    store = ValueStore()
    _keeping(store).take([np.zeros(3)], 0)
    freed = weakref.ref(store.find(ME, _key(PREFIX, 0)))
    store.release(remote_pb2.ReleaseValues(session=ME, ids=[_key(PREFIX, 0)]))
    gc.collect()
    assert freed() is None


@pytest.mark.parametrize(
    ("keep", "problem"),
    [
        (remote_pb2.Keep(session=b"short", prefix=PREFIX), r"\$\.keep\.session has 5 bytes"),
        (remote_pb2.Keep(session=ME), r"\$\.keep\.prefix has 0 bytes; expected 12"),
    ],
)
def test_names_that_cannot_be_are_refused(keep: remote_pb2.Keep, problem: str):
    with pytest.raises(WireError, match=problem):
        check_keep(keep)


def test_an_array_that_only_its_tensor_knows_is_not_copied():
    store = ValueStore()
    results: list[Any] = [Tensor(np.arange(3.0), requires_grad=True)]
    address = results[0].array.ctypes.data
    _keeping(store).take(results, 0)
    assert store.find(ME, _key(PREFIX, 0)).array.ctypes.data == address
