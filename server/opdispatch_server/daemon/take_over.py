"""``serve --take-over``: replace a running daemon while calls continue.

Note [Taking over]
    The two daemons talk over a socket in the old one's run folder, to which only its user can
    connect; the lock file of the state folder has its path. A message is a line of JSON. The
    states:

        state     old daemon                             new daemon
        HELD      refuses no call, holds changes of the  opens the journal, loads its libraries
                  registry, has closed the journal       into interpreters of its own
        DECIDED   the same                               listens: sockets renamed over the old
                                                         ones, ports shared; then it serves
        GIVEN     refuses calls and requests, which go   serves everything, changes too
                  to the new one; finishes those that
                  it has; ends

        old -> new    {"state": "held"}   {"state": "decided"}   {"error": ...}   {"state": "ends"}
        new -> old    {"format": ...}     {"state": "ready"}     {"state": "serving"}

    A closed connection means that the other daemon has ended, for whatever reason.

    - The new one ends in HELD or DECIDED: the old one restores its sockets, reopens the journal as
      soon as it is free, and admits changes. Calls are not affected.
    - The old one ends, by a signal or not, in HELD or DECIDED: the new one continues, since it has
      the journal already. Sessions wait meanwhile, as for any daemon that restarts.
    - The new one is silent in HELD for too long: the old one closes the connection, and waits for
      the journal until the new process ends, either by itself or because it finds the connection
      closed. Because of "ready" and "decided", they never wait for each other, nor do both serve.
    - The old one does not answer the first message: the new one gives up, and nothing has changed.
    - Either is killed in GIVEN: the new one has everything, or the next start restores it; the
      calls that the old one was finishing are lost with it, as with any daemon.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import select
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any

from opdispatch_server.daemon.libraries.version import LibraryVersion
from opdispatch_server.daemon.state.folder import check_unused, read_take_over_socket
from opdispatch_server.daemon.state.journal_format import FORMAT
from opdispatch_server.log_fields import Event, fields
from opdispatch_wire.errors import JournalError
from opdispatch_wire.socket_owner import peer_of

LOG = logging.getLogger("opdispatch.daemon")

_ANSWER_SECONDS = 10.0
# For changes in progress, and for loading the libraries in the new daemon.
_CHANGES_SECONDS = 30.0
_LOAD_SECONDS = 120.0
_LOCK_PAUSE = 0.1


class TakeOverError(RuntimeError):
    """The running daemon cannot be taken over; the message says why. It keeps running."""


class _Lines:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def send(self, **message: Any) -> None:
        """Send a message, unless the other side has closed."""
        try:
            self._writer.write(json.dumps(message).encode() + b"\n")
            await self._writer.drain()
        except OSError:
            pass  # the next ``receive`` finds the end of the stream

    async def receive(self, seconds: float | None = None) -> dict[str, Any]:
        """Return the next message; an empty one at the end of the stream. Raises TimeoutError."""
        try:
            line = await asyncio.wait_for(self._reader.readline(), seconds)
            return dict(json.loads(line)) if line.endswith(b"\n") else {}
        except TimeoutError:  # before OSError, which is its base class
            raise
        except (OSError, ValueError):
            return {}

    def close(self) -> None:
        self._writer.close()


class TakeOver:
    """The new daemon's side. See Note [Taking over]."""

    def __init__(self, lines: _Lines, process: int) -> None:
        self._lines = lines
        self._process = process
        self._failed: list[str] = []

    @classmethod
    async def begin(cls, state: Path) -> TakeOver | None:
        """Ask the daemon that uses a state folder to release it; None if no daemon uses it.

        Raises TakeOverError if that daemon refuses or does not answer, JournalError if it has no
        socket to ask at.
        """
        path = read_take_over_socket(state)
        try:
            if path is None:
                raise FileNotFoundError
            reader, writer = await asyncio.open_unix_connection(path)
        except OSError:
            check_unused(state)
            return None  # left behind by a daemon that has ended
        process, _ = peer_of(writer.get_extra_info("socket"))
        pid = os.pidfd_open(process)
        lines = _Lines(reader, writer)
        await lines.send(format=FORMAT)
        try:
            answer = await lines.receive(_ANSWER_SECONDS)
            if answer.get("state") == "waits":
                answer = await lines.receive(_CHANGES_SECONDS + _ANSWER_SECONDS)
        except TimeoutError:
            answer = {"error": f"it has not answered for {_ANSWER_SECONDS:g} s"}
        take_over = cls(lines, pid)
        take_over._failed = list(answer.get("failed", ()))
        if answer.get("state") == "held" or (not answer and take_over._has_ended()):
            return take_over
        take_over.close()
        why = answer.get("error", "it has hung up")
        raise TakeOverError(f"the daemon of process {process} cannot be taken over: {why}")

    def check_loaded(self, versions: Iterable[LibraryVersion], *, is_all: bool) -> None:
        """Raise TakeOverError if a library that the other daemon serves does not load here."""
        if self._has_ended():
            return
        if not is_all:
            raise TakeOverError(
                "the libraries of the daemon to take over could not be loaded in time; it "
                "continues to serve"
            )
        for version in versions:
            if version.error and version.name not in self._failed:
                raise TakeOverError(
                    f"library {version.name!r} does not load here, so the daemon that serves it "
                    f"continues to do so: {version.error}"
                )

    async def decide(self) -> None:
        """Wait for permission to listen, once all libraries are loaded. Raises TakeOverError."""
        await self._lines.send(state="ready")
        try:
            answer = await self._lines.receive(_ANSWER_SECONDS)
        except TimeoutError:
            answer = {}
        if answer.get("state") not in ("decided", "ends") and not self._has_ended():
            why = answer.get("error", f"it has not answered for {_ANSWER_SECONDS:g} s")
            raise TakeOverError(f"the daemon to take over continues to serve: {why}")

    async def serving(self) -> None:
        """Report that this daemon serves; the other one then ends."""
        await self._lines.send(state="serving")

    def close(self) -> None:
        """Close the connection. Idempotent."""
        self._lines.close()
        if self._process >= 0:
            os.close(self._process)
            self._process = -1

    def _has_ended(self) -> bool:
        """Return whether the other process has ended, reaped by its parent or not."""
        return bool(select.select([self._process], [], [], 0)[0])


