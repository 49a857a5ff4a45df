"""What a call carries beside its message: how much time it has, and how deep it is nested.

A kernel may call operators whose kernels are in other interpreters, through the daemon. Such a
call inherits the time that is left, and counts one level deeper. Interpreters have threads for
each level, so that calls which wait for deeper ones can never use up the threads of those.
"""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import grpc

DEPTH_KEY = "opdispatch-depth"
MAX_DEPTH = 32


@dataclass(frozen=True, slots=True)
class CallContext:
    """``timeout`` is in seconds; None if the caller has all the time in the world."""

    timeout: float | None = None
    depth: int = 0

    @classmethod
    def of(cls, context: grpc.aio.ServicerContext[Any, Any]) -> CallContext:
        """What the caller of a method said."""
        metadata = dict(context.invocation_metadata() or ())
        depth = metadata.get(DEPTH_KEY, "0")
        digits = isinstance(depth, str) and depth.isascii() and depth.isdigit()
        return cls(context.time_remaining(), min(int(depth[:4]), MAX_DEPTH) if digits else 0)

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        """How the depth is told to the next process."""
        return ((DEPTH_KEY, str(self.depth)),) if self.depth else ()


@dataclass(frozen=True, slots=True)
class RunningCall:
    """The call that a kernel is running for. ``deadline`` is a time of ``time.monotonic``."""

    deadline: float | None = None
    depth: int = 0


NO_CALL = RunningCall()
"""Outside of any call, as during a library's import."""

RUNNING_CALL: ContextVar[RunningCall] = ContextVar("opdispatch_running_call", default=NO_CALL)
