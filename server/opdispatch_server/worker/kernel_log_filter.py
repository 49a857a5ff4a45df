"""The log filter that adds the running kernel, and its library, to a record."""

from __future__ import annotations

import logging

from opdispatch_server.blame.flight_record import FlightRecorder
from opdispatch_server.call_context import RUNNING_CALL

_CALL_NUMBER = 0xFFFFFFFF
"""The part of a ``call_key`` that is the call's number on its lane."""


class KernelLogFilter(logging.Filter):
    """Adds operator, library, version and call of the kernel running in the logging thread.

    It is looked up when something is logged, so that calls pay nothing for it.
    """

    def __init__(self, recorder: FlightRecorder) -> None:
        super().__init__()
        self._recorder = recorder

    def filter(self, record: logging.LogRecord) -> bool:
        """Return True: no record is left out."""
        if not hasattr(record, "event") and (flight := self._recorder.find_running()) is not None:
            record.library = flight.subject.library
            record.operator = flight.subject.operator
            if version := RUNNING_CALL.get().version:
                record.version = version
            if call := flight.call & _CALL_NUMBER:
                record.call = call
        return True
