"""Which calls of an interpreter's lane may run."""

from __future__ import annotations

import itertools
from typing import Protocol

from opdispatch_server.call_context import CallContext
from opdispatch_server.direct_run import DirectRun
from opdispatch_server.worker.execution.kernel_plan import KernelPlan, KernelPlans
from opdispatch_server.worker.libraries.queue_space import QueueSpace
from opdispatch_server.worker.values.store import ValueStore
from opdispatch_wire.v1 import execution_pb2


class CallRules(Protocol):
    """Which calls of a lane may run. Any thread may ask."""

    @property
    def room(self) -> QueueSpace | None:
        """Where those wait that cannot run yet; None: the other side knows how many may."""

    @property
    def session(self) -> int:
        """The daemon's number for the interpreter, which tells its callers where they are."""

    @property
    def plans(self) -> KernelPlans | None:
        """The plans of calls that come this way; None: there are none."""

    def new_lane(self) -> int:
        """Return the name of the next connection."""

    def admit(self, lane: int, request: execution_pb2.CallRequest) -> CallContext:
        """Admit a call; ``end`` follows. Raises OpdispatchError if it may not run."""

    def admit_planned(self, plan: KernelPlan, lane: int, number: int) -> DirectRun | None:
        """Admit a planned call; ``end_run`` follows. None: it has to ask ``admit``."""

    def end_run(self, run: DirectRun) -> None:
        """Forget a planned call, which has ended, or will never run."""

    def begin(self, context: CallContext) -> None:
        """Begin the kernel of a call, in this thread."""

    def end(self, context: CallContext) -> None:
        """End a call, even one that will never run."""


class DaemonCalls:
    """The rules for the daemon's calls: it is believed, and knows how many it may send."""

    room = None
    session = 0

    def __init__(self, values: ValueStore) -> None:
        self._values = values
        self.forget_plans()
        self._lanes = itertools.count(1)

    def new_lane(self) -> int:
        """Return a number that no other connection has."""
        return next(self._lanes)

    def admit(self, lane: int, request: execution_pb2.CallRequest) -> CallContext:
        """Return the context of a call, from its request."""
        return CallContext.of_request(request)

    def admit_planned(self, plan: KernelPlan, lane: int, number: int) -> DirectRun | None:
        """Return what stands for a call, which the daemon knows as one of its lane 0."""
        return DirectRun(plan.operator, plan.library.load_id, 0, number)

    def forget_plans(self) -> None:
        """Plan calls anew: the registry changes. Any thread may ask."""
        self.plans = KernelPlans(self._values, relayed=True)

    def end_run(self, run: DirectRun) -> None:
        """Do nothing: the daemon knows what runs."""

    def begin(self, context: CallContext) -> None:
        """Do nothing: the daemon knows what runs."""

    def end(self, context: CallContext) -> None:
        """Do nothing: the daemon knows what runs."""
