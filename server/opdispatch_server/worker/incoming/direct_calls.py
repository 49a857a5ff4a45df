"""The calls that clients send to an interpreter directly: which may run, and which run too long.

Note [Direct calls and the registry]
    A client has its route from the daemon: which kernel of which loaded library runs calls of
    that kind, as of one epoch of the registry. Every change of the registry begins a new epoch.
    Before a change is published, the daemon closes the routes: it tells every interpreter to
    take no direct calls, and waits until they have heard it. A direct caller in that
    moment is refused, and asks the daemon. So a call that begins after a change was
    acknowledged never runs what was there before.

    An interpreter whose event loop gets no time may have not heard it. It refuses direct calls
    after ATTENTION seconds in which its loop did not turn, and the daemon waits longer than
    that before it goes on without an answer.

    An interpreter that has lost its daemon goes on with the last epoch that it was sent, until
    a daemon sends it another one.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Awaitable, Callable

from opdispatch_server.call_context import KERNEL_THREADS, CallContext, deadline_of
from opdispatch_server.direct_run import ATTENTION, DirectRun
from opdispatch_server.worker.execution.kernel_plan import KernelPlan, KernelPlans
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

# How often the event loop says that it is there.
_PULSE = ATTENTION / 4
# The share of a kernel's time limit that lies between two looks.
_LOOKS_PER_TIMEOUT = 10
# How often it is looked whether calls have ended: libraries are let go seldom.
_IDLE_LOOK = 0.01


class DirectCalls:
    """The rules for direct calls, and those that there are, in one interpreter.

    The event loop sets the rules; the threads of lanes ask, begin and end. Each rule is one
    attribute, read once for a call.
    """

    def __init__(self, libraries: InterpreterLibraries, values: ValueStore) -> None:
        self._libraries = libraries
        self._values = values
        self._epoch = 0
        self._attentive_until = 0.0
        self._run = 0
        self._kernel_timeout = 0.0
        self.room = QueueSpace("", 0, 0)
        """For those that have to wait."""
        self._runs: dict[DirectRun, None] = {}
        self._lanes = itertools.count(1)
        self._counter = itertools.count()
        self.total = 0
        """How many there have been."""

        self.session = 0
        """The daemon's number for this interpreter."""
        self.plans = KernelPlans(values)
        """Those of the epoch whose calls are taken."""

    @property
    def in_flight(self) -> int:
        """How many are running or waiting."""
        return len(self._runs)

    @property
    def epoch(self) -> int:
        """The epoch whose calls are taken; 0: none are."""
        return self._epoch

    # -- the rules: for the event loop ----------------------------------------------------------

    def follow(self, rules: interpreter_pb2.DirectCallRules, interpreter: str) -> None:
        """Take over what a daemon says on welcoming the interpreter; no calls yet."""
        self._epoch = 0
        self._run = int.from_bytes(rules.run)
        self.session = rules.session
        self._kernel_timeout = rules.kernel_timeout
        self.room = QueueSpace(interpreter, rules.queue_calls, rules.queue_bytes)

    def take(self, epoch: int) -> None:
        """Accept calls over routes of this epoch from now on; 0 means none."""
        self._epoch = epoch
        # A thread that plans a call meanwhile puts it among those that are dropped here.
        self.plans = KernelPlans(self._values, epoch, self._run)

    async def attend(self, report: Callable[[DirectRun], Awaitable[None]]) -> None:
        """Keep the promise of Note [Direct calls and the registry], until cancelled.

        ``report`` is called once for each call whose kernel has run for too long.
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
        """Wait until there is no direct call, or none of one library."""
        while any(load_id in (None, run.load_id) for run in list(self._runs)):
            await asyncio.sleep(_IDLE_LOOK)

    # -- calls: for the threads of lanes --------------------------------------------------------

    def new_lane(self) -> int:
        """Return a number that no other connection of clients has."""
        return next(self._lanes)

    def admit(self, lane: int, request: execution_pb2.CallRequest) -> CallContext:
        """Admit a call; ``end`` follows.

        Raises RefusedError if the daemon is to be asked, and WireError.
        """
        if not request.HasField("kernel"):
            raise WireError("$.kernel is missing; a direct call names it, as its Route does")
        if needs_daemon(request):
            raise RefusedError(
                "programs are the daemon's to route; the call never started", hint="ask the daemon"
            )
        if request.HasField("keep") and not self._values.keeps.has_room(request.keep.session):
            raise not_kept_error()
        epoch = self._epoch
        if not epoch or request.route_epoch != epoch or time.monotonic() > self._attentive_until:
            raise RefusedError(
                f"the route of {request.operator} does not hold any more; the call never started",
                hint="ask the daemon",
            )
        library = self._libraries.get(request.kernel.load_id)
        remote = remote_arguments(request)
        values = self._values.pin(remote) if remote else ()
        if values is None:
            raise values_elsewhere_error()
        run = DirectRun(request.operator, library.load_id, lane, request.id, values)
        self._runs[run] = None
        if self._epoch != epoch:
            # The daemon may have been told in this moment that there are no direct calls.
            self.end_run(run)
            raise RefusedError("the registry has just changed; the call never started")
        self.total = next(self._counter) + 1
        limit = min(library.max_concurrency, KERNEL_THREADS)
        deadline = deadline_of(request)
        return CallContext(deadline, 0, self._run, library.load_id, limit, run)

    def admit_planned(self, plan: KernelPlan, lane: int, number: int) -> DirectRun | None:
        """Admit a planned call; ``end_run`` follows. None: ``admit`` has to be asked."""
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
        """Forget a planned call, which has ended, or is to be admitted the general way."""
        del self._runs[run]
        if run.values:
            self._values.unpin(run.values)

    def begin(self, context: CallContext) -> None:
        """Begin the kernel of a call, in this thread."""
        assert context.direct is not None, "admit sees to that"
        context.direct.began = time.monotonic()

    def end(self, context: CallContext) -> None:
        """End a call, even one that will never run."""
        assert context.direct is not None, "admit sees to that"
        self.end_run(context.direct)
