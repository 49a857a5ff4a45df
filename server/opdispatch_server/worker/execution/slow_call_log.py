"""The log of slow calls: the threshold, and the content of a record."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable

from opdispatch_server.call_context import RunningCall
from opdispatch_server.log_fields import Event, fields
from opdispatch_server.logs import log_regardless
from opdispatch_server.worker.libraries.loaded import LoadedLibrary
from opdispatch_wire.trace_context import trace_id_of

LOG = logging.getLogger("opdispatch.calls")


class SlowCallLog:
    """Logs the slow calls of one interpreter, in any thread.

    Each run compares its time with ``threshold_ns`` inline: every call comes through there.
    """

    def __init__(self, interpreter: Callable[[], str]) -> None:
        self._interpreter = interpreter
        self.threshold_ns: float = math.inf
        """The time in queues and in its kernel, in ns, after which a call is logged."""

    def log_calls_slower_than(self, seconds: float) -> None:
        """Set the threshold; 0 disables the log."""
        self.threshold_ns = seconds * 1e9 if seconds > 0 else math.inf

    def log(
        self,
        operator: str,
        library: LoadedLibrary | None,
        call: int,
        queue_ns: int,
        kernel_ns: int,
        running: RunningCall,
    ) -> None:
        """Log a call; few of many similar ones: see ``FLOODS``."""
        extra = fields(
            Event.SLOW_CALL,
            operator=operator,
            library=library.name if library else "",
            version=library.version if library else 0,
            interpreter=self._interpreter(),
            call=call & 0xFFFFFFFF,
            trace=trace_id_of(running.traceparent),
        )
        extra |= {"queue_seconds": queue_ns / 1e9, "kernel_seconds": kernel_ns / 1e9}
        if running.nested_calls is not None:
            extra["nested_seconds"] = running.nested_calls.seconds
        message = f"the call of {operator} was slow"
        log_regardless(LOG, logging.WARNING, message, extra=extra)
