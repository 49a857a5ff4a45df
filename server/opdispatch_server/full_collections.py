"""Full runs of Python's garbage collector: not while many objects are being created.

Note [What lasts is frozen]
    A full collection traverses every object, with the interpreter lock held: the objects of 50,000
    operators take a second, in which a process does nothing else. In the daemon none of them ever
    is cyclic garbage: a version refers to its registrations, and these to its operators, but not
    the other way round, so all are freed with the last reference, and so are the objects of a
    request (``test_operator_registry.py`` and ``test_daemon_garbage.py`` check this). So the daemon
    freezes the objects of a library: later collections traverse only newer ones. Frozen objects
    that become cyclic garbage are never freed. That can only happen to objects that were alive at
    the moment of a publication: earlier garbage is collected first. An interpreter runs user code,
    which is full of cycles, and freezes nothing.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

# More than the number of collections of the younger generation can ever be.
_NEVER = 2**31 - 1


class FullCollections:
    """Defers full collections. Used by one thread; objects may be created in any."""

    def __init__(self) -> None:
        self._blocks = 0
        self._thresholds = gc.get_threshold()

    @contextmanager
    def put_off(self) -> Iterator[None]:
        """Disable automatic full collections during the block; blocks may overlap.

        User code that runs in the block may set thresholds of its own, which are kept.
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
        """Collect once after the block, whose objects are permanent.

        See Note [What lasts is frozen].
        """
        gc.collect()
        with self.put_off():
            try:
                yield
            finally:
                gc.collect(1)
                gc.freeze()
