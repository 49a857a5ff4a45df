"""Two copies of a value, so that readers never wait for a writer.

Mirrors ``c10/util/LeftRight.h`` (after Ramalhete and Correia, "Left-Right: A Concurrency Control
Technique with Wait-Free Population Oblivious Reads").
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from opdispatch.dispatch.attribute_stores import AttributeStore, store_at_once

T = TypeVar("T")
R = TypeVar("R")


class LeftRight(Generic[T]):
    """A value that is read without a lock and written twice.

    Guards      ``_writer`` is the right to mutate. Readers never touch it.
    Invariants  I1  a reader stays on the copy that was in front when it looked;
                I2  a copy is mutated only while no reader can be on it;
                I3  whenever ``_writer`` is free, the two copies are equal.
    Cost        ``change`` runs once for each copy: keep it cheap and deterministic.

    A ``look`` should be a single C call, such as a lookup. The garbage collector may run a
    finalizer in the middle of a ``read``, and the finalizer may write. Its write does not wait for
    the read of its own thread, which would deadlock. It must not wait for another writer either,
    since that one waits for the read: see ``is_being_read``.
    """

    def __init__(self, make: Callable[[], T]) -> None:
        self._copies = [make(), make()]
        self._front = 0
        self._side = 0
        # The threads that read on each side. Appending to and removing from a deque is atomic,
        # unlike `count += 1`.
        self._readers: tuple[deque[int], deque[int]] = (deque(), deque())
        self._writer = threading.Lock()

    def read(self, look: Callable[[T], R]) -> R:
        """Return ``look(value)``. ``look`` must not keep or change the value."""
        marks, me = self._readers[self._side], threading.get_ident()
        marks.append(me)
        try:
            return look(self._copies[self._front])
        finally:
            marks.remove(me)

    @property
    def is_being_read(self) -> bool:
        """Whether the calling thread is in the middle of a ``read``, as a finalizer may be."""
        me = threading.get_ident()
        return any(me in tuple(readers) for readers in self._readers)

    def write(self, change: Callable[[T], R], stores: Sequence[AttributeStore] = ()) -> R:
        """Apply ``change`` to both copies, one after the other; return the second result.

        ``stores`` become visible at the same instant as the change. If ``change`` raises on the
        first copy, that copy is recreated from the second, nothing has changed, and the exception
        propagates. If it raises only on the second, the change remains in force, since readers may
        have seen it.
        """
        with self._writer:
            front, side = self._front, self._side
            self._apply(change, onto=1 - front)  # 1  no reader is back there (I2)
            store_at_once((*stores, (self, "_front", 1 - front)))  # 2  new readers see the change
            if self._readers[1 - side]:
                self._drain(1 - side)  # 3  late arrivals of the previous write
            self._side = 1 - side  # 4  new readers mark the other side, so
            if self._readers[side]:
                self._drain(side)  # 5  ... this one can empty at all
            return self._apply(change, onto=front)  # 6  I3 again

    def _apply(self, change: Callable[[T], R], *, onto: int) -> R:
        try:
            return change(self._copies[onto])
        except BaseException:
            # The other copy is intact: the old value in step 1, the new one in step 6.
            self._copies[onto] = _copy(self._copies[1 - onto])
            raise

    def _drain(self, side: int) -> None:
        """Wait until no other thread marks ``side``.

        Reads are short, so this yields and checks again.
        """
        readers = self._readers[side]
        while readers and any(reader != threading.get_ident() for reader in tuple(readers)):
            time.sleep(0)


def _copy(value: T) -> T:
    duplicate: Callable[[], T] = value.copy  # type: ignore[attr-defined]
    return duplicate()
