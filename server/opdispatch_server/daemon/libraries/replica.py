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

    JOINING = "joining"  # its interpreter has been told to publish it, and has not answered
    SERVING = "serving"  # calls that start now may go there
    LEAVING = "leaving"  # finishes the calls that it has; then its code is let go


_calls = itertools.count(1)
# For how long a replica that has failed a call is the last choice: its interpreter has died, and
# the end of its session is about to be noticed; if not, it is given calls again.
DISTRUST_SECONDS = 1.0


class Replica(CountedCalls):
    """A library version in one interpreter. Belongs to the event loop."""

    def __init__(self, session: InterpreterSession, state: ReplicaState) -> None:
        super().__init__()
        self.session = session
        self.state = state
        self.is_barred = False
        """Its library must not run there any more: it would bring others down."""
        # Grows with every call of any replica: of two with equal load, the one whose last call
        # is longer ago has the next.
        self.last_call = 0
        self._distrusted_until = 0.0

    @property
    def is_serving(self) -> bool:
        """Whether calls that start now may go there."""
        if self.state is not ReplicaState.SERVING or self.is_barred:
            return False
        return self.session.is_fit

    @property
    def is_distrusted(self) -> bool:
        """Whether it has failed a call just now, so that others come first."""
        return time.monotonic() < self._distrusted_until

    def note_failure(self) -> None:
        """Distrust the replica for a while: a call has not come back."""
        self._distrusted_until = time.monotonic() + DISTRUST_SECONDS

    def begin_call(self) -> None:
        """Count a call, and note that it is the last one."""
        super().begin_call()
        self.last_call = next(_calls)
