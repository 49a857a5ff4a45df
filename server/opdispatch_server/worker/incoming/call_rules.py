"""Rules for which calls of an interpreter's lane may run."""

from __future__ import annotations

import itertools
from typing import Protocol

from opdispatch_server.call_context import CallContext
from opdispatch_server.direct_run import DirectRun
from opdispatch_server.worker.execution.epoch_plans import EpochPlans
from opdispatch_server.worker.execution.kernel_plan import KernelPlan
from opdispatch_server.worker.libraries.queue_space import QueueSpace
from opdispatch_server.worker.values.store import ValueStore
from opdispatch_wire.v1 import execution_pb2


class CallRules(Protocol):
    """Rules for which calls of a lane may run. Thread-safe."""

    @property
    def room(self) -> QueueSpace | None:
        """The space for calls that wait; None if the other side limits its calls itself."""

    @property
    def session(self) -> int:
        """The daemon's number for this interpreter, by which callers recognize it."""

    @property
    def plans(self) -> EpochPlans | None:
        """The plans of calls under these rules; None if calls are not planned."""

    def new_lane(self) -> int:
        """Return the number of the next connection."""

    def admit(self, lane: int, request: execution_pb2.CallRequest) -> CallContext:
        """Admit a call, which ``end`` ends. Raises OpdispatchError if the call may not run."""

    def admit_planned(self, plan: KernelPlan, lane: int, number: int) -> DirectRun | None:
        """Admit a planned call; the caller ends it with ``end_run``.

        Return None if it has to be admitted by ``admit`` instead.
        """

    def end_run(self, run: DirectRun) -> None:
        """End a planned call, even one that will never run."""

    def begin(self, context: CallContext) -> None:
        """Note that the kernel of a call begins, in this thread."""

    def end(self, context: CallContext) -> None:
        """End a call, even one that will never run."""


class DaemonCalls:
    """The rules for calls by the daemon, which is trusted and limits its calls itself."""

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
        """Return the run of a planned call; the daemon knows all its calls by lane 0."""
        return DirectRun(plan.operator, plan.library.load_id, 0, number)

    def forget_plans(self) -> None:
        """Drop all plans, because the registry changes. Thread-safe."""
        self.plans = EpochPlans(self._values, relayed=True)

    def end_run(self, run: DirectRun) -> None:
        """Do nothing: the daemon keeps track of its calls."""

    def begin(self, context: CallContext) -> None:
        """Do nothing: the daemon keeps track of its calls."""

    def end(self, context: CallContext) -> None:
        """Do nothing: the daemon keeps track of its calls."""
