"""The daemon's part of a call: choose the kernel, and run it in an interpreter."""

from __future__ import annotations

import asyncio
import functools
from collections import Counter
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from time import monotonic_ns
from typing import Any

from opdispatch.errors import InternalError, OpdispatchError, OperatorNotFoundError
from opdispatch_server.call_context import CallContext
from opdispatch_server.daemon.calls.alone_runs import AloneRuns
from opdispatch_server.daemon.calls.fast_path import QuickCall, QuickCalls
from opdispatch_server.daemon.calls.interpreter_queue import Slot
from opdispatch_server.daemon.calls.interpreter_queues import InterpreterQueues
from opdispatch_server.daemon.calls.kernel_choice import CallChooser, Choice
from opdispatch_server.daemon.calls.kernel_run import KernelRun
from opdispatch_server.daemon.calls.kernel_runs import KernelRuns
from opdispatch_server.daemon.calls.lost_replies import is_refused_as_unfit, unfit_error
from opdispatch_server.daemon.calls.nested import (
    NESTED_CALLS_PER_INTERPRETER,
    RunningKernel,
    context_of_call,
)
from opdispatch_server.daemon.calls.profile_events import add_daemon_events, note_received
from opdispatch_server.daemon.calls.program_router import ProgramRouter
from opdispatch_server.daemon.calls.queue_deadline import queue_deadline
from opdispatch_server.daemon.calls.relay_plan import RelayedCall
from opdispatch_server.daemon.calls.replica_choice import choose_replica
from opdispatch_server.daemon.calls.retry import Retries, may_run_twice
from opdispatch_server.daemon.calls.trace_line import line_of_choice, put_first
from opdispatch_server.daemon.calls.wait_for_ready import (
    LibraryAwayError,
    WaitForReady,
    end_of_patience,
)
from opdispatch_server.daemon.interpreters.blame import Blame
from opdispatch_server.daemon.interpreters.session import InterpreterSession
from opdispatch_server.daemon.libraries.direct_routes import DirectRoutes
from opdispatch_server.daemon.libraries.operator_registry import OperatorRegistry
from opdispatch_server.daemon.libraries.registry import LibraryRegistry
from opdispatch_server.daemon.libraries.replica import Replica
from opdispatch_server.daemon.libraries.version import LibraryVersion
from opdispatch_server.daemon.values.direct_keeps import DirectKeeps
from opdispatch_server.daemon.values.remote_part import Keeping, RemotePart
from opdispatch_server.daemon.values.table import RemoteValueTable
from opdispatch_server.serving.call_protocols import OnReply
from opdispatch_wire.errors import (
    DeadlineExceededError,
    InterpreterDiedError,
    QueueFullError,
    RefusedError,
    RemoteValueGoneError,
    WireError,
)
from opdispatch_wire.status import status_from_error, stopping_error
from opdispatch_wire.v1 import execution_pb2


@dataclass(slots=True)
class _Progress:
    """The state of one call."""

    parent: RunningKernel | None
    # Whether it may wait for a library that has no interpreter.
    may_wait: bool
    # The interpreter to which it was sent directly, without a reply.
    lost: execution_pb2.LostCall | None = None
    # Its run that ended with the interpreter.
    broken: KernelRun | None = None
    retries: Retries = field(default_factory=Retries)
    # When it stops waiting, as a time of the event loop; None if it has not had to wait.
    patience: float | None = None


