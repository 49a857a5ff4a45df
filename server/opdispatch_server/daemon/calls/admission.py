"""The queues of all interpreters.

Calls wait in the daemon: an interpreter holds little more than what it runs, so that its end
hurts as few calls as possible, and a call that waits can be dropped or sent elsewhere.
"""

from __future__ import annotations

from opdispatch_server.daemon.calls.interpreter_gate import InterpreterGate, QueueLimits
from opdispatch_server.daemon.interpreters.session import InterpreterSession


class Admission:
    """The gates of all interpreters. Belongs to the event loop; other threads may look."""

    def __init__(self, limits: QueueLimits) -> None:
        self._limits = limits
        self._gates: dict[InterpreterSession, InterpreterGate] = {}

    def gate_of(self, session: InterpreterSession) -> InterpreterGate:
        """The gate of a live interpreter, or of one that has just gone: that one is closed."""
        gate = self._gates.get(session)
        if gate is None:
            gate = self._gates[session] = InterpreterGate(session.name, self._limits)
            session.at_end(lambda: self._close(session))
        return gate

    def find(self, session: InterpreterSession) -> InterpreterGate | None:
        """The gate, if any call has come so far."""
        return self._gates.get(session)

    def check_invariants(self) -> list[str]:
        """Return the violated invariants, in words."""
        return [line for gate in list(self._gates.values()) for line in gate.check_invariants()]

    def _close(self, session: InterpreterSession) -> None:
        self._gates.pop(session).close(
            lambda operator: session.death(
                f"{operator} was queued for it", operator=operator, started="no"
            )
        )
