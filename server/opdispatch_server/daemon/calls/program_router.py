"""The daemon's part of a program: choose the interpreter, wait for its turn, have it run."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager, nullcontext
from typing import Any

from opdispatch.arrays import split_device
from opdispatch.errors import DeviceError, OpdispatchError
from opdispatch_server.call_context import CallContext, with_last_words
from opdispatch_server.daemon.calls.admission import Admission
from opdispatch_server.daemon.calls.alone_runs import AloneRuns
from opdispatch_server.daemon.calls.interpreter_gate import Slot, SlotKind
from opdispatch_server.daemon.calls.kernel_runs import (
    KernelRuns,
    RunningKernel,
    is_refused_as_unfit,
    unfit_error,
)
from opdispatch_server.daemon.calls.program_plans import ProgramPlan, ProgramPlans
from opdispatch_server.daemon.calls.recovery import CallRecovery, LibraryAwayError, end_of_patience
from opdispatch_server.daemon.calls.repeats import Repeats, may_run_twice
from opdispatch_server.daemon.interpreters.blame import Blame
from opdispatch_server.daemon.interpreters.connected import InterpreterSessions
from opdispatch_server.daemon.interpreters.session import InterpreterSession
from opdispatch_server.daemon.libraries.operator_registry import OperatorRegistry
from opdispatch_server.daemon.libraries.registry import LibraryRegistry
from opdispatch_server.daemon.libraries.version import LibraryVersion
from opdispatch_server.daemon.values.remote_part import RemotePart
from opdispatch_server.daemon.values.table import RemoteValueTable
from opdispatch_wire.calls import undecoded_arguments
from opdispatch_wire.errors import (
    DeadlineExceededError,
    InterpreterDiedError,
    InterpreterNotFoundError,
    WireError,
)
from opdispatch_wire.layouts import WireLayoutTensor
from opdispatch_wire.tensors import WireTensor
from opdispatch_wire.v1 import execution_pb2

# With more inputs, or more bytes, they are looked at in a thread: others are served meanwhile.
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
        """Let the next ones run."""
        for slot in self._slots:
            slot.release()


class ProgramRouter:
    """Has programs run. Belongs to the event loop."""

    def __init__(
        self,
        operators: OperatorRegistry,
        libraries: LibraryRegistry,
        sessions: InterpreterSessions,
        admission: Admission,
        runs: KernelRuns,
        recovery: CallRecovery,
        table: RemoteValueTable,
        blame: Blame,
        alone: AloneRuns,
    ) -> None:
        self._versions = libraries.catalog.newest
        self._find_waiting = libraries.catalog.find_waiting
        self._recovery = recovery
        self._plans = ProgramPlans(operators, libraries.catalog.newest)
        self._placement = libraries.placement
        self._sessions = sessions
        self._devices = libraries.devices
        self._admission = admission
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
        """Run one program. Raises as CallRouter.call does.

        ``wait`` waits for a library that has lost its interpreters.
        """
        if request.adopt:
            raise WireError("$.adopt is what only the daemon says")
        request.ClearField("device_memory")  # only interpreters say it, and to each other
        if parent is not None:
            raise WireError("$.program comes from clients, and not from kernels")
        repeats, patience = Repeats(), 0.0
        while True:
            remote = RemotePart(self._table, request)
            inputs = await self._look_at_inputs(request, remote)
            plan = await self._plans.get(request.program)
            if (away := self._find_away(plan)) is not None:
                refusal = self._recovery.refusal(away)
                if self._recovery.is_hopeless(away.library):
                    raise refusal
                name = away.library.name
                await wait(lambda version, name=name: version.name == name, refusal)  # type: ignore[misc]
                continue
            plan.program.check_inputs(len(inputs))
            device = request.keep.device
            if not plan.program.steps:
                copied = sum(remote.homes.values()) if device else 0
                remote.check_room(copied + sum(map(_inline_bytes, inputs)))
            elif device:
                raise WireError("$.keep.device is of a program with steps; expected one without")
            try:
                if device and not request.keep.on:
                    session = self._choose_for_device(device, remote)
                else:
                    session = self._choose(plan, remote, request.keep.on, inputs)
            except (InterpreterNotFoundError, DeviceError) as error:
                if not self._placement.is_coming(request.keep.on):
                    raise
                patience = patience or end_of_patience(context)
                change, size = self._placement.wait_for_change, context.size_of(request)
                await self._recovery.wait_for(change, error, size, patience)
                continue
            request.operator = plan.description
            try:
                return await self._run_watched(request, context, plan, session, remote, repeats)
            except InterpreterDiedError as error:
                is_harmless = may_run_twice(request, writes=plan.writes)
                again = repeats.may_run_again(error, is_harmless=is_harmless)
                if not again or request.keep.on:
                    raise

    async def _run_watched(
        self,
        request: execution_pb2.CallRequest,
        context: CallContext,
        plan: ProgramPlan,
        session: InterpreterSession,
        remote: RemotePart,
        repeats: Repeats,
    ) -> execution_pb2.CallReply:
        """``_run``, alone if one of its operators may bring the interpreter down."""
        blame = self._blame
        watched = [] if blame.is_quiet else plan.find_watched(blame.is_watched)
        apart = repeats.was_suspect or any(blame.is_apart(library) for library, _ in watched)
        with blame.admitted(watched):
            async with self._alone.at(session) if apart else nullcontext():
                reply = await self._run(request, context, plan, session, remote, is_alone=apart)
            if is_refused_as_unfit(reply, session):
                raise unfit_error(session, request.operator)
            return reply

    async def _look_at_inputs(
        self, request: execution_pb2.CallRequest, remote: RemotePart
    ) -> Sequence[Any]:
        """Return the inputs, as far as they are known here. Raises as ``remote.find``."""
        if len(request.args) > _AT_ONCE_INPUTS or request.ByteSize() > _AT_ONCE_BYTES:
            inputs, _ = await asyncio.to_thread(undecoded_arguments, request, remote.find)
        else:
            inputs, _ = undecoded_arguments(request, remote.find)
        return inputs

    def _find_away(self, plan: ProgramPlan) -> LibraryAwayError | None:
        """The first operator whose library will be back."""
        for operator in plan.missing:
            if library := self._find_waiting(operator):
                return LibraryAwayError(library, operator)
        return None

    def _choose(
        self, plan: ProgramPlan, remote: RemotePart, name: str, inputs: Sequence[Any]
    ) -> InterpreterSession:
        """The interpreter that serves most steps; of equals, the one that has most of the values.

        Of those that can have arrays on the devices of its inputs, and on those that its steps
        name, if there are any. Raises InterpreterNotFoundError.
        """
        if name:
            return self._sessions.get_ready(name)
        devices = {str(getattr(each, "device", "cpu")).partition(":")[0] for each in inputs}
        homes, can_have = remote.homes, self._devices.can_have(devices)
        steps: dict[InterpreterSession, int] = {}
        for version, count in plan.libraries:
            for replica in version.replicas:
                if replica.is_serving:
                    steps[replica.session] = steps.get(replica.session, 0) + count
        candidates = steps.keys() or homes.keys()
        if not candidates:
            return self._choose_for_new(remote, can_have)
        if len(candidates) == 1:
            return next(iter(candidates))
        # A text is the name of a device if one of them has it.
        named = plan.program.devices
        devices.update(
            each for each in named if any(map(self._devices.can_have([each]), candidates))
        )
        can_have = self._devices.can_have(devices)
        return max(
            candidates,
            key=lambda session: (
                can_have(session),
                steps.get(session, 0),
                homes.get(session, 0),
                -session.calls_in_flight,
                -session.calls_total,
            ),
        )

    def _choose_for_device(self, device: str, remote: RemotePart) -> InterpreterSession:
        """Where values are put on a device: where they are, or else where new ones would be.

        Raises DeviceError if no interpreter has it.
        """
        try:
            split_device(device)
        except DeviceError:
            raise self._placement.absence_of(device) from None
        can_have, homes = self._devices.can_have([device]), remote.homes
        for home in sorted(homes, key=lambda home: homes[home], reverse=True):
            if can_have(home):
                return home
        session = self._choose_for_new(remote, can_have)
        if not can_have(session):
            raise self._placement.absence_of(device)
        return session

    def _choose_for_new(
        self, remote: RemotePart, can_have: Callable[[InterpreterSession], bool]
    ) -> InterpreterSession:
        """Where values are put of which nothing is known: where their devices are, then where most
        libraries are, and then where the client has put the last one. Raises
        InterpreterNotFoundError.
        """
        ready = [each for each in self._sessions.ready() if not self._placement.is_draining(each)]
        if not ready:
            raise InterpreterNotFoundError("there is no interpreter that could keep a value")
        libraries = dict.fromkeys(ready, 0)
        for version in self._versions():
            for replica in version.replicas:
                if replica.is_serving and replica.session in libraries:
                    libraries[replica.session] += 1
        return max(
            ready,
            key=lambda session: (
                can_have(session),
                libraries[session],
                session is remote.last_home,
                -session.calls_in_flight,
                -session.calls_total,
            ),
        )

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
            # What is to be on another device is copied to where that is.
            at = remote.at(session, context, copies=bool(request.keep.device))
            keeping = await stack.enter_async_context(at)
            slot = None if is_alone else await self._admit(here, session, request, context)
            if len(here) == 1:
                context = context.in_lane(here[0].load_id, here[0].max_concurrency)
            on_end = keeping.take if keeping is not None else None
            operators = plan.program.steps
            reply = await self._runs.run(session, request, context, slot, on_end, operators)
            if reply.HasField("error"):
                remote.check_alive()  # says better why it could not be copied
            return reply

    async def _admit(
        self,
        libraries: Sequence[LibraryVersion],
        session: InterpreterSession,
        request: execution_pb2.CallRequest,
        context: CallContext,
    ) -> Slot | SharedSlots | None:
        """Wait for a slot of each library. See Note [Calls of several libraries]."""
        gate = self._admission.gate_of(session)
        what = request.operator
        slots: list[Slot] = []
        timeout = None if context.timeout is None else with_last_words(context.timeout)
        try:
            async with asyncio.timeout(timeout):
                for version in libraries:  # in the order of their load ids
                    kind = SlotKind.FURTHER if slots else SlotKind.FIRST
                    if len(libraries) == 1:
                        kind = SlotKind.ONLY
                    slots.append(
                        await gate.enter(
                            version.load_id,
                            version.max_concurrency,
                            what,
                            lambda: context.size_of(request),
                            kind,
                        )
                    )
        except BaseException as error:
            for slot in slots:
                slot.release()
            if isinstance(error, TimeoutError) and not isinstance(error, DeadlineExceededError):
                raise DeadlineExceededError(
                    f"the deadline passed while {what} was queued for interpreter "
                    f"{session.name}; it never started",
                    interpreter=session.name,
                    started="no",
                ) from error
            raise
        if len(slots) < 2:
            return slots[0] if slots else None
        return SharedSlots(slots)


def _inline_bytes(value: Any) -> int:
    if isinstance(value, WireLayoutTensor):
        return int(value.nbytes)
    return len(value.message.data) if isinstance(value, WireTensor) else 0


@contextmanager
def _counted(version: LibraryVersion, session: InterpreterSession) -> Iterator[None]:
    """While a program uses a library: it is not let go of."""
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
