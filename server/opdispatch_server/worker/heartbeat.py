"""The periodic message of an interpreter: a sign of life, with its counters."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator

from opdispatch import metrics
from opdispatch.arrays import device_transfers
from opdispatch_server.blame.fitness import Fitness
from opdispatch_server.metrics.call_counts import CallCounts
from opdispatch_server.metrics.client_calls import process_client_calls
from opdispatch_server.worker.incoming.direct_calls import DirectCalls
from opdispatch_wire.v1 import interpreter_pb2 as pb
from opdispatch_wire.v1 import registry_pb2

Say = Callable[[pb.InterpreterMessage], Awaitable[None]]

# How long an interpreter that was blocked for a heartbeat listens before it reports that it lives.
_SECOND_THOUGHTS = 0.02


class Heartbeats:
    """The heartbeats of one interpreter, and its fitness. For use in the event loop only.

    They are sent from the event loop, so that an interpreter whose library holds the interpreter
    lock, or whose process is stopped, falls silent, as it should; one whose kernel releases the
    lock does not.
    """

    def __init__(self, calls: DirectCalls, counts: CallCounts) -> None:
        self.fitness = Fitness(self._report_unfit)
        self.tells_counts = False
        """Whether heartbeats carry the counters, because the daemon cannot access their memory."""
        self._calls = calls
        self._counts = counts
        self._told: dict[int, bytes] = {}
        self._told_metrics: list[metrics.Reading] = []
        self._unfit = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None

    def begin(self) -> None:
        """Start to receive what threads report. Call it in the event loop."""
        self._loop = asyncio.get_running_loop()

    async def run(
        self, say: Say, period: float, beat: Callable[[], None] | None, then: Callable[[], None]
    ) -> None:
        """Send a heartbeat every ``period`` seconds, and call ``then``, until cancelled.

        One that would repeat the previous one is recorded by ``beat`` instead, unless that is None:
        sending it would wake all gRPC threads of both processes.
        """
        sent: pb.InterpreterMessage | None = None
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + period
            await asyncio.sleep(period)
            if loop.time() > due + period:
                # It was blocked, and the daemon may have given it up: that message has arrived
                # meanwhile.
                await asyncio.sleep(_SECOND_THOUGHTS)
            self.fitness.check()
            message = self._message()
            if beat is not None and message == sent:
                beat()
            else:
                await say(message)
                sent = message
            then()

    async def say_when_unfit(self, say: Say) -> None:
        """Send a report at once when kernels can no longer run properly."""
        await self._unfit.wait()
        await say(self._message())

    def _report_unfit(self) -> None:
        """Request a heartbeat at once. May be called in any thread."""
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(self._unfit.set)

    def _message(self) -> pb.InterpreterMessage:
        beat = pb.Heartbeat(
            problem=self.fitness.problem,
            suspect=self.fitness.suspect,
            direct_calls_in_flight=self._calls.in_flight,
            direct_calls_total=self._calls.total,
            transfers=[
                registry_pb2.DeviceTransfers(
                    device=device,
                    to_device=each.to_device,
                    from_device=each.from_device,
                    from_peers=each.from_peers,
                )
                for device, each in device_transfers().items()
            ],
        )
        beat.clients.extend(
            registry_pb2.ClientCalls(client=client, calls=calls)
            for client, calls in process_client_calls().read().items()
        )
        beat.library_metrics.extend(self._changed_metrics())
        if self.tells_counts:
            beat.call_counts.extend(self._changed_counts())
        return pb.InterpreterMessage(heartbeat=beat)

    def _changed_metrics(self) -> Iterator[pb.LibraryMetric]:
        found = metrics.read()
        if found == self._told_metrics:
            return
        self._told_metrics = found
        for each in found:
            yield pb.LibraryMetric(
                name=each.name,
                documentation=each.documentation,
                is_counter=each.is_counter,
                labels=each.labels,
                series=[
                    pb.LibrarySeries(values=values, value=value)
                    for values, value in each.values.items()
                ],
            )

    def _changed_counts(self) -> Iterator[pb.CallCountRow]:
        for row, words in self._counts.rows():
            if self._told.get(row) != words:
                self._told[row] = words
                yield pb.CallCountRow(row=row, words=words)
