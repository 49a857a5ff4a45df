"""Values on a device, between the versions of the library whose backend they are of."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import Any

import numpy as np
import pytest

from opdispatch.arrays import BackendRegistration, preferred_backends, register_backend
from opdispatch.errors import DeviceMemoryError
from opdispatch_server.worker.values.store import ValueStore
from opdispatch_wire.errors import DeadlineExceededError, RemoteValueGoneError
from opdispatch_wire.remote_values import store_key
from opdispatch_wire.v1 import remote_pb2, values_pb2
from tests.service.running_daemon import wait_for
from tests.simulated_accelerator import Accelerator, AcceleratorArray

ME = bytes(16)
SECONDS = 20.0
X, Y = (values_pb2.RemoteTensor(session=ME, id=name * 16) for name in (b"x", b"y"))


class _Other(AcceleratorArray):
    """The next version's arrays."""


class _First(Accelerator):
    def owns(self, cls: type) -> bool:
        return cls is AcceleratorArray


class _Next(Accelerator):
    """It makes arrays when it is let to."""

    def __init__(self) -> None:
        super().__init__()
        self.is_asked, self.may_make = threading.Semaphore(0), threading.Event()
        self.may_make.set()

    def owns(self, cls: type) -> bool:
        return cls is _Other

    def from_host(self, array: np.ndarray[Any, Any], device: str) -> _Other:
        self.is_asked.release()
        assert self.may_make.wait(SECONDS)
        made = super().from_host(array, device)
        return _Other(made._memory, made.number)


class _Versions:
    """Two of them, of which the next one is in force, and a store with values of the first."""

    def __init__(self) -> None:
        self.first, self.next = _First(), _Next()
        self.registrations = [register_backend(each) for each in (self.first, self.next)]
        self.store = ValueStore()
        for message in (X, Y):
            array = self.first.from_host(np.zeros(3), "privateuseone:1")
            self.store.add(ME, store_key(message.id, 0), array)

    @property
    def old(self) -> BackendRegistration:
        return self.registrations[0]

    def write(
        self,
        *messages: values_pb2.RemoteTensor,
        of: BackendRegistration | None = None,
        deadline: float | None = None,
    ) -> _Write:
        """A call, of the version in force or another one, that has begun to write to values."""
        with preferred_backends([of] if of is not None else []):
            wanted = [(each, f"$.args[{i}]") for i, each in enumerate(messages)]
            held = self.store.begin_writes(wanted, deadline)
            return _Write(self.store, held, [self.store.get(each, "$", True) for each in messages])

    def read(self, message: values_pb2.RemoteTensor = X) -> list[float]:
        """The elements, as the version in force gets them."""
        array = self.store.get(message, "$", False)
        assert type(array) is _Other
        return list(array._memory)


class _Write:
    """Arguments that one call writes to."""

    def __init__(self, store: ValueStore, held: Any, arrays: list[Any]) -> None:
        self._store, self._held, self.arrays = store, held, arrays

    def add(self, number: float) -> None:
        """The call ends."""
        for array in self.arrays:
            array._memory += number
        self._store.end_writes(self._held)


@pytest.fixture
def versions() -> Iterator[_Versions]:
    versions = _Versions()
    yield versions
    for registration in versions.registrations:
        registration.close()


@pytest.fixture
def begin() -> Iterator[Callable[..., Future[Any]]]:
    """Begin something in a thread."""
    with ThreadPoolExecutor(4) as pool:
        yield pool.submit


def is_waiting(store: ValueStore, count: int) -> bool:
    """Whether so many calls soon wait for writers."""
    return wait_for(lambda: store.waiting == count, SECONDS)


def test_unwritten_value_is_converted_to_the_next_version_once(versions: _Versions):
    before = versions.next.uploads
    assert versions.read() == [0, 0, 0]
    assert versions.read() == [0, 0, 0]
    assert versions.next.uploads == before + 1
    versions.write(X).add(1)
    assert versions.read() == [1, 1, 1]


def test_a_reader_gets_a_copy_while_there_is_a_writer_of_the_old_version(versions: _Versions):
    write = versions.write(X, of=versions.old)
    assert versions.read() == [0, 0, 0]
    write.arrays[0]._memory += 1
    assert versions.read() == [1, 1, 1]
    write.add(1)
    assert versions.read() == [2, 2, 2]


def test_writers_of_one_version_do_not_wait_for_each_other(versions: _Versions):
    one, other = (versions.write(X, of=versions.old) for _ in range(2))
    assert one.arrays[0] is other.arrays[0]
    one.add(1)
    other.add(1)
    one, other = (versions.write(X) for _ in range(2))
    assert one.arrays[0] is other.arrays[0]
    one.add(1)
    other.add(1)
    assert versions.read() == [4, 4, 4]


