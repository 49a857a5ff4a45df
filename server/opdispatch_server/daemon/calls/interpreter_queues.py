"""The queues of all interpreters.

Calls wait in the daemon: an interpreter holds little more than it runs, so that its death affects
as few calls as possible, and a waiting call can be dropped or moved.
"""

from __future__ import annotations

from opdispatch_server.daemon.calls.interpreter_queue import InterpreterQueue, QueueLimits
from opdispatch_server.daemon.interpreters.session import InterpreterSession


class InterpreterQueues:
    """The queues of all interpreters. Changed in the event loop only; other threads may read."""

    def __init__(self, limits: QueueLimits) -> None:
        self._limits = limits
        self._queues: dict[InterpreterSession, InterpreterQueue] = {}

    def queue_of(self, session: InterpreterSession) -> InterpreterQueue:
        """Return the queue of an interpreter; a closed one if the interpreter has just gone."""
        queue = self._queues.get(session)
        if queue is None:
            queue = self._queues[session] = InterpreterQueue(session.name, self._limits)
            session.at_end(lambda: self._close(session))
        return queue

    def find(self, session: InterpreterSession) -> InterpreterQueue | None:
        """Return the interpreter's queue, or None if it has received no call yet."""
        return self._queues.get(session)

    def check_invariants(self) -> list[str]:
        """Return descriptions of the violated invariants."""
        return [line for queue in list(self._queues.values()) for line in queue.check_invariants()]

    def _close(self, session: InterpreterSession) -> None:
        self._queues.pop(session).close(
            lambda operator: session.death(
                f"{operator} was queued for it", operator=operator, started="no"
            )
        )
