"""The gate before the registry: what it holds, and what it refuses."""

from __future__ import annotations

import asyncio

import pytest

from opdispatch_server.serving.registry_gate import REGISTRY, RegistryGate
from opdispatch_wire.errors import RefusedError

LOAD, LIST = f"{REGISTRY}LoadLibrary", f"{REGISTRY}ListLibraries"


async def test_changes_wait_while_they_are_held_and_other_requests_do_not():
    gate = RegistryGate()
    assert await gate.hold(0)
    change = asyncio.ensure_future(gate.enter(LOAD))
    await gate.enter(LIST)
    assert not change.done()
    gate.resume()
    await change


async def test_hold_waits_for_changes_under_way_and_gives_up():
    gate = RegistryGate()
    await gate.enter(LOAD)
    assert not await gate.hold(0.001)
    await gate.enter(LOAD)  # none are held
    holding = asyncio.ensure_future(gate.hold(60))
    for _ in range(2):
        await asyncio.sleep(0)
        assert not holding.done()
        gate.leave(LOAD)
    assert await holding


async def test_a_daemon_that_stops_refuses_held_changes_and_all_requests():
    gate = RegistryGate()
    assert await gate.hold(0)
    change = asyncio.ensure_future(gate.enter(LOAD))
    await asyncio.sleep(0)
    gate.stop()
    for request in (change, gate.enter(LIST), gate.enter(LOAD)):
        with pytest.raises(RefusedError, match="the daemon is stopping"):
            await request
