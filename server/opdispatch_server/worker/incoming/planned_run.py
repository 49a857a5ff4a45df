"""Run planned calls in an interpreter, on local lanes and gRPC streams.

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
    """Plan calls like one that has been answered and declared its constant bytes."""
    if (plans := rules.plans) is not None:
        # The request may name a library that was unloaded, or a kernel that never existed.
        with contextlib.suppress(OpdispatchError):
            execution.planned.add(plans, payload, request)


def begin_planned(
    execution: KernelExecution,
    rules: CallRules,
    lane: int,
    plan: KernelPlan,
    received: Received,
) -> DirectRun | None:
    """Admit a planned call and begin its turn; the caller ends it with ``turns.end``.

    Return None, with nothing begun, if the call has to take the general path.
    """
    number, seconds, _ = received
    # Written with ``not`` so that NaN, which fails every comparison, is refused.
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
    """Run the kernel of a planned call in this thread; return the reply, which may be an error.

    A reply as bytes has at most ``limit`` bytes; otherwise its large tensors are in the memory or
    the tensors returned with it. ``shared`` is the shared memory of the call's lane, if any.
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
            (run.lane & 0xFFFFFFFF) << 32 | run.id & 0xFFFFFFFF,  # ``call_key``, inlined
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
        if os.getpid() != GUARD.process:  # ``GUARD.run``, inlined
            os._exit(0)
