"""The routes by which clients reach the holders of a kernel, as the daemon gives and ends them.

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

# How long an interpreter may take to hear that it is to take no direct calls. Later it takes none
# for lack of attention.
HEARING_WAIT = 1.5 * ATTENTION
_EPOCH_BITS = 62
# Lists with more items are not looked through.
_LONGEST = 16


class DirectRoutes:
    """Belongs to the event loop.

    Routes are given while ``_changes`` is 0; then every interpreter that is ready has been sent
    ``_epoch``, and never is one sent an earlier epoch again. Another daemon's epochs are others:
    the first one is random.
    """

    def __init__(
        self,
        operators: OperatorRegistry,
        sessions: InterpreterSessions,
        tickets: RouteTickets,
        is_counted: Callable[[Identity], bool],
    ) -> None:
        """``is_counted`` says whether the daemon has to see each call of an identity."""
        self._tickets = tickets
        self._is_counted = is_counted
        tickets.on_revoked = lambda token: self.renew([token])
        self._operators = operators
        self._sessions = sessions
        self._epoch = secrets.randbits(_EPOCH_BITS)
        # Of those that listen, to the newest epoch.
        self._answers: list[asyncio.Future[pb.InterpreterMessage]] = []
        self._changes = 0
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
        """Return the route of calls of ``name`` that are like ``request``, or None.

        The kernel at ``place`` of an active version runs it, which is one of ``op``, in one of the
        ``sessions``; or, without a place, what these have in the slot for ``keys``. The route
        names all of them, so that a client can spread its calls. None: no session takes direct
        calls, or the caller has the newest route already.
        """
        if self._changes or self._is_ended or request.route_epoch == self._epoch:
            return None
        if len(self._operators.dispatcher.overloads(name)) > 1 and _has_text(request):
            # An overload was chosen. A text may be the name of a device or a dtype, and choose.
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
        """Keep direct calls from beginning in the block; afterwards there is a new epoch."""
        # Before interpreters are asked: no route is given while they answer.
        self._changes += 1
        try:
            # One that is busy has not listened for longer than ATTENTION, and so takes none.
            listening = [session for session in self._sessions.all() if not session.busy]
            answers = [answer for s in listening if (answer := self._tell(s, 0))]
            if answers:
                await asyncio.wait(answers, timeout=HEARING_WAIT)
            yield
        finally:
            # Also after an error: interpreters take no direct calls until they get another epoch.
            self._changes -= 1
            self.renew()

    def renew(self, revoked: Iterable[str] = ()) -> None:
        """End all routes that were given so far, without waiting until everybody has heard it.

        ``revoked`` are the ids of tokens that hold no more: see Note [Route tickets].
        """
        self._epoch += 1
        epoch, sessions = 0 if self._changes else self._epoch, list(self._sessions.all())
        told = [(each, self._tell(each, epoch, revoked)) for each in sessions]
        self._answers = [answer for each, answer in told if answer and not each.busy]

    async def heard(self) -> None:
        """Wait until the interpreters that listen have heard which routes hold now.

        After a change that is acknowledged then, its caller is not refused by one that is late.
        """
        if self._answers:
            await asyncio.wait(self._answers, timeout=HEARING_WAIT)

    def announce(self, session: InterpreterSession) -> None:
        """Send an interpreter the epoch of valid routes."""
        self._tell(session, 0 if self._changes else self._epoch)

    def end(self) -> None:
        """Stop direct calls of the daemon's own interpreters: the daemon stops. Others go on."""
        self._is_ended = True
        for session in self._sessions.all():
            if session.supervised:
                self._tell(session, 0)

    def _tell(
        self, session: InterpreterSession, epoch: int, revoked: Iterable[str] = ()
    ) -> asyncio.Future[pb.InterpreterMessage] | None:
        if not (session.alive and session.direct_lane):
            return None
        answer = session.post(
            pb.DaemonMessage(direct_calls=pb.DirectCalls(epoch=epoch, revoked=revoked))
        )
        answer.add_done_callback(_look_at)
        return answer


def _look_at(answer: asyncio.Future[pb.InterpreterMessage]) -> None:
    if not answer.cancelled():
        answer.exception()  # a dead interpreter takes no calls


def _has_text(request: execution_pb2.CallRequest) -> bool:
    return any(map(_holds_text, (*request.args, *request.kwargs.values())))


def _holds_text(value: values_pb2.Value) -> bool:
    kind = value.WhichOneof("kind")
    if kind == "list":  # a long one may: a direct caller does not look through it, either
        return len(value.list.items) > _LONGEST or any(map(_holds_text, value.list.items))
    return kind in ("text", "device")
