"""The daemon's part of a call: choose the kernel, and have an interpreter run it."""

from __future__ import annotations

import asyncio

import grpc
import grpc.aio

from opdispatch import DispatchKeySet, ForceDispatchKeyGuard, OperatorHandle
from opdispatch.errors import InternalError, OpdispatchError, OperatorNotFoundError
from opdispatch.operator_state import Resolution
from opdispatch_server.call_context import CallContext
from opdispatch_server.interpreter_sessions import InterpreterSession
from opdispatch_server.library_registry import LibraryRegistry
from opdispatch_server.library_version import KernelRoute, LibraryVersion
from opdispatch_server.operator_registry import OperatorRegistry, parse_operator_name
from opdispatch_server.replica import Replica
from opdispatch_wire.calls import local_keys_of, undecoded_arguments
from opdispatch_wire.channel import RAISE_LIMIT_HINT
from opdispatch_wire.errors import (
    DeadlineExceededError,
    InterpreterDiedError,
    MessageTooLargeError,
    RefusedError,
)
from opdispatch_wire.status import DETAILS_KEY
from opdispatch_wire.v1 import execution_pb2

# Waiting calls cost memory, their arguments above all.
CALLS_PER_INTERPRETER = 1024


class CallRouter:
    """Forwards calls. Belongs to the event loop."""

    def __init__(self, operators: OperatorRegistry, libraries: LibraryRegistry) -> None:
        self._operators = operators
        self._libraries = libraries
        self._draining = False
        self._in_flight = 0
        # Calls that ran again elsewhere because an interpreter had died.
        self.retries = 0
        self._idle = asyncio.Event()
        self._idle.set()

    async def call(
        self, request: execution_pb2.CallRequest, context: CallContext
    ) -> execution_pb2.CallReply:
        """Runs one call.

        Raises the errors of the dispatcher and the wire, InterpreterDiedError, RefusedError, and
        as grpc.aio.AioRpcError the status with which an interpreter answered.
        """
        if self._draining and not context.depth:
            raise RefusedError("the daemon is stopping; the call never started")
        op, keys, choice = self._choose(request)
        line = _trace_line(request, op, choice)
        self._in_flight += 1
        self._idle.clear()
        try:
            reply = await self._forward(request, context, op, keys, choice)
        finally:
            self._in_flight -= 1
            if not self._in_flight:
                self._idle.set()
        if request.trace:
            nested = list(reply.trace)
            del reply.trace[:]
            reply.trace.append(line)
            reply.trace.extend(nested)
        return reply

    async def drain(self, grace: float) -> bool:
        """Refuses new calls and waits for those in flight; False if they need longer."""
        self._draining = True
        try:
            await asyncio.wait_for(self._idle.wait(), grace)
        except TimeoutError:
            return False
        return True

    def _choose(
        self, request: execution_pb2.CallRequest
    ) -> tuple[OperatorHandle, DispatchKeySet, Resolution]:
        args, kwargs = undecoded_arguments(request)
        try:
            with ForceDispatchKeyGuard(*local_keys_of(request)):
                dispatcher = self._operators.dispatcher
                name = str(parse_operator_name(request.operator))
                op = dispatcher.resolve_overload(name, args, kwargs)
                stack = op.bind(args, kwargs)
                if request.HasField("redispatch_keys"):
                    keys = DispatchKeySet(request.redispatch_keys)
                else:
                    keys = op.dispatch_keys(stack)
                return op, keys, op.lookup(keys)
        except OperatorNotFoundError as error:
            raise self._explain_absence(request.operator, error) from error

    def _explain_absence(self, operator: str, error: OperatorNotFoundError) -> OpdispatchError:
        """The error of a call of an operator that is not there, or not there now."""
        if waiting := self._libraries.find_waiting(operator):
            return RefusedError(
                f"{operator} cannot be called now: library {waiting.name!r} has lost its "
                "interpreter, and is being loaded into another one",
                hint="try again in a moment",
                operator=operator,
            )
        if hint := self._libraries.explain_absence(operator):
            return OperatorNotFoundError(error.message, hint=hint, **error.facts)
        return error

    async def _forward(
        self,
        request: execution_pb2.CallRequest,
        context: CallContext,
        op: OperatorHandle,
        keys: DispatchKeySet,
        choice: Resolution,
    ) -> execution_pb2.CallReply:
        library, place = self._find_kernel(op, choice)
        replica = _choose_replica(library)
        request.operator = str(op.name)
        if place is None:
            request.ClearField("kernel")
            request.redispatch_keys = keys.raw_repr()
        else:
            request.kernel.load_id = library.load_id
            request.kernel.registration = place
            request.kernel.dispatch_keys = keys.raw_repr()
        may_run_again = (request.retry or not request.HasField("retry")) and not _writes(op)
        tried: list[InterpreterSession] = []
        library.begin_call()
        try:
            while True:
                try:
                    return await _run(request, context, replica, str(op.name))
                except InterpreterDiedError:
                    tried.append(replica.session)
                    other = library.choose_replica(excluding=tried)
                    if not may_run_again or other is None:
                        raise
                    self.retries += 1
                    replica = other
        finally:
            library.end_call()

    def _find_kernel(
        self, op: OperatorHandle, choice: Resolution
    ) -> tuple[LibraryVersion, int | None]:
        """The library that runs the call, and the place of the kernel in its batch.

        No place means a kernel that every process has, such as the fallback of autograd: it
        runs where the operator was defined, and continues there.
        """
        route = choice.kernel.function
        if isinstance(route, KernelRoute):
            return route.library, route.place
        owner = self._operators.find_owner(op.definition)
        if owner is None:
            raise InternalError(f"the slot of {choice.key} of {op.name} leads nowhere")
        return owner, None


