"""The daemon's part of a program: choose an interpreter, wait for a slot, run the program."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager, nullcontext
from typing import Any

from opdispatch.errors import DeviceError, OpdispatchError
from opdispatch_server.call_context import CallContext
from opdispatch_server.daemon.calls.alone_runs import AloneRuns
from opdispatch_server.daemon.calls.interpreter_queue import Slot, SlotKind
from opdispatch_server.daemon.calls.interpreter_queues import InterpreterQueues
from opdispatch_server.daemon.calls.kernel_runs import KernelRuns
from opdispatch_server.daemon.calls.lost_replies import is_refused_as_unfit, unfit_error
from opdispatch_server.daemon.calls.nested import RunningKernel
from opdispatch_server.daemon.calls.program_interpreter_choice import ProgramInterpreterChoice
from opdispatch_server.daemon.calls.program_plans import ProgramPlan, ProgramPlans
from opdispatch_server.daemon.calls.queue_deadline import queue_deadline
from opdispatch_server.daemon.calls.retry import Retries, may_run_twice
from opdispatch_server.daemon.calls.wait_for_ready import (
    LibraryAwayError,
    WaitForReady,
    end_of_patience,
)
from opdispatch_server.daemon.interpreters.blame import Blame
from opdispatch_server.daemon.interpreters.session import InterpreterSession
from opdispatch_server.daemon.interpreters.sessions import InterpreterSessions
from opdispatch_server.daemon.libraries.operator_registry import OperatorRegistry
from opdispatch_server.daemon.libraries.registry import LibraryRegistry
from opdispatch_server.daemon.libraries.version import LibraryVersion
from opdispatch_server.daemon.values.remote_part import RemotePart
from opdispatch_server.daemon.values.table import RemoteValueTable
from opdispatch_wire.calls import undecoded_arguments
from opdispatch_wire.errors import (
    InterpreterDiedError,
    InterpreterNotFoundError,
    WireError,
)
from opdispatch_wire.layouts import WireLayoutTensor
from opdispatch_wire.tensors import WireTensor
from opdispatch_wire.v1 import execution_pb2

# More inputs or bytes than this are examined in a thread, to keep the event loop responsive.
_AT_ONCE_INPUTS = 256
_AT_ONCE_BYTES = 256 * 1024


WaitForLibrary = Callable[[Callable[[LibraryVersion], bool], OpdispatchError], Awaitable[None]]


class SharedSlots:
    """The slots of several libraries for one program. Released together, once."""

    def __init__(self, slots: Sequence[Slot]) -> None:
        self._slots = slots
        self.is_ahead = False
        self.began = slots[-1].began

    def release(self) -> None:
        """Release the slots to the next calls."""
        for slot in self._slots:
            slot.release()


class ProgramRouter:
    """Routes programs to interpreters. For use in the event loop only."""

    def __init__(
        self,
        operators: OperatorRegistry,
        libraries: LibraryRegistry,
        sessions: InterpreterSessions,
        queues: InterpreterQueues,
        runs: KernelRuns,
        wait_for_ready: WaitForReady,
        table: RemoteValueTable,
        blame: Blame,
        alone: AloneRuns,
    ) -> None:
        self._find_waiting = libraries.catalog.find_waiting
        self._wait_for_ready = wait_for_ready
        self._plans = ProgramPlans(operators, libraries.catalog.newest)
        self._placement = libraries.placement
        self._choice = ProgramInterpreterChoice(sessions, libraries)
        self._queues = queues
        self._runs = runs
        self._table = table
        self._blame = blame
        self._alone = alone

    async def call(
        self,
        request: execution_pb2.CallRequest,
        context: CallContext,
        parent: RunningKernel | None,
        wait: WaitForLibrary,
    ) -> execution_pb2.CallReply:
        """Run one program. Raises the errors that CallRouter.call raises.

        ``wait`` waits for a library that has lost its interpreters.
        """
        if request.adopt:
            raise WireError("$.adopt may only be set by the daemon")
        request.ClearField("device_memory")  # only interpreters set it, and only between themselves
        if parent is not None:
            raise WireError("$.program may only be sent by clients, not by kernels")
        retries, patience = Retries(), 0.0
        while True:
            remote = RemotePart(self._table, request)
            inputs = await self._look_at_inputs(request, remote)
            plan = await self._plans.get(request.program)
            if (away := self._find_away(plan)) is not None:
                refusal = self._wait_for_ready.refusal(away)
                if self._wait_for_ready.is_hopeless(away.library):
                    raise refusal
                name = away.library.name
                await wait(lambda version, name=name: version.name == name, refusal)  # type: ignore[misc]
                continue
            plan.program.check_inputs(len(inputs))
            device = request.keep.device
            if not plan.program.steps:
                copied = sum(remote.homes.values()) if device else 0
                await remote.check_room(copied + sum(map(_inline_bytes, inputs)))
            elif device:
                raise WireError("$.keep.device is set for a program with steps; expected none")
            try:
                if device and not request.keep.on:
                    session = self._choice.choose_for_device(device, remote)
                else:
                    session = self._choice.choose(plan, remote, request.keep.on, inputs)
            except (InterpreterNotFoundError, DeviceError) as error:
                if not self._placement.is_coming(request.keep.on):
                    raise
                patience = patience or end_of_patience(context)
                change, size = self._placement.wait_for_change, context.size_of(request)
                await self._wait_for_ready.wait_for(change, error, size, patience)
                continue
            request.operator = plan.description
            try:
                return await self._run_watched(request, context, plan, session, remote, retries)
            except InterpreterDiedError as error:
                is_harmless = may_run_twice(request, writes=plan.writes)
                again = retries.may_run_again(error, is_harmless=is_harmless)
                if not again or request.keep.on:
                    raise

    async def _run_watched(
        self,
        request: execution_pb2.CallRequest,
        context: CallContext,
        plan: ProgramPlan,
        session: InterpreterSession,
        remote: RemotePart,
        retries: Retries,
    ) -> execution_pb2.CallReply:
        """Run a program like ``_run``, alone if an operator is suspected of causing deaths."""
        blame = self._blame
        watched = [] if blame.is_quiet else plan.find_watched(blame.is_watched)
        apart = retries.was_suspect or any(blame.is_apart(library) for library, _ in watched)
        with blame.admitted(watched):
            async with self._alone.at(session) if apart else nullcontext():
                reply = await self._run(request, context, plan, session, remote, is_alone=apart)
            if is_refused_as_unfit(reply, session):
                raise unfit_error(session, request.operator)
            return reply

    async def _look_at_inputs(
        self, request: execution_pb2.CallRequest, remote: RemotePart
    ) -> Sequence[Any]:
        """Return the inputs, as far as the daemon knows them. Raises as ``remote.find`` does."""
        if len(request.args) > _AT_ONCE_INPUTS or request.ByteSize() > _AT_ONCE_BYTES:
            inputs, _ = await asyncio.to_thread(undecoded_arguments, request, remote.find)
        else:
            inputs, _ = undecoded_arguments(request, remote.find)
        return inputs

    def _find_away(self, plan: ProgramPlan) -> LibraryAwayError | None:
        """Return the error for the first operator whose library is away but will return, if any."""
        for operator in plan.missing:
            if library := self._find_waiting(operator):
                return LibraryAwayError(library, operator)
        return None

    async def _run(
        self,
        request: execution_pb2.CallRequest,
        context: CallContext,
        plan: ProgramPlan,
        session: InterpreterSession,
        remote: RemotePart,
        *,
        is_alone: bool = False,
    ) -> execution_pb2.CallReply:
        here = [
            version
            for version, _ in plan.libraries
            if (replica := version.find_replica(session)) is not None and replica.is_serving
        ]
        request.ClearField("kernel")
        del request.libraries[:]
        if len(here) == 1:
            request.kernel.load_id = here[0].load_id
        else:
            request.libraries.extend(version.load_id for version in here)
        async with AsyncExitStack() as stack:
            for version in here:
                stack.enter_context(_counted(version, session))
            # Inputs needed on another device are copied to the interpreter that has it.
            at = remote.at(session, context, copies=bool(request.keep.device))
            keeping = await stack.enter_async_context(at)
            slot = None if is_alone else await self._admit(here, session, request, context)
            if len(here) == 1:
                context = context.in_lane(here[0].load_id, here[0].max_concurrency)
            on_end = keeping.take if keeping is not None else None
            operators = plan.program.steps
            reply = await self._runs.run(session, request, context, slot, on_end, operators)
            if reply.HasField("error"):
                remote.check_alive()  # explains better why the value could not be copied
            return reply

    async def _admit(
        self,
        libraries: Sequence[LibraryVersion],
        session: InterpreterSession,
        request: execution_pb2.CallRequest,
        context: CallContext,
    ) -> Slot | SharedSlots | None:
        """Wait for a slot of each library. See Note [Calls of several libraries]."""
        queue = self._queues.queue_of(session)
        what = request.operator
        slots: list[Slot] = []
        try:
            async with queue_deadline(what, context, session):
                for version in libraries:  # by load id: one order for all, or programs deadlock
                    kind = SlotKind.FURTHER if slots else SlotKind.FIRST
                    if len(libraries) == 1:
                        kind = SlotKind.ONLY
                    slots.append(
                        await queue.enter(
                            version.load_id,
                            version.max_concurrency,
                            what,
                            lambda: context.size_of(request),
                            kind,
                        )
                    )
        except BaseException:
            for slot in slots:
                slot.release()
            raise
        if len(slots) < 2:
            return slots[0] if slots else None
        return SharedSlots(slots)


def _inline_bytes(value: Any) -> int:
    if isinstance(value, WireLayoutTensor):
        return int(value.nbytes)
    if not isinstance(value, WireTensor):
        return 0
    message = value.message
    return int(message.chunked.length) if message.HasField("chunked") else len(message.data)


@contextmanager
def _counted(version: LibraryVersion, session: InterpreterSession) -> Iterator[None]:
    """Count a program's use of a library during the block, so that it stays loaded."""
    replica = version.find_replica(session)
    version.begin_call()
    if replica is not None:
        replica.begin_call()
    try:
        yield
    finally:
        if replica is not None:
            replica.end_call()
        version.end_call()
