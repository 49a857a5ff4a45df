"""Keep the results of direct calls: see Note [Values kept without the daemon]."""

from __future__ import annotations

import functools
from typing import Any

from opdispatch.boxing.named_results import result_names
from opdispatch_server.call_context import RunningCall
from opdispatch_server.worker.execution.kernel_plan import KernelPlan
from opdispatch_server.worker.values.store import KeptResults, ValueStore
from opdispatch_wire.calls import reply_of_returns
from opdispatch_wire.planned_replies import ReplyForm
from opdispatch_wire.remote_values import facts_from_proto, not_kept_error, remote_tensors_in
from opdispatch_wire.v1 import execution_pb2, remote_pb2


def note_kept(values: ValueStore, keep: remote_pb2.Keep, reply: execution_pb2.CallReply) -> None:
    """Record the values that a direct call has kept. Raises ``not_kept_error`` beyond the limit."""
    kept = [
        (remote.id, facts_from_proto(remote, at=at))
        for value in reply.returns
        for remote, at in remote_tensors_in(value, "$.returns")
    ]
    nbytes = sum(facts.nbytes for _, facts in kept)
    if not values.keeps.note(keep.session, keep.prefix, kept, nbytes):
        raise not_kept_error()


def keep_planned(
    values: ValueStore,
    plan: KernelPlan,
    call: RunningCall,
    number: int,
    prefix: bytes,
    returns: list[Any],
    interpreter: str,
) -> bytes | execution_pb2.CallReply:
    """Keep the results of a planned call with that id; return its reply.

    Empties ``returns``, so that nothing but the store refers to the values. Raises
    ``not_kept_error`` beyond the limit, and ReturnError for a value that cannot be kept.
    """
    session = plan.layout.keeps_for
    results = KeptResults(values, session, prefix, interpreter)
    try:
        kept = [*map(functools.partial(results.take, returns), range(len(returns)))]
        form = plan.form
        reply: bytes | None = None if form is None else form.write(number, kept)
        if reply is None:
            form = ReplyForm.of(kept, interpreter, result_names(plan.choice.signature.schema))
            plan.learn(form)
            reply = None if form is None else form.write(number, kept)
    except BaseException:
        values.keeps.drop(session, prefix)
        raise
    if not values.keeps.note(session, prefix, results.kept, results.nbytes):
        raise not_kept_error()
    call.result_bytes = results.nbytes
    if reply is not None:
        return reply
    request = execution_pb2.CallRequest(id=number)
    return reply_of_returns(
        request, plan.choice.signature.schema, (), kept, interpreter=interpreter
    )