class CallRouter:
    """Forwards calls to interpreters. For use in the event loop only."""

    def __init__(
        self,
        operators: OperatorRegistry,
        libraries: LibraryRegistry,
        routes: DirectRoutes,
        queues: InterpreterQueues,
        runs: KernelRuns,
        wait_for_ready: WaitForReady,
        values: RemoteValueTable,
        keeps: DirectKeeps,
        programs: ProgramRouter,
        blame: Blame,
        alone: AloneRuns,
    ) -> None:
        self._operators = operators
        self._chooser = CallChooser(operators)
        self._catalog = libraries.catalog
        self._devices = libraries.devices
        self._routes = routes
        self._queues = queues
        self._runs = runs
        self._wait_for_ready = wait_for_ready
        self._values = values
        self._keeps = keeps
        self._programs = programs
        self._blame = blame
        self._alone = alone
        self._quick_calls = QuickCalls(
            operators, self._chooser, self._devices, routes, queues, runs, blame
        )
        self.refusals: Counter[str] = Counter()
        """Calls that ended with an error raised by the daemon, by its class."""
        self._draining = False
        self._last_refusal = 0.0  # since the drain began, by the event loop's clock
        self._in_flight = 0
        self._idle = asyncio.Event()
        self._idle.set()

    def find_planned(self, payload: bytes) -> RelayedCall | None:
        """Return the call in a message, if it can be passed on by its constant bytes."""
        found = self._quick_calls.plans.find(payload)
        return None if found is None else RelayedCall(*found, payload, self._begin_planned)

    def _begin_planned(
        self, call: RelayedCall, on_reply: Callable[[Any], None]
    ) -> QuickCall | None:
        if self._draining:
            return None
        quick = self._quick_calls.begin_planned(call, on_reply, self._call_ended)
        if quick is not None:
            self._call_begins()
        return quick

    def begin(
        self, request: execution_pb2.CallRequest, context: CallContext, on_reply: OnReply[KernelRun]
    ) -> QuickCall | None:
        """Begin a call that has to wait for nothing but its kernel.

        None means that nothing has begun and that the call is one for ``call``.
        """
        if self._draining:
            return None
        quick = self._quick_calls.begin(request, context, on_reply, self._call_ended)
        if quick is not None:
            self._call_begins()
        return quick

    async def call(
        self,
        request: execution_pb2.CallRequest,
        context: CallContext,
        broken: KernelRun | None = None,
    ) -> execution_pb2.CallReply:
        """Run one call; ``broken`` is an earlier run, begun by ``begin``, that had no reply.

        Raises the errors of the dispatcher and the wire, those of KernelRuns.run, RefusedError, and
        QueueFullError. The reply may be an error, too, as sent by an interpreter.
        """
        if request.cancel or request.HasField("chunk"):
            # Some interpreters are called over streams, in which these fields would not be a call.
            raise WireError("$.cancel and $.chunk are of streams, and no part of a call")
        # A kernel's nested call belongs to the call that the kernel runs for. Only a run in
        # progress counts as one, whatever else the caller claims.
        parent = self._runs.find(context.run)
        if self._draining and parent is None:
            self._last_refusal = asyncio.get_running_loop().time()
            raise stopping_error("the call never started")
        if parent is not None and parent.is_abandoned:
            raise RefusedError(
                f"{request.operator} was not started: the caller of {parent.operator}, which it "
                "is a part of, has given up",
                operator=request.operator,
            )
        # Made during an import, or by a thread that a kernel started: while it waits, its
        # interpreter may be the one into which the library is to be loaded.
        may_wait = parent is not None or not context.is_from_kernel
        context = context_of_call(context, parent)
        self._call_begins()
        lost = request.lost if request.HasField("lost") else None
        progress = _Progress(parent, may_wait, lost, broken)
        note_received(request)
        try:
            if parent is None:
                reply = await self._call(request, context, progress)
            else:
                with self._runs.nested_in(parent):
                    reply = await self._call(request, context, progress)
        except OpdispatchError as error:
            self.refusals[type(error).__name__] += 1
            if not request.HasField("profile"):
                raise
            reply = execution_pb2.CallReply(error=status_from_error(error))
        finally:
            self._call_ended()
        add_daemon_events(request, reply)
        return reply

    def _call_begins(self) -> None:
        self._in_flight += 1
        self._idle.clear()

    def _call_ended(self) -> None:
        self._in_flight -= 1
        if not self._in_flight:
            self._idle.set()

    async def drain(self, grace: float) -> bool:
        """Refuse new calls and wait for those in flight; return False if they need longer."""
        self._draining = True
        self._wait_for_ready.close()
        try:
            await asyncio.wait_for(self._idle.wait(), grace)
        except TimeoutError:
            return False
        return True

    async def wait_for_quiet(self, seconds: float, at_most: float) -> None:
        """After ``drain``, wait until no call was refused for ``seconds``, up to ``at_most``.

        Sessions close a connection on which a call is refused. If the daemon closed it first, a
        call might be on its way, and its caller could not know that it never began. Clients of
        older versions do not close: they call until the connection ends.
        """
        loop = asyncio.get_running_loop()
        self._last_refusal = loop.time()
        latest = loop.time() + at_most
        while (left := min(self._last_refusal + seconds, latest) - loop.time()) > 0:
            await asyncio.sleep(left)

    async def _call(
        self, request: execution_pb2.CallRequest, context: CallContext, progress: _Progress
    ) -> execution_pb2.CallReply:
        await self._hear(request, context)
        if request.program or request.adopt:
            wait = functools.partial(self._wait, request, context, progress)
            return await self._programs.call(request, context, progress.parent, wait)
        while True:
            try:
                remote = RemotePart(self._values, request)
                choice = await self._choose(request, remote)
                line = line_of_choice(request, choice) if request.trace else None
                is_harmless = may_run_twice(request, writes=choice.writes)
                if progress.lost is not None:
                    lost, progress.lost = progress.lost, None
                    raise await self._runs.lost.explain_direct(lost, str(choice.op.name))
                if progress.broken is not None:
                    run, progress.broken = progress.broken, None
                    raise await self._runs.lost.explain(run)
                reply = await self._forward(request, context, choice, progress, remote)
                break
            except LibraryAwayError as away:
                refusal = self._wait_for_ready.refusal(away)
                if not progress.may_wait or self._wait_for_ready.is_hopeless(away.library):
                    raise refusal from None
                name = away.library.name
                await self._wait(
                    request,
                    context,
                    progress,
                    lambda version, name=name: version.name == name,  # type: ignore[misc]
                    refusal,
                )
            except RemoteValueGoneError:
                if progress.lost is None:
                    raise
                # The interpreter to which it was sent directly has ended with its arguments.
                died = await self._runs.lost.explain_direct(progress.lost, request.operator)
                is_harmless = may_run_twice(request, writes=False)
                if isinstance(died, InterpreterDiedError) and progress.retries.may_run_again(
                    died, is_harmless=is_harmless
                ):
                    raise
                raise died from None
            except InterpreterDiedError as error:
                again = progress.retries.may_run_again(error, is_harmless=is_harmless)
                if not again or not progress.may_wait:
                    if "culprit" in error.facts and choice.writes:
                        error.hint = (
                            "the operator writes to its arguments, so the call was not repeated; "
                            "it may or may not have run"
                        )
                    raise
                operator = str(choice.op.name)
                await self._wait(
                    request,
                    context,
                    progress,
                    lambda version, operator=operator: version.has_operator(operator),  # type: ignore[misc]
                    error,
                )
        if line is not None:
            put_first(line, reply)
        return reply

    async def _hear(self, request: execution_pb2.CallRequest, context: CallContext) -> None:
        """Learn of those of the call's remote values that direct calls have kept."""
        try:
            async with asyncio.timeout(context.timeout):
                await self._keeps.prepare(request)
        except TimeoutError:
            raise DeadlineExceededError(
                "the deadline passed before interpreters had said what they keep", started="no"
            ) from None

    async def _wait(
        self,
        request: execution_pb2.CallRequest,
        context: CallContext,
        progress: _Progress,
        affects: Callable[[LibraryVersion], bool],
        error: OpdispatchError,
    ) -> None:
        """Wait until an interpreter may have the operator again; raise ``error`` otherwise."""
        if progress.patience is None:
            progress.patience = end_of_patience(context)
        try:
            await self._wait_for_ready.wait(
                affects, error, context.size_of(request), progress.patience
            )
        except OpdispatchError:
            if self._draining:  # the next daemon may run it: only a call like this one waits
                raise stopping_error("the call may run at the next one") from error
            raise

    async def _choose(self, request: execution_pb2.CallRequest, remote: RemotePart) -> Choice:
        try:
            return await self._chooser.choose(request, remote.find)
        except OperatorNotFoundError as error:
            raise self._explain_absence(request.operator, error) from None

    def _explain_absence(self, operator: str, error: OperatorNotFoundError) -> OpdispatchError:
        """Return the error of a call of an operator that does not exist.

        Raises LibraryAwayError if it will exist again.
        """
        if waiting := self._catalog.find_waiting(operator):
            raise LibraryAwayError(waiting, operator) from None
        if hint := self._catalog.explain_absence(operator):
            return OperatorNotFoundError(error.message, hint=hint, **error.facts)
        return error

    async def _forward(
        self,
        request: execution_pb2.CallRequest,
        context: CallContext,
        choice: Choice,
        progress: _Progress,
        remote: RemotePart,
    ) -> execution_pb2.CallReply:
        op, keys = choice.op, choice.keys
        library, place = self._find_kernel(choice)
        unable = self._devices.unable(library, choice.devices)
        replica = choose_replica(library, unable, request.preferred_session, remote.homes)
        if replica is None:
            raise LibraryAwayError(library, str(op.name))
        name, operator = request.operator, str(op.name)
        is_watched = not self._blame.is_quiet and self._blame.is_watched(library.name, operator)
        is_alone = progress.retries.was_suspect or (
            is_watched and self._blame.is_apart(library.name)
        )
        choice.name_kernel(request, library.load_id, place)
        # The route as of now: if the registry changes while the call runs, the route is refused.
        route: execution_pb2.Route | None = None
        if request.wants_route and not is_watched and not progress.parent:
            targets = self._devices.find_targets(op, library, choice.devices)
            if homes := remote.homes:  # direct calls only read values that are already in place
                only = None if choice.writes or len(homes) > 1 else next(iter(homes))
                targets = [each for each in targets if each is only]
            if request.HasField("keep"):
                only = None if choice.writes else replica.session
                targets = [each for each in targets if each is only]
            route = self._routes.find(name, request, op, library, place, keys, targets)
        library.begin_call()
        try:
            async with AsyncExitStack() as stack:
                if is_watched:
                    stack.enter_context(self._blame.admitted([(library.name, operator)]))
                keeping = None
                if not remote.is_empty:
                    keeping = await stack.enter_async_context(remote.at(replica.session, context))
                if is_alone and progress.parent is None:
                    await stack.enter_async_context(self._alone.at(replica.session))
                reply = await self._run(
                    request,
                    context,
                    library,
                    replica,
                    progress.parent,
                    keeping,
                    is_alone=is_alone,
                    may_move=may_run_twice(request, writes=choice.writes) and not is_watched,
                )
                if is_refused_as_unfit(reply, replica.session):
                    raise unfit_error(replica.session, operator)
            keeps = request.keep if request.HasField("keep") else None
            if route is not None and (
                keeps is None or await self._keeps.grant(keeps, replica.session)
            ):
                reply.route.CopyFrom(route)
            return reply
        except InterpreterDiedError:
            replica.note_failure()
            raise
        finally:
            library.end_call()

    async def _run(
        self,
        request: execution_pb2.CallRequest,
        context: CallContext,
        library: LibraryVersion,
        replica: Replica,
        parent: RunningKernel | None,
        keeping: Keeping | None = None,
        *,
        is_alone: bool = False,
        may_move: bool = False,
    ) -> execution_pb2.CallReply:
        """Run the call in one replica, when its turn comes. Raises the errors of ``call``."""
        replica.begin_call()
        try:
            slot, came = None, monotonic_ns()
            if not is_alone:
                slot = await self._admit(
                    request, context, library, replica.session, parent, may_move=may_move
                )
            if parent is None:
                queued = monotonic_ns() - came
                context = context.in_lane(library.load_id, library.max_concurrency, queued)
            on_end = keeping.take if keeping is not None else None
            return await self._runs.run(
                replica.session, request, context, slot, on_end, may_move=may_move
            )
        finally:
            replica.end_call()

    async def _admit(
        self,
        request: execution_pb2.CallRequest,
        context: CallContext,
        library: LibraryVersion,
        session: InterpreterSession,
        parent: RunningKernel | None,
        *,
        may_move: bool,
    ) -> Slot | None:
        """Wait for the right to run a call. See Note [Nested calls take no slot]."""
        operator = request.operator
        if parent is not None:
            if session.calls_in_flight >= NESTED_CALLS_PER_INTERPRETER:
                raise QueueFullError(
                    f"interpreter {session.name} has {session.calls_in_flight} calls to finish; "
                    f"the call of {operator} never started",
                    hint="try again in a moment",
                    operator=operator,
                    interpreter=session.name,
                    started="no",
                )
            return None
        queue = self._queues.queue_of(session)
        slot = queue.try_enter(library.load_id, library.max_concurrency, operator)
        if slot is not None:
            return slot
        async with queue_deadline(operator, context, session, operator=operator):
            return await queue.enter(
                library.load_id,
                library.max_concurrency,
                operator,
                lambda: context.size_of(request),
                may_move=may_move,
            )

    def _find_kernel(self, choice: Choice) -> tuple[LibraryVersion, int | None]:
        """Return the library that runs the call, and the index of the kernel in its batch.

        No index means a kernel that every process has, such as the fallback of autograd: it runs
        where the operator was defined, and continues there.
        """
        resolution = choice.resolution
        kernel = self._operators.find_kernel(resolution.registration)
        if kernel is not None:
            return kernel
        owner = self._operators.find_owner(choice.op.definition)
        if owner is None:
            raise InternalError(f"the slot of {resolution.key} of {choice.op.name} leads nowhere")
        return owner, None