def test_a_writer_waits_for_those_of_the_other_version(
    versions: _Versions, begin: Callable[..., Future[Any]]
):
    one, other = (versions.write(X, of=versions.old) for _ in range(2))
    later = begin(versions.write, X)
    assert is_waiting(versions.store, 1)
    one.add(1)
    assert is_waiting(versions.store, 1)
    assert not later.done()
    other.add(1)
    write = later.result(SECONDS)
    assert type(write.arrays[0]) is _Other
    back = begin(versions.write, X, of=versions.old)
    assert is_waiting(versions.store, 1)
    write.add(1)
    back.result(SECONDS).add(1)
    assert versions.read() == [4, 4, 4]


def test_calls_with_values_in_common_do_not_wait_in_a_circle(
    versions: _Versions, begin: Callable[..., Future[Any]]
):
    """Each has one of the other's values, and would wait for ever if it kept that."""
    old, new = versions.write(X, of=versions.old), versions.write(Y)
    both = [begin(versions.write, X, Y, of=versions.old), begin(versions.write, Y, X)]
    assert is_waiting(versions.store, 2)
    old.add(1)
    new.add(1)
    for _ in range(2):
        ended, both = wait(both, SECONDS, FIRST_COMPLETED)
        for each in ended:
            each.result(SECONDS).add(1)
    assert (versions.read(X), versions.read(Y)) == ([3, 3, 3], [3, 3, 3])


def test_of_two_that_change_it_at_a_time_no_write_is_lost(
    versions: _Versions, begin: Callable[..., Future[Any]]
):
    """The second one would make an array of its own, which no call finds."""
    versions.next.may_make.clear()
    calls = [begin(versions.write, X)]
    assert versions.next.is_asked.acquire(timeout=SECONDS)
    calls.append(begin(versions.write, X))
    assert is_waiting(versions.store, 1)
    versions.next.may_make.set()
    one, other = (call.result(SECONDS) for call in calls)
    assert one.arrays[0] is other.arrays[0]
    one.add(1)
    other.add(1)
    assert versions.read() == [2, 2, 2]


def test_a_writer_waits_for_a_reader_that_changes_it(
    versions: _Versions, begin: Callable[..., Future[Any]]
):
    versions.next.may_make.clear()
    reading = begin(versions.read)
    assert versions.next.is_asked.acquire(timeout=SECONDS)
    writing = begin(versions.write, X, of=versions.old)
    assert is_waiting(versions.store, 1)
    versions.next.may_make.set()
    assert reading.result(SECONDS) == [0, 0, 0]
    writing.result(SECONDS).add(1)
    assert versions.read() == [1, 1, 1]


def test_a_call_may_write_twice_to_one_value_and_read_it(versions: _Versions):
    write = versions.write(X, X)
    assert write.arrays[0] is write.arrays[1]
    assert versions.store.get(X, "$", False) is write.arrays[0]
    write.add(1)
    assert versions.read() == [2, 2, 2]
    versions.write(X, of=versions.old).add(1)


def test_the_deadline_ends_the_wait_and_nothing_is_held(versions: _Versions):
    write = versions.write(Y, of=versions.old)
    with pytest.raises(DeadlineExceededError, match=r"\$\.args\[1\]: the deadline passed") as late:
        versions.write(X, Y, deadline=time.monotonic())
    assert late.value.facts["started"] == "no"
    versions.write(X, of=versions.old).add(1)
    versions.write(X).add(1)
    write.add(1)
    versions.write(Y).add(1)


def test_one_for_which_there_is_no_room_stays_what_it_was(versions: _Versions):
    versions.next.room = 0
    with pytest.raises(DeviceMemoryError):
        versions.write(X, Y)
    with pytest.raises(DeviceMemoryError):
        versions.read()
    versions.write(X, Y, of=versions.old).add(1)
    versions.next.room = None
    versions.write(X, Y).add(1)
    assert versions.read() == [2, 2, 2]


def test_value_released_during_a_wait_raises_gone_error(
    versions: _Versions, begin: Callable[..., Future[Any]]
):
    """It goes when its writers have ended; then there is nothing to be written to."""
    write = versions.write(X, of=versions.old)
    later = begin(versions.write, X)
    assert is_waiting(versions.store, 1)
    versions.store.release(remote_pb2.ReleaseValues(session=ME))
    write.add(1)
    with pytest.raises(RemoteValueGoneError):
        later.result(SECONDS)
    with pytest.raises(RemoteValueGoneError, match=r"\$\.args\[0\]: the remote tensor"):
        versions.write(X)


def test_values_of_the_host_have_no_writers(versions: _Versions):
    x = np.zeros(3)
    versions.store.add(ME, store_key(X.id, 0), x)
    assert versions.store.begin_writes([(X, "$")], None) == ()
    assert versions.store.get(X, "$", True) is x
