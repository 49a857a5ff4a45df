"""The context of a call: its deadline, how deep it is nested, and in which call.

A kernel may call operators whose kernels are in other interpreters, through the daemon. Such a
call inherits the time that is left, counts one level deeper, and names the run of the kernel
that makes it, by a number that only the daemon and the interpreter know, and that is secret.
A caller that names no run, or one that has ended, makes a call like any client's. Interpreters have
threads for each level, so that calls which wait for deeper ones can never use up the threads of
those.

Note [Nested calls take no slot]
    A library says how many calls of clients it runs at a time. A call that one of its kernels
    makes, of whatever library, belongs to the call that is running already and starts at once:
    if it had to wait for a slot, two libraries that call each other could wait for each other
    for ever, and so could a library that calls itself through another one.
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

# One header for all of it: "DEPTH RUN LANE LIMIT", then the seconds that are left, if any are set.
CONTEXT_KEY = "opdispatch-context"
MAX_DEPTH = 32

_RUN_BYTES = 16

# A call that is still queued is dropped this long before its deadline, so that its caller hears
# that it never started; but not before that share of its time has passed.
LAST_WORDS = 0.05
LAST_WORDS_SHARE = 0.1

FOREVER = 1e9
"""In seconds: what locks and timers have no room for."""

KERNEL_THREADS = 32
"""The kernels that one interpreter runs at a time, for each depth; libraries may set less."""


@dataclass(slots=True)  # never changed; frozen ones take five times as long to make
class CallContext:
    """``deadline`` is a time of ``time.monotonic``; None if there is none.

    ``run`` is the daemon's number of the run of a kernel, of 128 random bits: on the way to an
    interpreter, the run that begins there; on the return, the one that makes the call. 0: none.
    ``lane`` is the load id of the library that the call belongs to, 0 if it takes no slot, and
    ``limit`` how many of the lane's calls an interpreter runs at a time. The daemon believes
    no client's ``depth``, ``lane`` and ``limit``: it knows them. ``direct`` is what an
    interpreter notes of a call that has not come through the daemon. ``tensors`` are the call's
    large ones, where those are not in its messages. ``queued`` is how long it has waited in queues
    so far, in nanoseconds. ``message`` is what the call came in, if others will be like it: see
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
        run = int.from_bytes(path.run[:_RUN_BYTES])
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
        run = self.run.to_bytes(_RUN_BYTES) if self.run else b""
        path = request.path
        path.depth, path.run, path.lane, path.limit = self.depth, run, self.lane, self.limit
        path.queued = self.queued

    # Not dataclasses.replace, which takes ten times as long: every call passes here.

    def in_lane(self, lane: int, limit: int, queued: int = 0) -> CallContext:
        """Return the context of a call that takes a library's slot, for which it was ``queued``."""
        return CallContext(
            self.deadline, self.depth, self.run, lane, limit, None, self.tensors, queued
        )

    def for_run(self, run: int) -> CallContext:
        """Return the context for the run of a kernel that begins."""
        return CallContext(
            self.deadline, self.depth, run, self.lane, self.limit, None, self.tensors, self.queued
        )

    def with_tensors(self, tensors: CallTensors) -> CallContext:
        """Return the context of a call with large tensors outside of its message."""
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
        """The seconds that are left, 0 if none are; None: all the time in the world."""
        if self.deadline is None:
            return None
        return max(self.deadline - time.monotonic(), 0.0)

    def size_of(self, request: execution_pb2.CallRequest) -> int:
        """Return the bytes of the message that the call came in, as queues count them.

        Large tensors that came beside it, or over a lane, are limited for all who send them.
        """
        return request.ByteSize() + (self.tensors.message_bytes if self.tensors else 0)

    @property
    def is_from_kernel(self) -> bool:
        """Whether the caller says that it is a kernel, or a library's import."""
        return self.depth > 0

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        """Metadata that carries this to the next process."""
        text = f"{self.depth} {self.run} {self.lane} {self.limit}"
        if self.deadline is not None:
            text = f"{text} {self.timeout:.6f}"
        return ((CONTEXT_KEY, text),)


_FORMAT = re.compile(r"(\d{1,9}) (\d{1,39}) (\d{1,19}) (\d{1,19})(?: (\d{1,9}\.\d{6}))?", re.ASCII)


def deadline_of(request: execution_pb2.CallRequest) -> float | None:
    """Return the deadline that the message itself states; see ``CallContext``."""
    if not request.HasField("timeout") or request.timeout > FOREVER:
        return None
    # What is no number, or negative, is no time: timers could not be put in order with it.
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
    """The version of the library whose code runs; 0 where it is of several, or of none."""
    traceparent: str = ""
    """The span that calls of the kernel are a part of."""
    argument_bytes: int = 0
    """The bytes of the tensors that it was given, once they are known; see ``count_bytes``."""
    result_bytes: int = 0
    """Those of its results, once these can be sent."""

    @classmethod
    def of(cls, context: CallContext, version: int = 0) -> RunningCall:
        """Return the call that begins to run, of a kernel in that version of its library."""
        nested_calls = context.direct.nested_calls if context.direct is not None else NestedTime()
        return cls(context.deadline, context.depth, context.run, nested_calls, version)

    @contextmanager
    def nested(self) -> Iterator[CallContext]:
        """Yield the context of a call that the kernel makes, while that is under way."""
        if self.nested_calls is None:
            yield CallContext(self.deadline, self.depth + 1, self.run)
            return
        self.nested_calls.begin()
        try:
            yield CallContext(self.deadline, self.depth + 1, self.run)
        finally:
            self.nested_calls.end()


NO_CALL = RunningCall()
"""Outside of any call, as during a library's import, and in threads that a kernel has started."""

RUNNING_CALL: ContextVar[RunningCall] = ContextVar("opdispatch_running_call", default=NO_CALL)


def with_last_words(seconds: float) -> float:
    """Return how long a call that has so many seconds left may wait for its turn."""
    return seconds - min(LAST_WORDS, LAST_WORDS_SHARE * seconds)
