"""Server-sent events: one watcher of the registry for all open pages."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from concurrent.futures import Future
from contextlib import aclosing

from opdispatch_server.daemon.servicers.registry_feed import RegistrySnapshot

SILENCE = 15.0
MOST_PAGES = 256
UNANSWERED = 5.0
"""Seconds without a reading of the registry after which pages show an error."""


class LiveEvents:
    """The events of all pages. For use in the event loop of the HTTP thread only.

    While a page is open, the registry is watched in the event loop ``daemon``. A page that reads
    slowly skips states, and gets the latest.
    """

    def __init__(
        self,
        daemon: asyncio.AbstractEventLoop,
        watch: Callable[[], AsyncGenerator[RegistrySnapshot, None]],
        describe: Callable[[RegistrySnapshot], object],
    ) -> None:
        self._daemon = daemon
        self._watch = watch
        self._describe = describe
        self._epoch = -1
        self._state = ""
        self._news = asyncio.Condition()
        self._pages = 0
        self._watching: Future[None] | None = None
        self._late: asyncio.TimerHandle | None = None
        self._is_stopped = False

    @property
    def is_full(self) -> bool:
        """Whether no further page may open."""
        return self._pages >= MOST_PAGES

    async def events(self) -> AsyncIterator[str]:
        """Yield the events of one page until it is closed, or the daemon stops."""
        self._pages += 1
        if self._watching is None:
            self._begin()
        epoch, state = -1, ""
        try:
            yield "retry: 1000\n\n"
            while not self._is_stopped:
                if epoch != self._epoch:
                    epoch = self._epoch
                    yield f"event: epoch\ndata: {epoch}\n\n"
                if state != self._state:
                    state = self._state
                    yield f"event: state\ndata: {state}\n\n"
                try:
                    async with asyncio.timeout(SILENCE), self._news:
                        if epoch == self._epoch and state == self._state and not self._is_stopped:
                            await self._news.wait()
                except TimeoutError:
                    yield ": still here\n\n"
        finally:
            self._pages -= 1
            if not self._pages:
                self._end()

    async def stop(self) -> None:
        """End the events of all pages."""
        self._is_stopped = True
        self._end()
        async with self._news:
            self._news.notify_all()

    def _begin(self) -> None:
        loop = asyncio.get_running_loop()

        async def watch() -> None:
            async with aclosing(self._watch()) as snapshots:
                async for snapshot in snapshots:
                    loop.call_soon_threadsafe(self._take, snapshot)

        self._expect()
        self._watching = asyncio.run_coroutine_threadsafe(watch(), self._daemon)

    def _end(self) -> None:
        if self._watching is not None:
            self._watching.cancel()
            self._watching = None
        if self._late is not None:
            self._late.cancel()

    def _expect(self) -> None:
        if self._late is not None:
            self._late.cancel()
        self._late = asyncio.get_running_loop().call_later(UNANSWERED, self._say_it_is_late)

    def _say_it_is_late(self) -> None:
        error = f"the daemon's event loop has not answered for {UNANSWERED:g} s"
        self._tell(self._epoch, json.dumps({"error": error}))

    def _take(self, snapshot: RegistrySnapshot) -> None:
        if self._watching is not None:  # the last page may have closed meanwhile
            self._expect()
            # A line end would end the event: JSON contains none.
            self._tell(snapshot.epoch, json.dumps(self._describe(snapshot)))

    def _tell(self, epoch: int, state: str) -> None:
        if (epoch, state) != (self._epoch, self._state):
            self._epoch, self._state = epoch, state
            self._telling = asyncio.ensure_future(self._wake())

    async def _wake(self) -> None:
        async with self._news:
            self._news.notify_all()
