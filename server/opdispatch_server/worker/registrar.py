"""The daemon's instructions, carried out in order by one thread."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor

from opdispatch.arrays.kernel_block import run_on_device
from opdispatch.errors import OpdispatchError
from opdispatch_server.blame.fitness import Fitness
from opdispatch_server.blame.flight_record import FlightRecorder
from opdispatch_server.call_context import RUNNING_CALL, RunningCall
from opdispatch_server.fork_guard import GUARD
from opdispatch_server.log_fields import Event, fields
from opdispatch_server.worker.incoming.call_rules import DaemonCalls
from opdispatch_server.worker.libraries.instructions import InterpreterLibraries
from opdispatch_wire.status import status_from_error
from opdispatch_wire.v1 import interpreter_pb2 as pb

LOG = logging.getLogger("opdispatch.interpreter")


class Registrar:
    """Carries out what the daemon instructs about libraries, and answers every instruction.

    ``interpreter`` returns the interpreter's name.
    """

    def __init__(
        self,
        libraries: InterpreterLibraries,
        daemon_calls: DaemonCalls,
        recorder: FlightRecorder,
        fitness: Fitness,
        interpreter: Callable[[], str],
    ) -> None:
        self._libraries = libraries
        self._daemon_calls = daemon_calls
        self._recorder = recorder
        self._fitness = fitness
        self._interpreter = interpreter
        # One thread, because instructions are carried out in the order in which they arrive.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="registrar")
        self._collecting: asyncio.Future[None] | None = None

    def carry_out(self, message: pb.DaemonMessage) -> Awaitable[pb.InterpreterMessage]:
        """Queue an instruction, and return its answer to come."""
        loop = asyncio.get_running_loop()
        return loop.run_in_executor(self._thread, GUARD.run, self._obey, message)

    async def drop_all(self, patience: float) -> None:
        """Release every library after the instructions in progress, then end the thread.

        Raises TimeoutError if those take longer than ``patience`` seconds.
        """
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(patience):
                await loop.run_in_executor(self._thread, self._libraries.drop_all)
        finally:
            self._thread.shutdown(wait=False)

    def collect_unloaded(self) -> None:
        """Start to release unloaded code, unless that is in progress, without delaying the loop."""
        if self._libraries.unloaded.remains and (
            self._collecting is None or self._collecting.done()
        ):
            loop = asyncio.get_running_loop()
            collect = self._libraries.unloaded.collect
            self._collecting = loop.run_in_executor(self._thread, collect)

    def _obey(self, message: pb.DaemonMessage) -> pb.InterpreterMessage:
        subject = self._libraries.subject_of(message)
        row = self._recorder.row_of(subject) if subject is not None else None
        slot = self._recorder.begin(row) if row is not None else None
        token = RUNNING_CALL.set(RunningCall(version=message.stage.version))
        try:
            return run_on_device((), self._libraries.obey, message)
        except BaseException as failure:  # every instruction must be answered
            is_unfit = subject is not None and self._fitness.check()
            refusal = self._fitness.refusal(str(subject)) if is_unfit else None
            return failed(message, refusal or failure, self._interpreter())
        finally:
            self._daemon_calls.forget_plans()
            RUNNING_CALL.reset(token)
            if slot is not None and row is not None:
                self._recorder.end(slot, row)


def failed(
    message: pb.DaemonMessage, error: BaseException, interpreter: str
) -> pb.InterpreterMessage:
    """Return the answer to an instruction that raised."""
    if not isinstance(error, OpdispatchError):
        LOG.exception(
            "instruction %s failed",
            message.WhichOneof("kind"),
            extra=fields(Event.INTERNAL_ERROR, interpreter=interpreter),
        )
    return pb.InterpreterMessage(
        instruction_id=message.instruction_id, failed=status_from_error(error)
    )
