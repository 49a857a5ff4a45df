"""Server-sent events: one look at the daemon for all pages that are open."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable

LOOK_EVERY = 0.2
"""Seconds between two looks at the registry's epoch, while a page is open."""

STATE_EVERY = 5
"""How many of these come to one look at interpreters and calls."""

SILENCE = 15.0
MOST_PAGES = 256


class LiveEvents:
    """The events of all pages. Belongs to the event loop of the HTTP thread.

    ``epoch`` is asked often, and ``state`` seldom, in a thread; both only while a page is open.
    A page that reads slowly misses states, and gets the latest.
    """

    def __init__(self, epoch: Callable[[], int], state: Callable[[], object]) -> None:
        self._find_epoch = epoch
        self._find_state = state
        self._epoch = -1
        self._state = ""
        self._news = asyncio.Condition()
        self._pages = 0
        self._looking: asyncio.Task[None] | None = None
        self._is_stopped = False

    @property
    def is_full(self) -> bool:
        """Whether as many pages are open as may be."""
        return self._pages >= MOST_PAGES

    async def events(self) -> AsyncIterator[str]:
        """Yield the events of one page until it is closed, or the daemon stops."""
        self._pages += 1
        if self._looking is None:
            self._looking = asyncio.create_task(self._look())
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
            if not self._pages and self._looking is not None:
                self._looking.cancel()
                self._looking = None

    async def stop(self) -> None:
        """End the events of all pages."""
        self._is_stopped = True
        async with self._news:
            self._news.notify_all()

    async def _look(self) -> None:
        count = 0
        while True:
            epoch, state = self._find_epoch(), self._state
            if count % STATE_EVERY == 0 or epoch != self._epoch:
                # A line end in it would end the event: JSON has none.
                state = json.dumps(await asyncio.to_thread(self._find_state))
            count += 1
            if (epoch, state) != (self._epoch, self._state):
                self._epoch, self._state = epoch, state
                async with self._news:
                    self._news.notify_all()
            await asyncio.sleep(LOOK_EVERY)
