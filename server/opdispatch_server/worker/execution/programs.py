"""Runs programs in an interpreter, and serves requests for values that it keeps."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

from opdispatch import Dispatcher
from opdispatch.arrays import on_host
from opdispatch.arrays.kernel_block import run_on_device
from opdispatch.autograd.node import Origin
from opdispatch.autograd.remote_history import arrive, has_history
from opdispatch.boxing.named_results import names_of_results
from opdispatch.errors import (
    AmbiguousKernelError,
    ArgumentError,
    NoKernelError,
    OpdispatchError,
    OperatorNotFoundError,
    ReturnError,
)
from opdispatch.tensors.tensor import Tensor
from opdispatch_server.blame.flight_record import FlightRecorder, call_key
from opdispatch_server.call_context import RUNNING_CALL, CallContext
from opdispatch_server.serving.reading_turn import hand_over_turn
from opdispatch_server.value_ids import check_keep
from opdispatch_server.worker.execution.compiled_program import (
    CompiledProgram,
    ProgramCache,
    StepError,
)
from opdispatch_server.worker.execution.raised_errors import error_of_kernel
from opdispatch_server.worker.libraries.loaded import LoadedLibrary
from opdispatch_server.worker.values.device_exports import DeviceExports
from opdispatch_server.worker.values.device_moves import Copied, moved_to
from opdispatch_server.worker.values.peers import PeerValues
from opdispatch_server.worker.values.store import CallWrites, KeptResults, ValueStore
from opdispatch_wire.callee_tensors import CalleeTensors
from opdispatch_wire.errors import WireError
from opdispatch_wire.nesting_limits import ValueCount, check_nesting
from opdispatch_wire.remote_values import RemoteFacts, remote_tensors_in, store_key
from opdispatch_wire.tensor_bytes import count_bytes
from opdispatch_wire.v1 import execution_pb2, remote_pb2, values_pb2
from opdispatch_wire.values import fill_value, value_from_proto

# Errors that the dispatch of a step itself may raise.
_OWN_ERRORS = (
    NoKernelError,
    AmbiguousKernelError,
    ReturnError,
    ArgumentError,
    OperatorNotFoundError,
)


class ProgramExecution:
    """Runs programs and fetches values, in the calling thread.

    ``_lock`` protects ``_programs``.
    """

    def __init__(
        self,
        dispatcher: Dispatcher,
        values: ValueStore,
        peers: PeerValues,
        exports: DeviceExports,
        recorder: FlightRecorder,
        interpreter: Callable[[], str],
    ) -> None:
        self._values = values
        self._peers = peers
        self._exports = exports
        self._recorder = recorder
        self._interpreter = interpreter
        self._lock = threading.Lock()
        self._programs = ProgramCache(dispatcher)

    def adopt(
        self, request: execution_pb2.CallRequest, context: CallContext
    ) -> execution_pb2.CallReply:
        """Fetch values from other interpreters, or record that another one has fetched a value.

        Raises RemoteValueGoneError.
        """
        if request.device_lease:
            self._exports.end(request.device_lease)
            return execution_pb2.CallReply(id=request.id, interpreter=self._interpreter())
        hand_over_turn()
        for i, argument in enumerate(request.args):
            message = argument.remote
            message.next_place = message.place
            fetched = self._peers.fetch(message, context.timeout, f"$.args[{i}]")
            origin = Origin(message.id, f"interpreter {message.interpreter}")
            arrive(fetched.value, origin, has_history=fetched.has_history)
            self._values.add(message.session, store_key(message.id, message.place), fetched.value)
        return execution_pb2.CallReply(id=request.id, interpreter=self._interpreter())

    def run(
        self,
        request: execution_pb2.CallRequest,
        context: CallContext,
        libraries: Sequence[LoadedLibrary],
        tensors: CalleeTensors | None = None,
        counts_row: int = -1,
    ) -> execution_pb2.CallReply:
        """Run a program while ``libraries`` stay loaded; ``tensors`` has its detached tensors.

        ``counts_row`` is its row in ``call_counts``. Raises WireError, RemoteValueGoneError,
        DeviceError for values needed on a device, and the error of a step, or KernelError, with the
        index of the step as ``facts["step"]``.
        """
        keep = None
        if request.HasField("keep"):
            asked = request.keep
            check_keep(asked)
            keep = KeptResults(self._values, asked.session, asked.prefix, self._interpreter())
        try:
            with self._lock:
                program = self._programs.get(request.program)
            with ExitStack() as stack:
                for library in libraries:
                    library.begin_call()
                    stack.callback(library.end_call)
                if program.writes:
                    writes = CallWrites(self._values, context.deadline)
                    stack.callback(writes.end)
                    writes.begin(_remote_arguments(request))
                inputs = self._inputs(request, context, program, tensors)
                running = RUNNING_CALL.get()
                running.argument_bytes = count_bytes(inputs)
                device = request.keep.device
                call = call_key(context.direct.lane if context.direct else 0, request.id)
                results = run_on_device(
                    inputs, self._results, program, inputs, device, call, counts_row
                )
                del inputs  # releases references: see KeptResults
                result_bytes = count_bytes(results)
                leaves_history = program.is_transfer and has_history(results[0])
        except StepError as error:  # an operator that does not exist
            raise self._explained(error) from error.__cause__
        reply = execution_pb2.CallReply(
            id=request.id, interpreter=self._interpreter(), has_history=leaves_history
        )
        try:
            if not (request.device_memory and self._offer(reply, results, request.device_memory)):
                self._fill(reply, results, program.outputs, keep, tensors)
        except (WireError, ArgumentError) as error:
            raise ReturnError(
                f"{request.operator} produced a value that cannot be sent: {error.message}"
            ) from error
        running.result_bytes = result_bytes
        return reply

    def _results(
        self, program: CompiledProgram, inputs: list[Any], device: str, call: int, counts_row: int
    ) -> list[Any]:
        try:
            results = program.run(inputs, self._recorder, call, counts_row)
        except StepError as error:
            raise self._explained(error) from error.__cause__
        return [moved_to(device, result) for result in results] if device else results

    def _inputs(
        self,
        request: execution_pb2.CallRequest,
        context: CallContext,
        program: CompiledProgram,
        tensors: CalleeTensors | None,
    ) -> list[Any]:
        def remote(message: values_pb2.RemoteTensor, at: str, writable: bool) -> Any:
            if message.next_place:
                self._values.note_leaving(message)
            if not message.HasField("source"):
                return self._values.get(message, at, writable)
            hand_over_turn()
            copied = self._peers.fetch_for(request.keep.device, message, context.timeout, at)
            return Copied(copied)

        inputs = [
            value_from_proto(
                message,
                at=f"$.args[{i}]",
                writable=program.writes,
                memory=tensors,
                remote=remote,
            )
            for i, message in enumerate(request.args)
        ]
        if request.keep.device:  # values that the caller sent have lost their history
            for i, message in enumerate(request.args):
                if not any(remote_tensors_in(message, "$")):
                    inputs[i] = Copied(inputs[i])
        return inputs

    def _offer(self, reply: execution_pb2.CallReply, results: list[Any], device_id: bytes) -> bool:
        """Offer the only result in memory of that device instead of sending it.

        Return whether that was possible.
        """
        message = values_pb2.Tensor()
        if len(results) != 1 or not self._exports.offer(message, results[0], device_id):
            return False
        RemoteFacts.of(results[0], at="$.returns[0]").write_to(message)
        reply.returns.add().tensor.CopyFrom(message)
        return True

    def _fill(
        self,
        reply: execution_pb2.CallReply,
        results: list[Any],
        outputs: Sequence[remote_pb2.Output],
        keep: KeptResults | None,
        tensors: CalleeTensors | None,
    ) -> None:
        count = ValueCount()
        for i, output in enumerate(outputs):
            if names := names_of_results(results[i]):
                reply.result_names.add(output=i, names=names)
            if output.keep:
                if keep is None:
                    raise WireError(
                        f"$.program.outputs[{i}] is to be kept; expected $.keep, which is absent"
                    )
                value = keep.take(results, i)
            else:
                value = results[i]
                if output.host:
                    check_nesting(value, f"$.returns[{i}]", ValueCount())
                    value = _in_host_memory(value)
            fill_value(
                reply.returns.add(), value, at=f"$.returns[{i}]", memory=tensors, count=count
            )

    def _explained(self, error: StepError) -> OpdispatchError:
        """Return the error of a step, with its index in the program."""
        cause, name = error.__cause__, error.operator
        where = f"step {error.number} of the program"
        facts = {"step": str(error.number), "operator": name}
        if isinstance(cause, _OWN_ERRORS) and _is_about(cause, name):
            return type(cause)(
                f"{where}: {cause.message}", hint=cause.hint, **{**cause.facts, **facts}
            )
        if isinstance(cause, WireError):
            return WireError(f"{where}, {name}: {cause.message}", hint=cause.hint, **facts)
        assert cause is not None, "a StepError is raised from what a step raised"
        interpreter = self._interpreter()
        what = f"{where}: the kernel of {name} in interpreter {interpreter}"
        return error_of_kernel(cause, what, {"interpreter": interpreter, **facts})


def _is_about(error: OpdispatchError, name: str) -> bool:
    """Return whether it concerns the call of ``name`` itself, not one that its kernel makes."""
    about = error.facts.get("operator", "")
    return not about or about == name or about.partition(".")[0] == name


def _remote_arguments(
    request: execution_pb2.CallRequest,
) -> list[tuple[values_pb2.RemoteTensor, str]]:
    return [
        found
        for i, message in enumerate(request.args)
        for found in remote_tensors_in(message, f"$.args[{i}]")
    ]


def _in_host_memory(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_in_host_memory(item) for item in value]
    return on_host(value.array if isinstance(value, Tensor) else value)
