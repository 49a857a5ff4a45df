"""The reason of a session's end, kept for later errors."""

from __future__ import annotations

from typing import Final

from opdispatch_wire.errors import InterpreterDiedError

UNEXPLAINED: Final = "its session ended"
"""The reason while no better one is known."""


class SessionEnd:
    """The reason and cause of a session's end; some of it becomes known only afterwards."""

    __slots__ = ("by_itself", "interpreter", "pid", "reason")

    def __init__(self, interpreter: str, pid: int) -> None:
        self.interpreter = interpreter
        self.pid = pid
        self.reason = UNEXPLAINED
        self.by_itself = False

    def error(self, what: str = "", **facts: str) -> InterpreterDiedError:
        """Return the error for work that was running in, or meant for, the ended interpreter."""
        doing = f" while {what}" if what else ""
        if self.by_itself:
            facts["ended_by"] = "itself"
        return InterpreterDiedError(
            f"interpreter {self.interpreter} (pid {self.pid}) went away{doing}: {self.reason}",
            interpreter=self.interpreter,
            **facts,
        )
