"""Admit direct calls by clients, and report those that run too long.

Note [Direct calls and the registry]
    A client gets routes from the daemon. A route names the kernel and the loaded library that serve
    calls of one shape, as of one epoch of the registry. Every change of the registry begins a new
    epoch.

    Before the daemon publishes a change, it closes the routes: it tells every interpreter to accept
    no direct calls, and waits for their acknowledgments. Direct calls in that moment are refused,
    and go through the daemon. So a call that begins after a change was acknowledged never runs the
    previous kernel.

    An interpreter whose event loop is blocked may not have received the message. It refuses direct
    calls once its loop has not run for ATTENTION seconds, and the daemon waits longer than that
    before it goes on without an acknowledgment.

    An interpreter that has lost its daemon keeps the last epoch it was sent until a daemon sends it
    another one.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Awaitable, Callable

from opdispatch_server.call_context import KERNEL_THREADS, CallContext, deadline_of
from opdispatch_server.direct_run import ATTENTION, DirectRun
from opdispatch_server.worker.execution.epoch_plans import EpochPlans
from opdispatch_server.worker.execution.kernel_plan import KernelPlan
from opdispatch_server.worker.libraries.instructions import InterpreterLibraries
from opdispatch_server.worker.libraries.queue_space import QueueSpace
from opdispatch_server.worker.values.store import ValueStore
from opdispatch_wire.errors import RefusedError, WireError
from opdispatch_wire.remote_values import (
    needs_daemon,
    not_kept_error,
    remote_arguments,
    values_elsewhere_error,
)
from opdispatch_wire.v1 import execution_pb2, interpreter_pb2

# Interval in seconds at which the event loop shows that it runs.
_PULSE = ATTENTION / 4
# The number of checks for overdue kernels within their time limit.
_LOOKS_PER_TIMEOUT = 10
# Interval in seconds of the checks for the end of calls. Polling is enough: unloading is rare.
_IDLE_LOOK = 0.01


class DirectCalls:
    """The rules for direct calls in one interpreter, and its direct calls in flight.

    The event loop sets the rules, and the threads of lanes read them without a lock: each rule is
    one attribute, which a call reads only once.
    """

    def __init__(self, libraries: InterpreterLibraries, values: ValueStore) -> None:
        self._libraries = libraries
        self._values = values
        self._epoch = 0
        self._attentive_until = 0.0
        self._run = 0
        self._kernel_timeout = 0.0
        self.room = QueueSpace("", 0, 0)
        """The space for direct calls that wait."""
        self._runs: dict[DirectRun, None] = {}
        self._lanes = itertools.count(1)
        self._counter = itertools.count()
        self.total = 0
        """The number of direct calls so far."""

        self.session = 0
        """The daemon's number for this interpreter."""
        self.plans = EpochPlans(values)
        """The plans of direct calls in the current epoch."""

    @property
    def in_flight(self) -> int:
        """The number of direct calls that run or wait."""
        return len(self._runs)

    @property
    def epoch(self) -> int:
        """The epoch whose direct calls are accepted; 0 if none are."""
        return self._epoch

    # -- the rules: for the event loop ----------------------------------------------------------

    def follow(self, rules: interpreter_pb2.DirectCallRules, interpreter: str) -> None:
        """Adopt the rules in a daemon's welcome; accept no calls until ``take``."""
        self._epoch = 0
        self._run = int.from_bytes(rules.run)
        self.session = rules.session
        self._kernel_timeout = rules.kernel_timeout
        self.room = QueueSpace(interpreter, rules.queue_calls, rules.queue_bytes)

    def take(self, epoch: int) -> None:
        """Accept calls by routes of this epoch from now on; 0 accepts none."""
        self._epoch = epoch
        # After the epoch: a thread that still plans a call of the old one adds it to the old plans.
        self.plans = EpochPlans(self._values, epoch, self._run)

    async def attend(self, report: Callable[[DirectRun], Awaitable[None]]) -> None:
        """Show that the event loop runs, until cancelled: see Note [Direct calls and the registry].

        ``report`` is called once for each call whose kernel has exceeded its time limit.
        """
        timeout = self._kernel_timeout
        pause = min(_PULSE, timeout / _LOOKS_PER_TIMEOUT) if timeout else _PULSE
        while True:
            self._attentive_until = time.monotonic() + ATTENTION
            for run in list(self._runs) if timeout else ():
                if not run.is_reported and run.is_overdue(timeout):
                    run.is_reported = True
                    await report(run)
            await asyncio.sleep(pause)

    async def wait_idle(self, load_id: int | None = None) -> None:
        """Wait until no direct calls are in flight, or none of one library."""
        while any(load_id in (None, run.load_id) for run in list(self._runs)):
            await asyncio.sleep(_IDLE_LOOK)

    # -- calls: for the threads of lanes --------------------------------------------------------

    def new_lane(self) -> int:
        """Return a number that no other client connection has."""
        return next(self._lanes)

    def admit(self, lane: int, request: execution_pb2.CallRequest) -> CallContext:
        """Admit a call; the caller ends it with ``end``.

        Raises RefusedError if the call has to go through the daemon, and WireError if it is
        malformed.
        """
        if not request.HasField("kernel"):
            raise WireError("$.kernel is missing; expected the kernel of the call's Route")
        if needs_daemon(request):
            raise RefusedError(
                "only the daemon routes programs and calls that say where to keep results; the "
                "call never started",
                hint="make the call through the daemon",
            )
        if request.HasField("keep") and not self._values.keeps.has_room(request.keep.session):
            raise not_kept_error()
        epoch = self._epoch
        if not epoch or request.route_epoch != epoch or time.monotonic() > self._attentive_until:
            raise RefusedError(
                f"the route of {request.operator} is no longer valid; the call never started",
                hint="make the call through the daemon",
            )
        library = self._libraries.get(request.kernel.load_id)
        remote = remote_arguments(request)
        values = self._values.pin(remote) if remote else ()
        if values is None:
            raise values_elsewhere_error()
        run = DirectRun(request.operator, library.load_id, lane, request.id, values)
        self._runs[run] = None
        if self._epoch != epoch:
            # The event loop may have changed the epoch, and found no direct calls, before the run
            # was added. Adding it first and then checking again closes that gap.
            self.end_run(run)
            raise RefusedError("the registry has just changed; the call never started")
        self.total = next(self._counter) + 1
        limit = min(library.max_concurrency, KERNEL_THREADS)
        deadline = deadline_of(request)
        return CallContext(deadline, 0, self._run, library.load_id, limit, run)

    def admit_planned(self, plan: KernelPlan, lane: int, number: int) -> DirectRun | None:
        """Admit a planned call; the caller ends it with ``end_run``.

        Return None if it has to be admitted by ``admit`` instead.
        """
        epoch = self._epoch
        if not epoch or plan.epoch != epoch or time.monotonic() > self._attentive_until:
            return None
        run = DirectRun(plan.operator, plan.library.load_id, lane, number)
        self._runs[run] = None
        if self._epoch != epoch:  # see ``admit``
            del self._runs[run]
            return None
        self.total = next(self._counter) + 1
        return run

    def end_run(self, run: DirectRun) -> None:
        """End a planned call, even one that is then admitted on the general path."""
        del self._runs[run]
        if run.values:
            self._values.unpin(run.values)

    def begin(self, context: CallContext) -> None:
        """Note that the kernel of a call begins, in this thread."""
        assert context.direct is not None, "admit sets it"
        context.direct.began = time.monotonic()

    def end(self, context: CallContext) -> None:
        """End a call, even one that will never run."""
        assert context.direct is not None, "admit sets it"
        self.end_run(context.direct)
