"""One interpreter's copy of a library version, and the calls that it is running."""

from __future__ import annotations

import enum
import itertools
import time
from typing import TYPE_CHECKING

from opdispatch_server.daemon.libraries.counted_calls import CountedCalls

if TYPE_CHECKING:
    from opdispatch_server.daemon.interpreters.session import InterpreterSession


class ReplicaState(enum.Enum):
    """The state of a replica."""

    JOINING = "joining"  # its interpreter is publishing it, and has not answered yet
    SERVING = "serving"  # new calls may go there
    LEAVING = "leaving"  # finishes its calls; then its code is released


_calls = itertools.count(1)
# For how long a replica that has failed a call is chosen last. Usually its interpreter has died,
# and the end of its session is about to be noticed; if not, it receives calls again.
DISTRUST_SECONDS = 1.0


class Replica(CountedCalls):
    """A library version in one interpreter. For use in the event loop only."""

    def __init__(self, session: InterpreterSession, state: ReplicaState) -> None:
        super().__init__()
        self.session = session
        self.state = state
        self.is_barred = False
        """Its library must no longer run there: it would bring down the others, too.
        """
        # Grows with every call of any replica: of two with equal load, the one whose last call is
        # older is chosen.
        self.last_call = 0
        self._distrusted_until = 0.0

    @property
    def is_serving(self) -> bool:
        """Whether new calls may go there."""
        if self.state is not ReplicaState.SERVING or self.is_barred:
            return False
        return self.session.is_fit

    @property
    def is_distrusted(self) -> bool:
        """Whether it failed a call recently, so that other replicas are preferred."""
        return time.monotonic() < self._distrusted_until

    def note_failure(self) -> None:
        """Distrust the replica for a while, because a call had no reply."""
        self._distrusted_until = time.monotonic() + DISTRUST_SECONDS

    def begin_call(self) -> None:
        """Count a call, and record that it is the replica's most recent one."""
        super().begin_call()
        self.last_call = next(_calls)
