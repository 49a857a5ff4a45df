"""Prepare a client's request for forwarding to an interpreter."""

from __future__ import annotations

import time

from opdispatch_server.call_context import CallContext
from opdispatch_wire import trace_context
from opdispatch_wire.v1 import execution_pb2


def prepare_call(
    request: execution_pb2.CallRequest, context: CallContext, interpreter: str
) -> None:
    """Set the fields of ``request`` that the interpreter reads: limits, deadline, trace."""
    context.write_to(request)
    request.ClearField("constant_bytes")  # those of the client's message
    if request.traceparent:
        _trace(request, context, interpreter)
    # Always set here: a client that set it itself would lift the limit on the reply.
    tensors = context.tensors
    request.chunks_reply = tensors is not None and tensors.results_of_any_size


def _trace(request: execution_pb2.CallRequest, context: CallContext, interpreter: str) -> None:
    """Create the span of the call's time in the daemon, the parent of its kernel's span."""
    if trace_context.is_on():
        began = time.time_ns() - context.queued
        about = {"opdispatch.operator": request.operator, "opdispatch.interpreter": interpreter}
        name, parent = f"queue {request.operator}", request.traceparent
        span = trace_context.begin_span(name, "SERVER", about, parent, began)
        request.traceparent = trace_context.traceparent_of(span)
        trace_context.end_span(span)
