"""The end of an interpreter that can use a device no more: only another process can."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable

from opdispatch.errors import DeviceLostError
from opdispatch_server.log_fields import Event, fields

LOG = logging.getLogger("opdispatch.interpreter")

# How long the errors of calls have to be sent that have found the device lost.
LAST_WORDS_WAIT = 0.2


class LostDevice:
    """Has ``end`` called, in the event loop, when threads have found a device lost."""

    def __init__(self, end: Callable[[], None]) -> None:
        self.error: DeviceLostError | None = None
        self._end = end
        self._loop: asyncio.AbstractEventLoop | None = None

    def begin(self) -> None:
        """Begin in the running loop."""
        self._loop = asyncio.get_running_loop()

    def note(self, error: DeviceLostError) -> None:
        """Record a lost device. From any thread."""
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop has ended already
                self._loop.call_soon_threadsafe(self._take, error)

    def _take(self, error: DeviceLostError) -> None:
        if self.error is None:
            self.error = error
            LOG.error("%s; this interpreter ends", error, extra=fields(Event.DEVICE_LOST))
            asyncio.get_running_loop().call_later(LAST_WORDS_WAIT, self._end)
