"""Calls from an interpreter to operators whose kernels are in other interpreters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import grpc

from opdispatch import DispatchKeySet, KernelFunction, OperatorHandle, TraceLine
from opdispatch.local_dispatch_key_set import LOCAL_STATE
from opdispatch.trace_line import TraceSink
from opdispatch_server.call_context import MAX_DEPTH, RUNNING_CALL
from opdispatch_server.message_limit import internal_message_limit
from opdispatch_wire.addresses import grpc_target
from opdispatch_wire.calls import call_request, returns_of_reply
from opdispatch_wire.channel import channel_options, check_message_size
from opdispatch_wire.status import error_from_rpc
from opdispatch_wire.v1 import execution_pb2, execution_pb2_grpc


@dataclass(frozen=True, slots=True)
class RemoteTraceLine(TraceLine):
    """A line of the trace from another process."""

    interpreter: str = ""


class CallTrace:
    """The trace of one call in this interpreter, with what it caused in others."""

    def __init__(self) -> None:
        self.lines: list[TraceLine] = []

    def sink(self) -> TraceSink:
        """Where the lines go of the calls that a kernel makes."""
        return TraceSink(self.take, depth=1)

    def take(self, line: TraceLine) -> None:
        """Adds a line."""
        self.lines.append(line)

    def served_by(self, interpreter: str) -> None:
        """Notes that the call of the last line ran elsewhere."""
        line = self.lines[-1]
        self.lines[-1] = RemoteTraceLine(
            line.depth, line.kind, line.operator, line.key, line.kernel, line.reason, interpreter
        )


class DaemonLane:
    """The connection for nested calls. Its calls block, and may come from any thread."""

    def __init__(self, address: str, max_message_bytes: int) -> None:
        self._address = address
        self._limit = max_message_bytes
        options = channel_options(internal_message_limit(max_message_bytes), address=address)
        self._channel = grpc.insecure_channel(grpc_target(address), options=options)
        self._execution = execution_pb2_grpc.ExecutionServiceStub(self._channel)  # type: ignore[no-untyped-call]

    def kernel(self, place: int, documentation: str) -> KernelFunction:
        """A kernel that forwards the stack to the daemon, which knows where the kernel is."""
        return KernelFunction.from_boxed(_ForwardingKernel(self, documentation))

    def call(self, op: OperatorHandle, keys: DispatchKeySet, stack: Sequence[Any]) -> list[Any]:
        """The returns of ``op`` with exactly ``keys``. Raises the errors of a call."""
        running = RUNNING_CALL.get()
        if running.depth >= MAX_DEPTH:
            raise RecursionError(
                f"{op.name} was called {running.depth} calls deep across interpreters"
            )
        sink = LOCAL_STATE.get().trace
        args, kwargs = op.signature.split(stack)
        request = call_request(
            str(op.name), args, kwargs, trace=sink is not None, redispatch_keys=keys
        )
        check_message_size(request, self._limit, f"the call of {op.name}")
        context = running.nested()
        try:
            reply = self._execution.Call(
                request, timeout=context.timeout, metadata=context.metadata
            )
        except grpc.RpcError as error:
            raise error_from_rpc(error, address=self._address) from None
        if sink is not None:
            _emit_remote_lines(sink, reply)
        return returns_of_reply(reply, args, kwargs)

    def close(self) -> None:
        """Closes the connection; calls under way fail."""
        self._channel.close()


class _ForwardingKernel:
    def __init__(self, lane: DaemonLane, documentation: str) -> None:
        self._lane = lane
        self.__doc__ = documentation

    def __call__(self, op: OperatorHandle, keys: DispatchKeySet, stack: list[Any]) -> None:
        stack[:] = self._lane.call(op, keys, stack)


def _emit_remote_lines(sink: TraceSink, reply: execution_pb2.CallReply) -> None:
    trace = getattr(sink.emit, "__self__", None)
    if isinstance(trace, CallTrace):
        trace.served_by(reply.interpreter)
    # The daemon's first line says again what this process's dispatcher has said.
    for line in reply.trace[1:]:
        depth = sink.depth - 1 + line.depth
        sink.emit(
            RemoteTraceLine(
                depth,
                line.kind,
                line.operator,
                line.key,
                line.kernel,
                line.reason,
                line.interpreter or reply.interpreter,
            )
        )
