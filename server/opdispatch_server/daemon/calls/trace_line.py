"""The daemon's line of a dispatch trace, which names the chosen kernel."""

from __future__ import annotations

from opdispatch_server.daemon.calls.kernel_choice import Choice
from opdispatch_wire.v1 import execution_pb2


def line_of_choice(request: execution_pb2.CallRequest, choice: Choice) -> execution_pb2.TraceLine:
    """Return the first line of the trace of a call."""
    resolution = choice.resolution
    return execution_pb2.TraceLine(
        depth=0,
        kind="redispatch" if request.HasField("redispatch_keys") else "call",
        operator=str(choice.op.name),
        key=str(resolution.key),
        kernel=resolution.registered_at,
        reason=resolution.reason,
    )


def put_first(line: execution_pb2.TraceLine, reply: execution_pb2.CallReply) -> None:
    """Put the daemon's line before those of the interpreter."""
    nested = list(reply.trace)
    del reply.trace[:]
    reply.trace.append(line)
    reply.trace.extend(nested)
