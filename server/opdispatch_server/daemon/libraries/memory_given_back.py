"""Measure the memory that an unload returns to the system."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import NamedTuple

from opdispatch.errors import OpdispatchError
from opdispatch_server.daemon.interpreters.session import InterpreterSession
from opdispatch_server.process_memory import find_memory
from opdispatch_wire.v1 import interpreter_pb2, registry_pb2

# An interpreter that is importing something cannot answer at the moment.
TRIM_TIMEOUT = 1.0


class MemoryGivenBack(NamedTuple):
    """The freed bytes, and how they were measured; unknown without a measurement."""

    size: int = 0
    measure: registry_pb2.MemoryMeasure = registry_pb2.MEMORY_MEASURE_UNSPECIFIED


class MemoryMeter:
    """Measures the interpreters of a library before it is unloaded, and again afterwards.

    Interpreters in ``ending`` end with the library: all of their memory is returned once their
    calls have finished. For those in ``staying``, the decrease counts. Only interpreters that the
    daemon started can be measured.
    """

    def __init__(
        self, ending: dict[InterpreterSession, int], staying: dict[InterpreterSession, int]
    ) -> None:
        self._ending = ending
        self._staying = staying

    @classmethod
    async def start(
        cls, ending: Iterable[InterpreterSession], staying: Iterable[InterpreterSession]
    ) -> MemoryMeter:
        """Take the first measurement. Trimming takes ``staying`` some hundredths of a second."""
        kept = list(staying)
        await _trim(kept)
        return cls(await _measure(ending), await _measure(kept))

    async def finish(self, *, busy: bool) -> MemoryGivenBack:
        """Measure again; ``busy`` interpreters have not released the library yet."""
        if self._ending:
            return MemoryGivenBack(
                sum(self._ending.values()), registry_pb2.MEMORY_MEASURE_ENDED_INTERPRETERS
            )
        if busy:
            return MemoryGivenBack()
        await _trim(self._staying)
        now = await _measure(session for session in self._staying if session.alive)
        if not now:
            return MemoryGivenBack()
        less = sum(self._staying[session] - size for session, size in now.items())
        return MemoryGivenBack(max(less, 0), registry_pb2.MEMORY_MEASURE_DIFFERENCE)


async def _measure(sessions: Iterable[InterpreterSession]) -> dict[InterpreterSession, int]:
    def measure(sessions: list[InterpreterSession]) -> dict[InterpreterSession, int]:
        found = {session: find_memory(session.pid) for session in sessions}
        return {session: size for session, size in found.items() if size is not None}

    return await asyncio.to_thread(measure, [s for s in sessions if s.alive and s.supervised])


async def _trim(sessions: Iterable[InterpreterSession]) -> None:
    """Free unused memory in interpreters, so that it counts neither before nor after."""

    async def trim(session: InterpreterSession) -> None:
        message = interpreter_pb2.DaemonMessage(trim=interpreter_pb2.TrimMemory())
        try:
            await session.instruct(message, timeout=TRIM_TIMEOUT)
        except OpdispatchError:
            return  # busy, dead, or too old to know the instruction: then it is not trimmed

    await asyncio.gather(*(trim(session) for session in sessions if session.supervised))