class TakeOverServer:
    """The old daemon's side. See Note [Taking over].

    ``hold`` holds changes of the registry and closes the journal, or says why it cannot;
    ``take_back`` undoes that, and raises JournalError while the journal is not free; ``give`` ends
    this daemon; ``failed`` names the libraries that it could not load itself.
    """

    def __init__(
        self,
        hold: Callable[[float], Awaitable[str]],
        take_back: Callable[[], Awaitable[None]],
        give: Callable[[], None],
        failed: Callable[[], list[str]],
    ) -> None:
        self._hold = hold
        self._take_back = take_back
        self._give = give
        self._failed = failed
        self._server: asyncio.Server | None = None
        self._lines: _Lines | None = None
        self._returning: asyncio.Task[None] | None = None
        self.is_given = False
        """Whether another daemon now serves in place of this one."""

    async def start(self, path: Path) -> None:
        """Listen at ``path``."""
        self._server = await asyncio.start_unix_server(self._serve, path)

    async def stop(self) -> None:
        """Accept no more connections; a new daemon that has already connected continues alone."""
        if self._server is not None:
            self._server.close()
        if self._returning is not None:
            self._returning.cancel()
        if self._lines is not None:
            await self._lines.send(state="ends")

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        lines = _Lines(reader, writer)
        try:
            if self._lines is not None or self._returning is not None:
                await lines.send(error="it is being taken over already")
                return
            self._lines = lines
            try:
                self.is_given = await self._is_taken_over(lines)
            finally:
                self._lines = None
            if self.is_given:
                self._give()
        except (TimeoutError, asyncio.CancelledError):
            pass  # the new daemon hangs, or this one stops: asyncio would log the cancellation
        finally:
            lines.close()

    async def _is_taken_over(self, lines: _Lines) -> bool:
        hello = await lines.receive(_ANSWER_SECONDS)
        if not isinstance(hello.get("format"), int) or hello["format"] < FORMAT:
            await lines.send(error="it is of a newer version, and so is its journal")
            return False
        await lines.send(state="waits")
        if problem := await self._hold(_CHANGES_SECONDS):
            await lines.send(error=problem)
            return False
        LOG.info("another daemon takes over", extra=fields(Event.TAKE_OVER_BEGUN))
        is_given = False
        try:
            await lines.send(state="held", failed=self._failed())
            if (await lines.receive(_LOAD_SECONDS)).get("state") == "ready":
                await lines.send(state="decided")
                is_given = (await lines.receive()).get("state") == "serving"
        finally:
            if not is_given:
                self._returning = asyncio.create_task(self._return())
        return is_given

    async def _return(self) -> None:
        """Continue as before; the new daemon has ended, or is about to."""
        while True:
            try:
                await self._take_back()
                break
            except JournalError:
                await asyncio.sleep(_LOCK_PAUSE)
        LOG.warning(
            "the daemon that was taking over has ended; this one goes on",
            extra=fields(Event.TAKE_OVER_FAILED),
        )
        self._returning = None
