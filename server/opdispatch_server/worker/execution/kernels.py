"""Runs kernels for calls that are routed to this interpreter."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from contextlib import ExitStack
from contextvars import copy_context
from time import monotonic, monotonic_ns
from typing import Any, ParamSpec, TypeVar

from opdispatch.arrays import find_lost_device, preferred_backends
from opdispatch.arrays.kernel_block import run_on_device
from opdispatch.errors import (
    DeviceLostError,
    OpdispatchError,
)
from opdispatch.local_state.grad_mode import AUTOGRAD_STATE, RECORDING
from opdispatch.local_state.local_dispatch_key_set import (
    DEFAULT_STATE,
    LOCAL_STATE,
    ForceLocalState,
    LocalState,
)
from opdispatch_server.blame.fitness import Fitness
from opdispatch_server.blame.flight_record import (
    FlightRecorder,
    call_key,
)
from opdispatch_server.call_context import RUNNING_CALL, CallContext, RunningCall
from opdispatch_server.operator_names import parse_operator_name
from opdispatch_server.value_ids import check_keep
from opdispatch_server.worker.execution.call_accounting import CallAccounting
from opdispatch_server.worker.execution.caller_state import (
    GradModeOf,
    grad_mode_of,
    local_state_of,
)
from opdispatch_server.worker.execution.daemon_lane import CallTrace, RemoteTraceLine
from opdispatch_server.worker.execution.kernel_call import call_kernel
from opdispatch_server.worker.execution.kernel_error_log import FailedCall, KernelErrorLog
from opdispatch_server.worker.execution.kernel_profile import KernelProfile
from opdispatch_server.worker.execution.planned_keeps import note_kept
from opdispatch_server.worker.execution.planned_kernels import PlannedKernels
from opdispatch_server.worker.execution.programs import ProgramExecution
from opdispatch_server.worker.execution.raised_errors import (
    is_of_kernel,
    was_logged_elsewhere,
)
from opdispatch_server.worker.execution.recorded_runs import RecordedRuns
from opdispatch_server.worker.execution.result_lengths import RESULT, check_lengths
from opdispatch_server.worker.libraries.chosen_kernel import ChosenKernel
from opdispatch_server.worker.libraries.instructions import InterpreterLibraries
from opdispatch_server.worker.libraries.loaded import LoadedLibrary
from opdispatch_server.worker.libraries.several_turns import turns_of_all
from opdispatch_server.worker.libraries.turns import LibraryTurns
from opdispatch_server.worker.values.store import CallWrites, KeptResults, ValueStore
from opdispatch_wire.callee_tensors import CalleeTensors
from opdispatch_wire.calls import decode_arguments, reply_of_returns
from opdispatch_wire.detached_tensors import CALL_REPLY, MessagePieces, attach
from opdispatch_wire.errors import DeadlineExceededError, RefusedError
from opdispatch_wire.message_size import MAX_MESSAGE_BYTES_HIGHEST, check_size, serialize_message
from opdispatch_wire.modes import autocast_of, check_modes
from opdispatch_wire.plain_calls import plain_arguments, plain_reply
from opdispatch_wire.status import status_from_error
from opdispatch_wire.tensor_bytes import count_bytes
from opdispatch_wire.tensors import CalleeTensorMemory
from opdispatch_wire.trace_context import trace_id_of, traced_run
from opdispatch_wire.v1 import execution_pb2

P = ParamSpec("P")
T = TypeVar("T")

_NO_BACKENDS = contextlib.nullcontext()


class KernelExecution:
    """Runs one call at a time in the calling thread.

    ``on_device_lost`` is called in that thread when this process can no longer use a device;
    ``errors`` logs and counts errors of kernels, and ``accounting`` every run.
    """

    def __init__(
        self,
        libraries: InterpreterLibraries,
        interpreter: Callable[[], str],
        message_limit: int,
        values: ValueStore,
        programs: ProgramExecution,
        recorder: FlightRecorder,
        fitness: Fitness,
        on_device_lost: Callable[[DeviceLostError], None],
        errors: KernelErrorLog,
        accounting: CallAccounting,
    ) -> None:
        self._libraries = libraries
        self._interpreter = interpreter
        self._limit = message_limit
        self._values = values
        self._programs = programs
        self.fitness = fitness
        """Whether calls can run here."""
        self._on_device_lost = on_device_lost
        self._errors = errors
        self._accounting = accounting
        self.runs = RecordedRuns(recorder, fitness, accounting)
        self.planned = PlannedKernels(libraries, interpreter, message_limit, values)

    def turns_of(self, load_id: int) -> LibraryTurns[Any]:
        """Return the turns of a library's calls. Raises RefusedError if it is gone."""
        return self._libraries.get(load_id).turns

    def serialize(
        self,
        reply: execution_pb2.CallReply,
        limit: int = MAX_MESSAGE_BYTES_HIGHEST,
        tensors: CalleeTensors | None = None,
    ) -> bytes | MessagePieces:
        """Serialize a reply to at most ``limit`` bytes, without its ``tensors``.

        Raises MessageTooLargeError.
        """
        if tensors is None or tensors.is_limited:
            limit = min(limit, self._limit)
        if tensors is None or not tensors.results:
            return serialize_message(reply, limit, RESULT)
        message = serialize_message(reply, MAX_MESSAGE_BYTES_HIGHEST, RESULT)
        pieces = attach(message, CALL_REPLY, tensors.results, aligned=True)
        check_size(len(pieces), limit, RESULT)
        return pieces

    def check_size(self, reply: execution_pb2.CallReply, tensors: CalleeTensors) -> None:
        """Raise MessageTooLargeError if a reply and its detached tensors are over the limit."""
        if tensors.is_limited:
            size = reply.ByteSize() + sum(len(result) for result in tensors.results)
            check_size(size, self._limit, RESULT)

    def run(
        self,
        request: execution_pb2.CallRequest,
        context: CallContext,
        memory: CalleeTensorMemory | None = None,
    ) -> execution_pb2.CallReply:
        """Run the kernel that ``request.kernel`` names.

        Without one, the kernel in the slot of ``request.redispatch_keys``, which every process has.
        Tensors may be in ``memory``. Raises KernelError for whatever the kernel raises, or
        DeviceMemoryError and DeviceLostError; the errors of arguments and results that do not match
        the schema; and DeadlineExceededError if it is too late to begin. With a profile, an error
        after the kernel has begun is in the reply, with the events so far.
        """
        profile = KernelProfile(request) if request.HasField("profile") else None
        keeps_itself = context.direct is not None and request.HasField("keep")
        try:
            reply = self._run_in_time(request, context, memory, profile)
            if keeps_itself:
                note_kept(self._values, request.keep, reply)
            return reply
        except BaseException as error:
            if keeps_itself:
                self._values.keeps.drop(request.keep.session, request.keep.prefix)
            # Results may have been placed before the one that cannot be sent.
            if memory is not None:
                memory.drop_results()
            self.note_error(request, error)
            if not isinstance(error, OpdispatchError):
                raise
            if profile is None or not profile.has_begun:
                raise
            reply = execution_pb2.CallReply(id=request.id, error=status_from_error(error))
            profile.end(failed=True)
            profile.add_to(reply, self._interpreter(), self._limit)
            return reply

    def note_error(self, request: execution_pb2.CallRequest, error: BaseException) -> None:
        """Log and count a call if its kernel failed it; for a program, the step's.

        Also report a device that was lost.
        """
        if not isinstance(error, OpdispatchError):
            return
        if is_of_kernel(error):
            self._log_error(request, error)
        # Or that of another interpreter, which a kernel has called.
        if isinstance(error, DeviceLostError) and (lost := find_lost_device()) is not None:
            self._on_device_lost(lost)

    def _log_error(self, request: execution_pb2.CallRequest, error: OpdispatchError) -> None:
        operator = error.facts.get("operator") or request.operator
        library = self._find_library(request, operator)
        self._errors.note(
            FailedCall.of(
                error,
                operator=operator,
                call=request.id,
                load_id=library.load_id if library else 0,
                library=library.name if library else "",
                version=library.version if library else 0,
                level=logging.DEBUG if was_logged_elsewhere(error) else logging.ERROR,
                trace=trace_id_of(request.traceparent),
            )
        )

    def _find_library(
        self, request: execution_pb2.CallRequest, operator: str
    ) -> LoadedLibrary | None:
        """Return the library of a call whose kernel failed; None if it belonged to none."""
        if request.HasField("kernel") and not request.program:
            load_ids = [request.kernel.load_id]
        else:
            load_ids = [request.kernel.load_id, *request.libraries]
        for load_id in load_ids:
            with contextlib.suppress(RefusedError):  # it may have been unloaded meanwhile
                library = self._libraries.get(load_id)
                if len(load_ids) == 1 or library.has_operator(parse_operator_name(operator)):
                    return library
        return None

    def _run_in_time(
        self,
        request: execution_pb2.CallRequest,
        context: CallContext,
        memory: CalleeTensorMemory | None,
        profile: KernelProfile | None,
    ) -> execution_pb2.CallReply:
        if context.deadline is not None and context.deadline <= monotonic():
            # It waited for a thread, and its caller has given up.
            raise DeadlineExceededError(
                f"the deadline passed before {request.operator} was started in interpreter "
                f"{self._interpreter()}",
                operator=request.operator,
                interpreter=self._interpreter(),
                started="no",
            )
        if request.modes:
            check_modes(request)
        fitness = self.fitness
        if fitness.problem:
            raise fitness.refusal(request.operator)
        if request.program or request.adopt:
            return self._run_program(request, context, memory, profile)
        if request.HasField("kernel"):
            library = self._libraries.get(request.kernel.load_id)
            choice = library.kernels.find(self._libraries.dispatcher, request)
        else:
            library = None
            choice = ChosenKernel.of_slot(
                self._libraries.dispatcher, request.operator, request.redispatch_keys
            )
        if not request.traceparent:
            return self._run_noted(request, context, memory, profile, library, choice)
        about = _attributes_of(choice, library, self._interpreter())
        queued = context.queued - request.path.queued  # the daemon has a span for that time
        with traced_run(str(choice.name), request.traceparent, queued, about) as traceparent:
            return self._run_noted(request, context, memory, profile, library, choice, traceparent)

    def _run_noted(
        self,
        request: execution_pb2.CallRequest,
        context: CallContext,
        memory: CalleeTensorMemory | None,
        profile: KernelProfile | None,
        library: LoadedLibrary | None,
        choice: ChosenKernel,
        traceparent: str = "",
    ) -> execution_pb2.CallReply:
        call = RunningCall.of(context, library.version if library else 0)
        call.traceparent = traceparent
        key = call_key(context.direct.lane if context.direct else 0, request.id)
        backends = library.backends if library is not None else ()
        with preferred_backends(backends) if backends else _NO_BACKENDS:
            return self.runs.run(
                library,
                choice,
                call,
                key,
                context.queued,
                self._run,
                request,
                choice,
                memory,
                profile,
            )

    def _run_program(
        self,
        request: execution_pb2.CallRequest,
        context: CallContext,
        memory: CalleeTensorMemory | None,
        profile: KernelProfile | None,
    ) -> execution_pb2.CallReply:
        if request.adopt:
            return self._programs.adopt(request, context)
        libraries = [self._libraries.get(load_id) for load_id in request.libraries]
        if profile is not None:
            profile.begin_program(request.operator)
        # Kept values must not be in the caller's memory.
        tensors = memory if isinstance(memory, CalleeTensors) else None
        call = RunningCall.of(context)
        tracing_stack = ExitStack()
        if request.traceparent:
            about = {"opdispatch.interpreter": self._interpreter()}
            queued = context.queued - request.path.queued
            traced = traced_run(request.operator, request.traceparent, queued, about)
            call.traceparent = tracing_stack.enter_context(traced)
        token = RUNNING_CALL.set(call)
        counts_row = self._accounting.row_of_program(libraries)
        began, failed = monotonic_ns(), True
        try:
            with (
                tracing_stack,
                turns_of_all(libraries, request.operator),
                ForceLocalState(local_state_of(request, None, profile)),
                GradModeOf(request),
                autocast_of(request),
            ):
                if request.HasField("kernel"):  # its turn has come already
                    libraries.append(self._libraries.get(request.kernel.load_id))
                # Modes that kernels leave active end with the call.
                reply = copy_context().run(
                    self._programs.run, request, context, libraries, tensors, counts_row
                )
            failed = False
        finally:
            RUNNING_CALL.reset(token)
            run_ns = monotonic_ns() - began
            self._accounting.end(counts_row, run_ns, request, context, call, failed=failed)
        if profile is not None:
            profile.end()
            profile.add_to(reply, self._interpreter(), self._limit)
        return reply

    def _run(
        self,
        request: execution_pb2.CallRequest,
        choice: ChosenKernel,
        memory: CalleeTensorMemory | None,
        profile: KernelProfile | None,
    ) -> execution_pb2.CallReply:
        if choice.may_be_plain:  # so it writes to no argument
            return self._run_kernel(request, choice, memory, profile)
        writes = CallWrites(self._values, RUNNING_CALL.get().deadline)
        try:
            return self._run_kernel(request, choice, memory, profile, writes)
        finally:
            writes.end()

    def _run_kernel(
        self,
        request: execution_pb2.CallRequest,
        choice: ChosenKernel,
        memory: CalleeTensorMemory | None,
        profile: KernelProfile | None,
        writes: CallWrites | None = None,
    ) -> execution_pb2.CallReply:
        signature = choice.signature
        args: list[Any] | None = plain_arguments(request) if choice.may_be_plain else None
        kwargs: dict[str, Any] = {}
        is_plain = args is not None
        if args is None:
            args, kwargs = decode_arguments(
                request,
                signature.schema,
                memory,
                self._values.get,
                writes.begin if writes else None,
            )
        call = RUNNING_CALL.get()
        call.argument_bytes = count_bytes(args) + (count_bytes(kwargs.values()) if kwargs else 0)
        arguments = signature.bind(args, kwargs)
        trace = CallTrace() if request.trace else None
        if profile is not None:
            profile.begin_kernel(request, str(choice.name), signature, arguments)
        local = DEFAULT_STATE
        is_plain_task = trace is None and profile is None and not request.traceparent
        if not is_plain_task or request.HasField("local_keys"):
            local = local_state_of(request, trace, profile)
        # Modes that the kernel leaves active end with the call.
        stack = copy_context().run(self._call_in, local, request, choice, arguments)
        name = self._interpreter()
        returns = signature.check_returns(stack)
        if is_plain and trace is None and profile is None and not request.HasField("keep"):
            plain = plain_reply(request.id, returns[0], name)
            if plain is not None:
                call.result_bytes = returns[0].nbytes
                return plain
        check_lengths(returns, self._limit, RESULT)
        if profile is not None:
            profile.end(signature.unbox_returns(returns))
        result_bytes = count_bytes(returns)
        stack.clear()  # releases references: see KeptResults
        reply = reply_of_returns(
            request,
            signature.schema,
            arguments,
            returns,
            interpreter=name,
            trace=trace.lines if trace else (),
            memory=memory,
            keep=self._keeping(request),
        )
        call.result_bytes = result_bytes
        if trace:
            for line, message in zip(trace.lines, reply.trace, strict=True):
                if isinstance(line, RemoteTraceLine):
                    message.interpreter = line.interpreter
        if profile is not None:
            profile.add_to(reply, name, self._limit)
        return reply

    def _keeping(
        self, request: execution_pb2.CallRequest
    ) -> Callable[[list[Any], int], Any] | None:
        if not request.HasField("keep"):
            return None
        keep = request.keep
        check_keep(keep)
        return KeptResults(self._values, keep.session, keep.prefix, self._interpreter()).take

    def _call_in(
        self,
        local: LocalState,
        request: execution_pb2.CallRequest,
        choice: ChosenKernel,
        arguments: list[Any],
    ) -> list[Any]:
        """Run ``_call`` in a separate context, with the caller's modes."""
        LOCAL_STATE.set(local)
        AUTOGRAD_STATE.set(grad_mode_of(request) if request.no_grad else RECORDING)
        stack = list(arguments)
        if not request.modes:
            return run_on_device(arguments, call_kernel, choice, stack, self._interpreter)
        with autocast_of(request):
            return run_on_device(arguments, call_kernel, choice, stack, self._interpreter)


def _attributes_of(
    choice: ChosenKernel, library: LoadedLibrary | None, interpreter: str
) -> dict[str, str | int | float]:
    """Return the attributes of a kernel's span."""
    return {
        "opdispatch.key": choice.key,
        "opdispatch.library": library.name if library else "",
        "opdispatch.version": library.version if library else 0,
        "opdispatch.interpreter": interpreter,
    }
