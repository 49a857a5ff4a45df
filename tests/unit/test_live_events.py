"""Server-sent events of several pages, from one watcher of the registry."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

import pytest

pytest.importorskip("starlette", reason="opdispatch[http] is not installed")

from opdispatch_server.daemon.monitoring import live as live_module
from opdispatch_server.daemon.monitoring.grid import origin_of
from opdispatch_server.daemon.monitoring.live import LiveEvents
from opdispatch_server.daemon.servicers.registry_feed import RegistrySnapshot
from opdispatch_wire.v1 import registry_pb2 as pb
from tests.waits import LONGEST_WAIT


async def next_of(events: AsyncIterator[str], kind: str) -> Any:
    async with asyncio.timeout(LONGEST_WAIT):
        async for text in events:
            if text.startswith(f"event: {kind}\n"):
                assert text.endswith("\n\n")
                return json.loads(text.partition("data: ")[2])
    return None


def snapshot(epoch: int) -> RegistrySnapshot:
    return RegistrySnapshot(epoch, {}, {}, pb.Activity(), {})


class Feed:
    """Snapshots that a test publishes, and how often they are watched."""

    def __init__(self) -> None:
        self.snapshots: asyncio.Queue[RegistrySnapshot] = asyncio.Queue()
        self.begun = 0
        self.ended = asyncio.Event()

    async def watch(self) -> AsyncGenerator[RegistrySnapshot, None]:
        self.begun += 1
        try:
            while True:
                yield await self.snapshots.get()
        finally:
            self.ended.set()

    def live(self) -> LiveEvents:
        return LiveEvents(asyncio.get_running_loop(), self.watch, lambda _: {"line": "one\ntwo"})


async def test_pages_share_one_watcher_which_ends_with_the_last():
    feed = Feed()
    live = feed.live()
    pages = [live.events() for _ in range(3)]
    feed.snapshots.put_nowait(snapshot(1))
    for page in pages:
        assert await next_of(page, "epoch") == 1
        assert await next_of(page, "state") == {"line": "one\ntwo"}
    feed.snapshots.put_nowait(snapshot(2))
    for page in pages:
        assert await next_of(page, "epoch") == 2
    assert feed.begun == 1
    for page in pages:
        assert not feed.ended.is_set()
        await page.aclose()
    async with asyncio.timeout(LONGEST_WAIT):
        await feed.ended.wait()


async def test_stopping_ends_pages_that_wait():
    feed = Feed()
    live = feed.live()
    page = live.events()
    feed.snapshots.put_nowait(snapshot(1))
    await next_of(page, "state")
    waiting = asyncio.ensure_future(next_of(page, "epoch"))
    await asyncio.sleep(0)
    await live.stop()
    async with asyncio.timeout(LONGEST_WAIT):
        assert await waiting is None


async def test_no_more_pages_than_the_limit(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(live_module, "MOST_PAGES", 1)
    feed = Feed()
    live = feed.live()
    page = live.events()
    feed.snapshots.put_nowait(snapshot(1))
    await next_of(page, "epoch")
    assert live.is_full
    await page.aclose()
    assert not live.is_full


@pytest.mark.parametrize(
    ("reason", "origin"),
    [("kernel", "exact"), ("math kernel", "composite"), ("backend fallback", "fallback")],
)
def test_a_cell_says_where_its_kernel_comes_from(reason: str, origin: str):
    assert origin_of(pb.TableRow(reason=reason)) == origin
    assert origin_of(pb.TableRow(reason=reason, fallthrough=True)) == "fallthrough"
