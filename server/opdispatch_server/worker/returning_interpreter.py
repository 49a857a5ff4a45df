"""An interpreter that a user started: it reconnects when its daemon vanishes."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable

from opdispatch_server.log_fields import Event, fields
from opdispatch_server.worker.interpreter import Interpreter
from opdispatch_server.worker.interpreter_settings import InterpreterSettings
from opdispatch_wire.errors import DaemonUnavailableError, DeadlineExceededError, RefusedError

LOG = logging.getLogger("opdispatch.interpreter")

FIRST_PAUSE = 0.1
LONGEST_PAUSE = 5.0

# Temporary errors: the daemon does not answer yet, or has not removed the old session yet.
_PASSING = (DaemonUnavailableError, DeadlineExceededError, RefusedError)


class ReturningInterpreter:
    """One session after the other; each is cleaned up when the next has begun.

    ``settings_for`` asks the daemon for its limits, and returns the settings for a name; it blocks.
    ``patience`` is how long it tries to reconnect to a daemon that has vanished, in seconds.
    """

    def __init__(
        self, settings_for: Callable[[str], InterpreterSettings], name: str, patience: float
    ) -> None:
        self._settings_for = settings_for
        self._wanted_name = name
        self._name = name
        self._patience = patience
        self._stopping = asyncio.Event()
        self._current: Interpreter | None = None
        # The last interpreter whose daemon has vanished: it serves direct calls until the next one
        # is welcomed.
        self._vanished: Interpreter | None = None

    def stop(self) -> None:
        """End the session from this side; running calls finish."""
        self._stopping.set()
        if self._current is not None:
            self._current.stop()

    async def run(self) -> None:
        """Serve until ``stop`` is called, the daemon ends it, or cannot be found.

        Raises the errors of Interpreter.run.
        """
        lost_at: float | None = None
        pause = FIRST_PAUSE
        loop = asyncio.get_running_loop()
        while not self._stopping.is_set():
            try:
                await self._serve_once()
                return
            except _PASSING as error:
                session = self._current
                if session is not None and session.met_daemon and not session.may_come_back:
                    raise  # it was told to end, however often it had come back before
                if session is not None and session.may_come_back and self._patience:
                    LOG.warning("%s; looking for it again", error, extra=fields(Event.DAEMON_LOST))
                    lost_at, pause = loop.time(), FIRST_PAUSE
                    self._name = session.name
                    self._vanished = session
                elif lost_at is None or loop.time() - lost_at > self._patience:
                    raise
                elif isinstance(error, RefusedError) and not self._wanted_name:
                    self._name = ""  # its name is taken: any other will do
            await self._wait(pause)
            pause = min(2 * pause, LONGEST_PAUSE)

    async def _serve_once(self) -> None:
        self._current = None
        settings = await asyncio.to_thread(self._settings_for, self._name)
        if self._stopping.is_set():
            return
        self._current = Interpreter(settings, self._vanished)
        await self._current.run()

    async def _wait(self, pause: float) -> None:
        # Many interpreters that lost one daemon should not all reconnect at once.
        try:
            await asyncio.wait_for(self._stopping.wait(), pause * random.uniform(0.5, 1.0))
        except TimeoutError:
            return