def _trace_line(
    request: execution_pb2.CallRequest, op: OperatorHandle, choice: Resolution
) -> execution_pb2.TraceLine:
    return execution_pb2.TraceLine(
        depth=0,
        kind="redispatch" if request.HasField("redispatch_keys") else "call",
        operator=str(op.name),
        key=str(choice.key),
        kernel=choice.registered_at,
        reason=choice.reason,
    )


def _choose_replica(library: LibraryVersion) -> Replica:
    """The replica to call; raises RefusedError if none can take one more call."""
    replica = library.choose_replica()
    if replica is None:
        raise RefusedError(
            f"library {library.name!r} has just lost its interpreter", hint="try again in a moment"
        )
    if replica.session.calls_in_flight >= CALLS_PER_INTERPRETER:
        raise RefusedError(
            f"interpreter {replica.session.name} has {CALLS_PER_INTERPRETER} calls to finish",
            hint="try again in a moment",
        )
    return replica


def _writes(op: OperatorHandle) -> bool:
    """Whether the operator writes to any of its arguments: then it must not run twice."""
    return any(
        argument.alias_info is not None and argument.alias_info.is_write
        for argument in op.schema.arguments
    )


async def _run(
    request: execution_pb2.CallRequest, context: CallContext, replica: Replica, operator: str
) -> execution_pb2.CallReply:
    """Has one replica run the call. Raises as ``CallRouter.call``."""
    session = replica.session
    replica.begin_call()
    try:
        return await session.call(request, timeout=context.timeout, metadata=context.metadata)
    except grpc.aio.AioRpcError as error:
        if any(key == DETAILS_KEY for key, _ in error.trailing_metadata() or ()):
            raise  # the interpreter's own answer
        raise _explain_failure(error, session, operator) from error
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise  # our client has gone, or gives up
        raise session.death(f"running {operator}", operator=operator) from error
    finally:
        replica.end_call()


def _explain_failure(
    error: grpc.aio.AioRpcError, session: InterpreterSession, operator: str
) -> OpdispatchError:
    """The error of a call that gRPC, and not the interpreter, has ended."""
    facts = {"operator": operator, "interpreter": session.name}
    match error.code():
        case grpc.StatusCode.DEADLINE_EXCEEDED:
            return DeadlineExceededError(
                f"the deadline passed while interpreter {session.name} was running {operator}",
                **facts,
            )
        case grpc.StatusCode.RESOURCE_EXHAUSTED:
            return MessageTooLargeError(
                f"the arguments or the result of {operator} are over the message limit: "
                f"{error.details()}",
                hint=RAISE_LIMIT_HINT,
                **facts,
            )
        case _:
            return session.death(f"running {operator}", operator=operator)
