"""Run the kernels of planned calls: see ``kernel_plan``."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextvars import copy_context
from typing import Any

import numpy as np

from opdispatch.arrays.kernel_block import run_on_device
from opdispatch.boxing.named_results import result_names
from opdispatch.local_state.grad_mode import AUTOGRAD_STATE, RECORDING
from opdispatch.local_state.local_dispatch_key_set import DEFAULT_STATE, LOCAL_STATE
from opdispatch.tensors.tensor import Tensor
from opdispatch_server.call_context import RUNNING_CALL
from opdispatch_server.worker.execution.epoch_plans import EpochPlans
from opdispatch_server.worker.execution.kernel_call import call_kernel
from opdispatch_server.worker.execution.kernel_plan import KernelPlan
from opdispatch_server.worker.execution.planned_keeps import keep_planned
from opdispatch_server.worker.execution.result_lengths import RESULT, check_lengths
from opdispatch_server.worker.libraries.instructions import InterpreterLibraries
from opdispatch_server.worker.values.store import ValueStore
from opdispatch_wire.callee_tensors import CalleeTensors
from opdispatch_wire.calls import reply_of_returns
from opdispatch_wire.lanes.lane_memory import CalleeLaneMemory
from opdispatch_wire.planned_calls import LONGEST
from opdispatch_wire.planned_replies import ReplyForm
from opdispatch_wire.planned_requests import Received
from opdispatch_wire.shared_memory.call_memory import CalleeMemory
from opdispatch_wire.tensor_bytes import count_bytes
from opdispatch_wire.v1 import execution_pb2

# Types of results that need no conversion to a tensor.
_TENSORS = (np.ndarray, Tensor)


class PlannedKernels:
    """Runs planned calls in the calling thread. Thread-safe.

    Replies have at most ``message_limit`` bytes. ``interpreter`` returns this interpreter's name,
    and ``values`` are the values that it keeps.
    """

    def __init__(
        self,
        libraries: InterpreterLibraries,
        interpreter: Callable[[], str],
        message_limit: int,
        values: ValueStore,
    ) -> None:
        self._libraries = libraries
        self._interpreter = interpreter
        self._limit = message_limit
        self._values = values

    def add(self, plans: EpochPlans, payload: bytes, request: execution_pb2.CallRequest) -> None:
        """Add the plan of a call that has run. Raises RefusedError if its library is gone."""
        library = self._libraries.get(request.kernel.load_id)
        plans.add(
            payload, request, library, library.kernels.find(self._libraries.dispatcher, request)
        )

    def run(
        self,
        plan: KernelPlan,
        received: Received,
        payload: bytes,
        limit: int,
        shared: CalleeLaneMemory | None,
        memory: CalleeMemory | None,
    ) -> tuple[bytes | execution_pb2.CallReply, CalleeMemory | CalleeTensors | None]:
        """Run the kernel of a plan for the request in ``payload``. Called by ``RecordedRuns.run``.

        Return a plain reply as at most ``limit`` bytes, or else a reply like that of
        ``KernelExecution.run``; and the holder of its large tensors. That is ``memory`` if the plan
        ``shares``, otherwise new memory from ``shared`` if the lane has any. Raises the errors of
        ``KernelExecution.run``.
        """
        number, _, leaves = received
        call = RUNNING_CALL.get()
        call.argument_bytes = plan.argument_bytes
        prefix = leaves.pop() if plan.layout.keeps_for else b""
        if memory is not None:
            leaves = plan.layout.filled_with(leaves, memory)
        stack = [*leaves] if plan.has_only_leaves else plan.stack(leaves)
        # Modes that the kernel leaves active end with the call.
        results = copy_context().run(self._call_planned, plan, stack)
        signature = plan.choice.signature
        if plan.returns_tensor and len(results) == 1 and type(results[0]) in _TENSORS:
            returns = [results[0]]
        else:
            returns = signature.check_returns(results)
        if prefix:
            results.clear()  # see KeptResults
            name = self._interpreter()
            message = keep_planned(self._values, plan, call, number, prefix, returns, name)
            return message, memory
        form, place = plan.form, None if memory is None else memory.place_copy
        reply = form.write(number, returns, place) if form is not None else None
        if reply is None:
            if memory is not None:
                memory.drop_results()
            elif shared is not None:
                memory = shared.new_call()
            place = None if memory is None else memory.place_copy
            form = self._reply_form(plan, returns, limit, shares=memory is not None)
            plan.learn(form)
            reply = form.write(number, returns, place) if form is not None else None
        if form is not None and reply is not None and len(reply) <= min(limit, self._limit):
            call.result_bytes = form.tensor_bytes
            return reply, memory
        check_lengths(returns, self._limit, RESULT)
        results.clear()
        request = execution_pb2.CallRequest.FromString(payload)
        tensors: CalleeMemory | CalleeTensors | None = memory
        if tensors is None:
            tensors = CalleeTensors([], len(payload), is_limited=not request.chunks_reply)
        tensors.drop_results()
        try:
            message = reply_of_returns(
                request,
                signature.schema,
                plan.stack(leaves),
                returns,
                interpreter=self._interpreter(),
                memory=tensors,
            )
        except BaseException:
            tensors.drop_results()
            raise
        call.result_bytes = count_bytes(returns)
        return message, tensors

    def _reply_form(
        self, plan: KernelPlan, returns: list[Any], limit: int, *, shares: bool
    ) -> ReplyForm | None:
        """Return the form of replies with results like these; None if they are not plain."""
        make = functools.partial(
            ReplyForm.of,
            returns,
            self._interpreter(),
            result_names(plan.choice.signature.schema),
            limit=min(LONGEST, limit, self._limit),
        )
        # Large results are inline if large arguments are: see ``CallPlan.alone``.
        form = make() if plan.is_inline or not shares else None
        return form if form is not None or not shares else make(shares=True)

    def _call_planned(self, plan: KernelPlan, stack: list[Any]) -> list[Any]:
        """Call a planned kernel in a separate context, as ``KernelExecution._call_in`` does."""
        if LOCAL_STATE.get() is not DEFAULT_STATE:
            LOCAL_STATE.set(DEFAULT_STATE)
        if AUTOGRAD_STATE.get() is not RECORDING:
            AUTOGRAD_STATE.set(RECORDING)
        for backend in plan.blocks:
            if backend.is_in_use():
                return run_on_device(stack, call_kernel, plan.choice, stack, self._interpreter)
        return call_kernel(plan.choice, stack, self._interpreter)
