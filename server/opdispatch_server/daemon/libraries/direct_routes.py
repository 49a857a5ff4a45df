"""Routes by which clients call the holders of a kernel directly: issued and revoked here.

See Note [Direct calls and the registry] in ``direct_calls``.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager

from opdispatch import DispatchKeySet, OperatorHandle
from opdispatch_server.access.authentication import ANYBODY, CALLER, uses_local_lanes
from opdispatch_server.access.identity import Identity
from opdispatch_server.access.route_tickets import LIFETIME, RouteTickets
from opdispatch_server.daemon.interpreters.session import InterpreterSession
from opdispatch_server.daemon.interpreters.sessions import InterpreterSessions
from opdispatch_server.daemon.libraries.operator_registry import OperatorRegistry
from opdispatch_server.daemon.libraries.version import LibraryVersion
from opdispatch_server.direct_run import ATTENTION
from opdispatch_wire.v1 import execution_pb2, values_pb2
from opdispatch_wire.v1 import interpreter_pb2 as pb

# How long an interpreter may take to acknowledge that it must refuse direct calls. After that it
# refuses them by itself, because it has not heard from the daemon.
HEARING_WAIT = 1.5 * ATTENTION
_EPOCH_BITS = 62
# Lists with more items are not searched.
_LONGEST = 16


class DirectRoutes:
    """Issues and revokes routes for direct calls. For use in the event loop only.

    Routes are issued only while ``_changes`` is 0; then every interpreter that is ready, and is not
    in ``_suspended``, has been sent ``_epoch``, and is never sent an earlier epoch again. Epochs of
    different daemons differ: the first one is random.
    """

    def __init__(
        self,
        operators: OperatorRegistry,
        sessions: InterpreterSessions,
        tickets: RouteTickets,
        is_counted: Callable[[Identity], bool],
    ) -> None:
        """Issue no routes to identities for which ``is_counted``: the daemon counts their calls."""
        self._tickets = tickets
        self._is_counted = is_counted
        tickets.on_revoked = lambda token: self.renew([token])
        self._operators = operators
        self._sessions = sessions
        self._epoch = secrets.randbits(_EPOCH_BITS)
        # The newest epoch acknowledged by each interpreter that listens.
        self._answers: list[asyncio.Future[pb.InterpreterMessage]] = []
        self._changes = 0
        self._suspended: set[InterpreterSession] = set()
        self._is_ended = False

    def find(
        self,
        name: str,
        request: execution_pb2.CallRequest,
        op: OperatorHandle,
        version: LibraryVersion,
        place: int | None,
        keys: DispatchKeySet,
        sessions: Iterable[InterpreterSession],
    ) -> execution_pb2.Route | None:
        """Return the route for calls of ``name`` that are like ``request``, or None.

        The calls run the kernel at ``place`` of an active version, one of the kernels of ``op``, in
        one of the ``sessions``; without a place, they run what those interpreters have in the slot
        for ``keys``. The route names all sessions, so that a client can spread its calls. None
        means that no session takes direct calls, or that the caller already has the newest route.
        """
        if self._changes or self._is_ended or request.route_epoch == self._epoch:
            return None
        if len(self._operators.dispatcher.overloads(name)) > 1 and has_text(request):
            # An overload was chosen by its arguments. A string may be the name of a device or a
            # dtype, and so decide the choice.
            return None
        caller = CALLER.get()
        targets = [self._target(session, caller) for session in sessions if session.ready]
        if not any(target.lane or target.ports for target in targets):
            return None
        kernel = execution_pb2.KernelRef(
            load_id=version.load_id,
            registration=place,
            dispatch_keys=keys.bits,
            in_slot=place is None,
        )
        return execution_pb2.Route(
            epoch=self._epoch,
            operator=str(op.name),
            kernel=kernel,
            targets=targets,
            is_repeatable=not op.schema.is_mutable,
            ticket_seconds=LIFETIME if any(target.ticket for target in targets) else 0,
        )

    def _target(self, session: InterpreterSession, caller: Identity) -> execution_pb2.RouteTarget:
        target = execution_pb2.RouteTarget(interpreter=session.name, session=session.number)
        if uses_local_lanes(caller):
            target.lane = session.direct_lane
        if caller is ANYBODY:
            target.ports.extend(session.direct_ports)
        elif session.direct_ports and not self._is_counted(caller):
            target.ticket = self._tickets.issue(caller, session.number, self._epoch)
            if target.ticket:
                target.ports.extend(session.direct_ports)
        return target

    @asynccontextmanager
    async def closed(self) -> AsyncIterator[None]:
        """Keep direct calls from beginning during the block; afterwards there is a new epoch."""
        # Before interpreters are asked, so that no route is issued while they answer.
        self._changes += 1
        try:
            # An interpreter that is too busy has not listened for longer than ATTENTION, and so
            # refuses direct calls.
            listening = [session for session in self._sessions.all() if not session.busy]
            answers = [answer for s in listening if (answer := self._tell(s))]
            if answers:
                await asyncio.wait(answers, timeout=HEARING_WAIT)
            yield
        finally:
            # After an error, too: interpreters take no direct calls until they receive a new epoch.
            self._changes -= 1
            self.renew()

    def renew(self, revoked: Iterable[str] = ()) -> None:
        """Revoke all routes issued so far, without waiting for interpreters to acknowledge it.

        ``revoked`` are the ids of tokens that are no longer valid: see Note [Route tickets].
        """
        self._epoch += 1
        told = [(each, self._tell(each, revoked)) for each in list(self._sessions.all())]
        self._answers = [answer for each, answer in told if answer and not each.busy]

    async def heard(self) -> None:
        """Wait until the interpreters that listen know which routes are valid now.

        If a change is acknowledged only after that, no interpreter that is late refuses its caller.
        """
        if self._answers:
            await asyncio.wait(self._answers, timeout=HEARING_WAIT)

    def announce(self, session: InterpreterSession) -> None:
        """Send an interpreter the epoch of valid routes."""
        self._tell(session)

    async def suspend(self, session: InterpreterSession) -> None:
        """Keep an interpreter from direct calls until ``resume``; wait until it runs none."""
        self._suspended.add(session)
        self._tell(session)
        await session.wait_for_direct_calls(0)

    def resume(self, session: InterpreterSession) -> None:
        """Let a suspended interpreter accept direct calls again."""
        if session in self._suspended:
            self._suspended.remove(session)
            self._tell(session)

    def end(self) -> None:
        """Stop direct calls to the daemon's own interpreters: the daemon stops. Others continue."""
        self._is_ended = True
        for session in self._sessions.all():
            if session.supervised:
                self._tell(session)

    def _epoch_for(self, session: InterpreterSession) -> int:
        """Return the epoch whose routes an interpreter may accept; 0: it accepts none."""
        is_ended = self._is_ended and session.supervised
        return 0 if self._changes or is_ended or session in self._suspended else self._epoch

    def _tell(
        self, session: InterpreterSession, revoked: Iterable[str] = ()
    ) -> asyncio.Future[pb.InterpreterMessage] | None:
        if not (session.alive and session.direct_lane):
            return None
        epoch = self._epoch_for(session)
        answer = session.post(
            pb.DaemonMessage(direct_calls=pb.DirectCalls(epoch=epoch, revoked=revoked))
        )
        answer.add_done_callback(_look_at)
        return answer


def _look_at(answer: asyncio.Future[pb.InterpreterMessage]) -> None:
    if not answer.cancelled():
        answer.exception()  # retrieves the error: a dead interpreter takes no calls


def has_text(request: execution_pb2.CallRequest) -> bool:
    """Return whether any argument is a text, or may hold one."""
    return any(map(_holds_text, (*request.args, *request.kwargs.values())))


def _holds_text(value: values_pb2.Value) -> bool:
    kind = value.WhichOneof("kind")
    if kind == "list":  # assumed of a long list: a direct caller does not search it either
        return len(value.list.items) > _LONGEST or any(map(_holds_text, value.list.items))
    return kind in ("text", "device")
