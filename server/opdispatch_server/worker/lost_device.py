"""The end of an interpreter that can no longer use a device: only another process can."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable

from opdispatch.errors import DeviceLostError
from opdispatch_server.log_fields import Event, fields

LOG = logging.getLogger("opdispatch.interpreter")

# How long the calls that found the device lost may take to send their errors.
LAST_WORDS_WAIT = 0.2


class LostDevice:
    """Calls ``end`` in the event loop when a thread has found a device lost."""

    def __init__(self, end: Callable[[], None]) -> None:
        self.error: DeviceLostError | None = None
        self._end = end
        self._loop: asyncio.AbstractEventLoop | None = None

    def begin(self) -> None:
        """Start in the running event loop."""
        self._loop = asyncio.get_running_loop()

    def note(self, error: DeviceLostError) -> None:
        """Record a lost device. May be called in any thread."""
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop has ended already
                self._loop.call_soon_threadsafe(self._take, error)

    def _take(self, error: DeviceLostError) -> None:
        if self.error is None:
            self.error = error
            LOG.error("%s; this interpreter ends", error, extra=fields(Event.DEVICE_LOST))
            asyncio.get_running_loop().call_later(LAST_WORDS_WAIT, self._end)
