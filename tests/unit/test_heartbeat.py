"""The heartbeats of an interpreter: which are sent, and which only recorded."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

from opdispatch_server.metrics.call_counts import CallCounts
from opdispatch_server.worker.heartbeat import Heartbeats
from opdispatch_server.worker.incoming.direct_calls import DirectCalls
from opdispatch_wire.v1 import interpreter_pb2 as pb
from tests.waits import LONGEST_WAIT


@dataclass
class Calls:
    in_flight: int = 0
    total: int = 0


class Beats:
    """Run heartbeats, and note what becomes of each; ``steps`` are called between them."""

    def __init__(self, *steps: Callable[[], None], records: bool) -> None:
        self.calls = Calls()
        self.happened: list[str] = []
        self._steps = list(steps)
        self._over = asyncio.Event()
        self._records = records

    async def run(self) -> list[str]:
        beats = Heartbeats(cast(DirectCalls, self.calls), CallCounts())
        beat = (lambda: self.happened.append("recorded")) if self._records else None
        running = asyncio.create_task(beats.run(self._say, 0.001, beat, self._step))
        try:
            await asyncio.wait_for(self._over.wait(), LONGEST_WAIT)
        finally:
            running.cancel()
        return self.happened

    async def _say(self, message: pb.InterpreterMessage) -> None:
        self.happened.append(f"sent {message.heartbeat.direct_calls_total}")

    def _step(self) -> None:
        if not self._steps:
            self._over.set()
            return
        self._steps.pop(0)()


def nothing() -> None:
    pass


async def test_heartbeat_that_says_nothing_new_is_recorded_and_not_sent():
    beats = Beats(nothing, nothing, lambda: setattr(beats.calls, "total", 7), nothing, records=True)
    happened = await beats.run()
    assert happened[:5] == ["sent 0", "recorded", "recorded", "sent 7", "recorded"]


async def test_every_heartbeat_is_sent_to_a_daemon_that_reads_none():
    happened = await Beats(nothing, nothing, records=False).run()
    assert happened[:3] == ["sent 0", "sent 0", "sent 0"]
