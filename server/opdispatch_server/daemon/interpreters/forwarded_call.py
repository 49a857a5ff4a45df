"""A client's request on its way to an interpreter."""

from __future__ import annotations

import time

from opdispatch_server.call_context import CallContext
from opdispatch_wire import trace_context
from opdispatch_wire.v1 import execution_pb2


def prepare_call(
    request: execution_pb2.CallRequest, context: CallContext, interpreter: str
) -> None:
    """Write to a request what it tells the interpreter of that name."""
    context.write_to(request)
    request.ClearField("constant_bytes")  # of the message that came
    if request.traceparent:
        _trace(request, context, interpreter)
    # Only from here: a client's own word would take the limit off the reply.
    tensors = context.tensors
    request.chunks_reply = tensors is not None and tensors.results_of_any_size


def _trace(request: execution_pb2.CallRequest, context: CallContext, interpreter: str) -> None:
    """Make the span of the call's time in the daemon, in which that of its kernel is."""
    if trace_context.is_on():
        began = time.time_ns() - context.queued
        about = {"opdispatch.operator": request.operator, "opdispatch.interpreter": interpreter}
        name, parent = f"queue {request.operator}", request.traceparent
        span = trace_context.begin_span(name, "SERVER", about, parent, began)
        request.traceparent = trace_context.traceparent_of(span)
        trace_context.end_span(span)
