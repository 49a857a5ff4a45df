"""Connections to a lane are accepted in turn with everything else."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

from opdispatch_server.serving.lane_listener import CONNECTIONS_PER_TURN, LaneListener


async def test_of_many_connections_some_are_taken_at_a_time(tmp_path: Path):
    taken: list[socket.socket] = []
    listener = LaneListener(str(tmp_path / "lane"), taken.append)
    callers = []
    try:
        for _ in range(2 * CONNECTIONS_PER_TURN + 1):
            callers.append(socket.socket(socket.AF_UNIX))
            callers[-1].connect(listener.path)
        counts = []
        while len(taken) < len(callers):
            counts.append(len(taken))
            await asyncio.sleep(0)
        turns = [CONNECTIONS_PER_TURN, 2 * CONNECTIONS_PER_TURN]
        assert sorted({*counts, 0}) == [0, *turns]
    finally:
        listener.close()
        for each in (*callers, *taken):
            each.close()
