"""The queues of all interpreters.

Calls wait in the daemon: an interpreter holds little more than what it runs, so that its end
hurts as few calls as possible, and a call that waits can be dropped or moved.
"""

from __future__ import annotations

from opdispatch_server.daemon.calls.interpreter_queue import InterpreterQueue, QueueLimits
from opdispatch_server.daemon.interpreters.session import InterpreterSession


class InterpreterQueues:
    """The queues of all interpreters. Belongs to the event loop; other threads may look."""

    def __init__(self, limits: QueueLimits) -> None:
        self._limits = limits
        self._queues: dict[InterpreterSession, InterpreterQueue] = {}

    def queue_of(self, session: InterpreterSession) -> InterpreterQueue:
        """Return the queue of an interpreter; that of one that has just gone is closed."""
        queue = self._queues.get(session)
        if queue is None:
            queue = self._queues[session] = InterpreterQueue(session.name, self._limits)
            session.at_end(lambda: self._close(session))
        return queue

    def find(self, session: InterpreterSession) -> InterpreterQueue | None:
        """Return the queue, if any call has come so far."""
        return self._queues.get(session)

    def check_invariants(self) -> list[str]:
        """Return the violated invariants, in words."""
        return [line for queue in list(self._queues.values()) for line in queue.check_invariants()]

    def _close(self, session: InterpreterSession) -> None:
        self._queues.pop(session).close(
            lambda operator: session.death(
                f"{operator} was queued for it", operator=operator, started="no"
            )
        )
