"""Planned calls in an interpreter, from their coming to their reply, whichever way they came.

See Note [Planned calls] in ``opdispatch_client.lanes.call_plan``.
"""

from __future__ import annotations

import contextlib
import os

from opdispatch.errors import OpdispatchError
from opdispatch_server.call_context import FOREVER, RunningCall
from opdispatch_server.direct_run import DirectRun
from opdispatch_server.fork_guard import GUARD
from opdispatch_server.worker.execution.kernel_plan import KernelPlan
from opdispatch_server.worker.execution.kernels import KernelExecution
from opdispatch_server.worker.incoming.call_rules import CallRules
from opdispatch_server.worker.incoming.lane_replies import failure_of_run
from opdispatch_wire.callee_tensors import CalleeTensors
from opdispatch_wire.lanes.lane_memory import CalleeLaneMemory
from opdispatch_wire.planned_requests import Received
from opdispatch_wire.shared_memory.call_memory import CalleeMemory
from opdispatch_wire.v1 import execution_pb2


def plan_like(
    execution: KernelExecution,
    rules: CallRules,
    payload: bytes,
    request: execution_pb2.CallRequest,
) -> None:
    """Plan calls like one that has been answered, and said that others will be like it."""
    if (plans := rules.plans) is not None:
        # It may name a library that has gone, or a kernel that has never been there.
        with contextlib.suppress(OpdispatchError):
            execution.planned.add(plans, payload, request)


def begin_planned(
    execution: KernelExecution,
    rules: CallRules,
    lane: int,
    plan: KernelPlan,
    received: Received,
) -> DirectRun | None:
    """Admit a planned call and begin its turn, which ``end`` of its library's turns ends.

    None: it is to be taken the general way, and nothing has begun.
    """
    number, seconds, _ = received
    # Negated: neither way would hold for anything but a number.
    if seconds is not None and not 0.0 < seconds <= FOREVER:
        return None
    if execution.fitness.problem:
        return None
    run = rules.admit_planned(plan, lane, number)
    if run is not None and not plan.library.turns.begin_at_once(plan.limit):
        rules.end_run(run)
        return None
    return run


def run_planned(
    execution: KernelExecution,
    plan: KernelPlan,
    received: Received,
    payload: bytes,
    run: DirectRun,
    limit: int,
    shared: CalleeLaneMemory | None = None,
) -> tuple[bytes | execution_pb2.CallReply, CalleeMemory | CalleeTensors | None]:
    """Run the kernel of a planned call, in this thread; return the reply, an error among them.

    It has at most ``limit`` bytes, unless its tensors are in what is returned with it. Its lane has
    ``shared`` memory, or None.
    """
    _, seconds, leaves = received
    memory = None
    deadline = None if seconds is None else run.began + seconds
    number = leaves.pop() if plan.layout.has_run else plan.run
    call = RunningCall(deadline, 0, number, run.nested_calls, plan.library.version)
    if plan.shares and shared is not None:
        memory = shared.new_call()
    try:
        return execution.runs.run(
            plan.library,
            plan.choice,
            call,
            (run.lane & 0xFFFFFFFF) << 32 | run.id & 0xFFFFFFFF,  # ``call_key``, in line
            0,
            execution.planned.run,
            plan,
            received,
            payload,
            limit,
            shared,
            memory,
        )
    except BaseException as error:  # a call is always answered
        if memory is not None:
            memory.drop_results()
        request = execution_pb2.CallRequest.FromString(payload)
        execution.note_error(request, error)
        return failure_of_run(request, error), memory
    finally:
        if os.getpid() != GUARD.process:  # ``GUARD.run``, in line
            os._exit(0)
