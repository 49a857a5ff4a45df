"""The context of a call: its deadline, its nesting depth, and the call that it is nested in.

A kernel may call operators whose kernels are in other interpreters, through the daemon. Such a call
inherits the remaining time, is one level deeper, and names the run of the calling kernel by a
secret number that only the daemon and the interpreter know. A call that names no run, or one that
has ended, is treated like any client's. Interpreters have threads for each level, so that calls
that wait for deeper ones can never exhaust the threads of those.

Note [Nested calls take no slot]
    A library declares how many client calls it runs at a time. A call that one of its kernels
    makes, to any library, belongs to the running call and starts at once: if it had to wait for a
    slot, two libraries that call each other could deadlock, and so could a library that calls
    itself through another one.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import grpc

from opdispatch_server.direct_run import DirectRun
from opdispatch_server.nested_time import NestedTime
from opdispatch_wire.chunks import CallTensors
from opdispatch_wire.v1 import execution_pb2

# One header for everything: "DEPTH RUN LANE LIMIT", then the remaining seconds, if limited.
CONTEXT_KEY = "opdispatch-context"
MAX_DEPTH = 32

RUN_BYTES = 16
"""Length of a run's number, which authorizes nested calls, and so is too long to guess."""

# A queued call is dropped this long before its deadline, so that its caller learns that it never
# started; but not before this share of its time has passed.
LAST_WORDS = 0.05
LAST_WORDS_SHARE = 0.1

FOREVER = 1e9
"""A substitute for no limit, in seconds, that locks and timers accept."""

KERNEL_THREADS = 32
"""How many kernels an interpreter runs at a time, for each depth; libraries may set less."""


@dataclass(slots=True)  # never changed; frozen dataclasses take five times as long to create
class CallContext:
    """The context of one call. ``deadline`` is a time of ``time.monotonic``, or None.

    ``run`` is the daemon's number of a kernel's run, 128 random bits, or 0 for none: towards an
    interpreter, the run that begins there; from an interpreter, the run that makes the call.
    ``lane`` is the load id of the library that the call belongs to, 0 if it takes no slot, and
    ``limit`` how many calls of that lane an interpreter runs at a time. The daemon ignores a
    client's ``depth``, ``lane`` and ``limit``, and sets them itself. ``direct`` is an interpreter's
    record of a call that has not come through the daemon. ``tensors`` are the call's large tensors,
    if they are outside its messages. ``queued`` is how long it has waited in queues so far, in
    nanoseconds. ``message`` is the message that contained the call, if others will be like it: see
    Note [Constant bytes].
    """

    deadline: float | None = None
    depth: int = 0
    run: int = 0
    lane: int = 0
    limit: int = 0
    direct: DirectRun | None = None
    tensors: CallTensors | None = None
    queued: int = 0
    message: bytes = b""

    @classmethod
    def of(cls, context: grpc.aio.ServicerContext[Any, Any]) -> CallContext:
        """Read the context that the caller of a method sent."""
        seconds: float | None = context.time_remaining()
        text = dict(context.invocation_metadata() or ()).get(CONTEXT_KEY, "")
        found = _FORMAT.fullmatch(text) if isinstance(text, str) else None
        if found is None:
            return cls(_deadline(seconds))
        depth, run, lane, limit, told = found.groups()
        if told is not None:
            seconds = float(told) if seconds is None else min(float(told), seconds)
        return cls(_deadline(seconds), min(int(depth), MAX_DEPTH), int(run), int(lane), int(limit))

    @classmethod
    def of_request(
        cls, request: execution_pb2.CallRequest, tensors: CallTensors | None = None
    ) -> CallContext:
        """Read the context from the message itself, on a local lane."""
        deadline = deadline_of(request)
        if not request.HasField("path"):
            return cls(deadline, tensors=tensors)
        path = request.path
        run = int.from_bytes(path.run[:RUN_BYTES])
        return cls(
            deadline,
            min(path.depth, MAX_DEPTH),
            run,
            path.lane,
            path.limit,
            tensors=tensors,
            queued=path.queued,
        )

    def write_to(self, request: execution_pb2.CallRequest) -> None:
        """Write the context to the message, for a local lane."""
        timeout = self.timeout
        if timeout is None:
            request.ClearField("timeout")
        else:
            request.timeout = timeout
        run = self.run.to_bytes(RUN_BYTES) if self.run else b""
        path = request.path
        path.depth, path.run, path.lane, path.limit = self.depth, run, self.lane, self.limit
        path.queued = self.queued

    # Not dataclasses.replace, which takes ten times as long: every call comes through here.

    def in_lane(self, lane: int, limit: int, queued: int = 0) -> CallContext:
        """Return the context of a call that takes a slot of a library after being ``queued``."""
        return CallContext(
            self.deadline, self.depth, self.run, lane, limit, None, self.tensors, queued
        )

    def for_run(self, run: int) -> CallContext:
        """Return the context for a kernel's run that begins."""
        return CallContext(
            self.deadline, self.depth, run, self.lane, self.limit, None, self.tensors, self.queued
        )

    def with_tensors(self, tensors: CallTensors) -> CallContext:
        """Return the context of a call with large tensors outside its message."""
        return CallContext(
            self.deadline,
            self.depth,
            self.run,
            self.lane,
            self.limit,
            self.direct,
            tensors,
            self.queued,
        )

    @property
    def timeout(self) -> float | None:
        """The remaining seconds, 0 if none are left; None: unlimited."""
        if self.deadline is None:
            return None
        return max(self.deadline - time.monotonic(), 0.0)

    def size_of(self, request: execution_pb2.CallRequest) -> int:
        """Return the size of the call's message, in bytes, as queues count it.

        Large tensors outside the message are limited separately, for all callers together.
        """
        return request.ByteSize() + (self.tensors.message_bytes if self.tensors else 0)

    @property
    def is_from_kernel(self) -> bool:
        """Whether the caller claims to be a kernel, or the import of a library."""
        return self.depth > 0

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        """The metadata that carries the context to the next process."""
        text = f"{self.depth} {self.run} {self.lane} {self.limit}"
        if self.deadline is not None:
            text = f"{text} {self.timeout:.6f}"
        return ((CONTEXT_KEY, text),)


