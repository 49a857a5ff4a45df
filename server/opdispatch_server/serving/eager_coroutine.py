"""Resume a coroutine from ordinary functions, within the same step of the event loop."""

from __future__ import annotations

import asyncio
import contextlib
import types
from collections.abc import Coroutine, Generator
from typing import Any

_PAUSE: Any = object()


@types.coroutine
def pause() -> Generator[Any]:
    """Pause the EagerCoroutine that awaits this, until it is resumed."""
    yield _PAUSE


class EagerCoroutine:
    """A coroutine that pauses, and continues inside ``resume``. For use in the event loop only.

    A task that waits for an event continues one step of the loop later, which costs about as much
    as the rest of a small reply. An error ends the coroutine, and nothing else.
    """

    def __init__(self, coroutine: Coroutine[Any, None, None]) -> None:
        """Run ``coroutine`` up to its first wait. It may await ``pause`` and what a task may."""
        self._coroutine = coroutine
        self._is_paused = False
        self._awaited: asyncio.Future[Any] | None = None
        self._step()

    def resume(self) -> None:
        """Continue after a ``pause``; do nothing if it awaits something else or has ended."""
        if self._is_paused:
            self._is_paused = False
            self._step()

    async def wait_until_idle(self, timeout: float | None) -> None:
        """Wait until it pauses or ends, but at most ``timeout`` seconds."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                while (awaited := self._awaited) is not None:
                    # Done callbacks run in order: ``_step`` has run when this returns.
                    await asyncio.wait({awaited})

    def close(self) -> None:
        """End the coroutine where it waits. Idempotent."""
        self._is_paused = False
        awaited, self._awaited = self._awaited, None
        if awaited is not None:
            awaited.remove_done_callback(self._step)
            awaited.cancel()
        self._coroutine.close()

    def _step(self, _: object = None) -> None:
        """Run the coroutine until it waits again."""
        self._awaited = None
        try:
            awaited = self._coroutine.send(None)
        except (StopIteration, asyncio.CancelledError, Exception):
            return
        if awaited is _PAUSE:
            self._is_paused = True
            return
        if awaited is None:  # ``asyncio.sleep(0)``: continue in the next step of the loop
            awaited = asyncio.get_running_loop().create_future()
            awaited.set_result(None)
        self._awaited = awaited
        awaited.add_done_callback(self._step)
