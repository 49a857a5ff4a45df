"""The connected interpreters, by name."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable

from opdispatch_server.daemon.event_loop.wake_up import WakeUp
from opdispatch_server.daemon.interpreters.session import InterpreterSession
from opdispatch_server.log_fields import Event, fields
from opdispatch_wire.errors import InterpreterNotFoundError

LOG = logging.getLogger("opdispatch.interpreters")

ENDED_REMEMBERED = 64
"""The number of ended sessions that are kept."""

SessionEvent = Callable[[InterpreterSession], Awaitable[None]]


class InterpreterSessions:
    """All live interpreters by name. For use in the event loop only.

    ``on_joined`` is called after an interpreter's hello, and makes it ready; ``on_ready`` follows.
    ``on_lost`` is called as soon as one is gone, and ``on_left`` then cleans up after it.
    """

    def __init__(self) -> None:
        self._by_name: dict[str, InterpreterSession] = {}
        # The live sessions, and the latest ended ones, for errors of their calls.
        self._by_number: OrderedDict[int, InterpreterSession] = OrderedDict()
        self._changes = WakeUp()
        self.on_joined: SessionEvent = _nothing
        self.on_ready: SessionEvent = _nothing
        self.on_lost: SessionEvent = _nothing
        self.on_left: SessionEvent = _nothing

    def all(self) -> list[InterpreterSession]:
        """Return every live interpreter, in order of name, whether ready or not."""
        return [self._by_name[name] for name in sorted(self._by_name)]

    def ready(self) -> list[InterpreterSession]:
        """Return the interpreters that libraries can be loaded into, in order of name."""
        return [session for session in self.all() if session.ready and session.alive]

    def find(self, name: str) -> InterpreterSession | None:
        """Return the live interpreter of that name."""
        return self._by_name.get(name)

    def find_number(self, number: int) -> InterpreterSession | None:
        """Return the session of that number, if it is live or ended recently."""
        return self._by_number.get(number)

    def get_ready(self, name: str) -> InterpreterSession:
        """Return the ready interpreter of that name. Raises InterpreterNotFoundError."""
        session = self._by_name.get(name)
        if session is None or not (session.ready and session.alive):
            known = ", ".join(session.name for session in self.ready()) or "none"
            raise InterpreterNotFoundError(
                f"there is no interpreter named {name!r}; connected: {known}", interpreter=name
            )
        return session

    def choose_name(self, taken: tuple[str, ...]) -> str:
        """Return a name that is not in ``taken`` and that no live interpreter has."""
        return next(
            name
            for number in itertools.count(1)
            if (name := f"worker-{number}") not in self._by_name and name not in taken
        )

    async def wait_until(self, reached: Callable[[], bool], timeout: float) -> bool:
        """Wait until ``reached`` is true, checked as interpreters come and go; False on timeout."""
        try:
            async with asyncio.timeout(timeout):
                while not reached():
                    await self._changes.wait()
        except TimeoutError:
            return False
        return True

    async def wait_until_free(self, name: str, timeout: float) -> bool:
        """Wait until no interpreter has the name; return False on timeout."""
        return await self.wait_until(lambda: name not in self._by_name, timeout)

    def admit(self, session: InterpreterSession) -> None:
        """Add a new interpreter under its name, which must be free."""
        self._by_name[session.name] = session
        self._by_number[session.number] = session

    async def join(self, session: InterpreterSession) -> None:
        """Make an admitted interpreter ready."""
        try:
            await self.on_joined(session)
        except Exception as error:  # whatever the error, this interpreter cannot be used
            LOG.exception(
                "interpreter %s could not be made ready",
                session.name,
                extra=fields(Event.INTERPRETER_FAILED, interpreter=session.name),
            )
            session.end(f"it could not be made ready ({type(error).__name__})")
            return
        session.ready = session.alive
        if session.ready:
            await self.on_ready(session)
        self._changes.note()

    async def leave(self, session: InterpreterSession) -> None:
        """Remove an interpreter; afterwards its name is free."""
        session.ready = False
        try:
            await self.on_lost(session)
            await self.on_left(session)
        finally:
            if self._by_name.get(session.name) is session:
                del self._by_name[session.name]
            self._by_number.move_to_end(session.number)
            self._forget_old_ones()
            self._changes.note()
            await session.close()

    def _forget_old_ones(self) -> None:
        # A session that has ended but still has its name is about to leave, and is looked up by
        # number.
        sessions = self._by_number.items()
        left = [number for number, s in sessions if self._by_name.get(s.name) is not s]
        for number in left[:-ENDED_REMEMBERED]:
            del self._by_number[number]


async def _nothing(session: InterpreterSession) -> None:
    pass
