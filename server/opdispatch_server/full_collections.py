"""When Python's garbage collector goes through everything: not while much is being made.

Note [What lasts is frozen]
    A full collection goes through every object, with the interpreter lock held: those of 50,000
    operators take a second, in which a process does nothing else. Of the daemon's none is
    ever found to be garbage: a version, its registrations and its operators have one another
    one way only, so all of it goes with its last reference, and so does what belongs to a request
    (``test_operator_registry.py`` and ``test_daemon_garbage.py`` hold this). So the daemon
    freezes what it has made of a library: later collections go through what has come since.
    What is frozen and becomes garbage of the cyclic kind stays. That can only be what lived in
    the moment of a publication: garbage of before is collected first.
    An interpreter has code of users, which is full of cycles, and freezes nothing.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

# More than there are ever collections of the generation below.
_NEVER = 2**31 - 1


class FullCollections:
    """Puts them off. Used by one thread; what is made meanwhile may be made in any."""

    def __init__(self) -> None:
        self._blocks = 0
        self._thresholds = gc.get_threshold()

    @contextmanager
    def put_off(self) -> Iterator[None]:
        """Disable automatic full collections in the block, perhaps one of several at once.

        Code of users that runs in it may set thresholds of its own, which stay.
        """
        if not self._blocks:
            self._thresholds = gc.get_threshold()
            gc.set_threshold(*self._thresholds[:2], _NEVER)
        self._blocks += 1
        try:
            yield
        finally:
            self._blocks -= 1
            if not self._blocks and gc.get_threshold()[2] == _NEVER:
                gc.set_threshold(*self._thresholds)

    @contextmanager
    def spared(self) -> Iterator[None]:
        """Collect once after the block, whose objects last; see Note [What lasts is frozen]."""
        gc.collect()
        with self.put_off():
            try:
                yield
            finally:
                gc.collect(1)
                gc.freeze()