_FORMAT = re.compile(r"(\d{1,9}) (\d{1,39}) (\d{1,19}) (\d{1,19})(?: (\d{1,9}\.\d{6}))?", re.ASCII)


def deadline_of(request: execution_pb2.CallRequest) -> float | None:
    """Return the deadline stated in the message itself; see ``CallContext``."""
    if not request.HasField("timeout") or request.timeout > FOREVER:
        return None
    # NaN and negative numbers mean no time left: timers cannot be ordered with NaN.
    return time.monotonic() + max(0.0, request.timeout)


def _deadline(seconds: float | None) -> float | None:
    return None if seconds is None else time.monotonic() + seconds


@dataclass(slots=True)
class RunningCall:
    """The call that a kernel is running for. ``deadline`` is a time of ``time.monotonic``."""

    deadline: float | None = None
    depth: int = 0
    run: int = 0
    nested_calls: NestedTime | None = None
    version: int = 0
    """The version of the library whose code runs; 0 if it belongs to several, or to none."""
    traceparent: str = ""
    """The span that is the parent of the kernel's calls."""
    argument_bytes: int = 0
    """The bytes of its tensor arguments, once known; see ``count_bytes``."""
    result_bytes: int = 0
    """The bytes of its results, once they can be sent."""

    @classmethod
    def of(cls, context: CallContext, version: int = 0) -> RunningCall:
        """Return the call that begins to run a kernel of that version of a library."""
        nested_calls = context.direct.nested_calls if context.direct is not None else NestedTime()
        return cls(context.deadline, context.depth, context.run, nested_calls, version)

    @contextmanager
    def nested(self) -> Iterator[CallContext]:
        """Yield the context for a call that the kernel makes, while that call is in progress."""
        if self.nested_calls is None:
            yield CallContext(self.deadline, self.depth + 1, self.run)
            return
        self.nested_calls.begin()
        try:
            yield CallContext(self.deadline, self.depth + 1, self.run)
        finally:
            self.nested_calls.end()


NO_CALL = RunningCall()
"""Outside any call, as during a library's import, and in threads that a kernel started."""

RUNNING_CALL: ContextVar[RunningCall] = ContextVar("opdispatch_running_call", default=NO_CALL)


def with_last_words(seconds: float) -> float:
    """Return how long a call with so many seconds left may wait for its turn.

    The rest is for reporting that it never started.
    """
    return seconds - min(LAST_WORDS, LAST_WORDS_SHARE * seconds)
