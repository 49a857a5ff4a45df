"""Server-sent events of several pages, from one look at the daemon."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

pytest.importorskip("starlette", reason="opdispatch[http] is not installed")

from opdispatch_server.daemon.monitoring import live as live_module
from opdispatch_server.daemon.monitoring.grid import origin_of
from opdispatch_server.daemon.monitoring.live import LiveEvents
from opdispatch_wire.v1 import registry_pb2 as pb
from tests.waits import LONGEST_WAIT


async def next_of(events: AsyncIterator[str], kind: str) -> Any:
    async with asyncio.timeout(LONGEST_WAIT):
        async for text in events:
            if text.startswith(f"event: {kind}\n"):
                assert text.endswith("\n\n")
                return json.loads(text.partition("data: ")[2])
    return None


async def test_pages_share_one_look_which_ends_with_the_last(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(live_module, "LOOK_EVERY", 0.001)
    looks = [0]

    def epoch() -> int:
        looks[0] += 1
        return looks[0] // 10

    live = LiveEvents(epoch, lambda: {"line": "one\ntwo"})
    pages = [live.events() for _ in range(3)]
    for page in pages:
        assert await next_of(page, "state") == {"line": "one\ntwo"}
    before = await next_of(pages[0], "epoch")
    assert await next_of(pages[0], "epoch") > before
    for page in pages:
        await page.aclose()
    ended = looks[0]
    await asyncio.sleep(0.02)
    assert looks[0] == ended


async def test_stopping_ends_pages_that_wait():
    live = LiveEvents(lambda: 1, dict)
    page = live.events()
    await next_of(page, "state")
    waiting = asyncio.ensure_future(next_of(page, "epoch"))
    await asyncio.sleep(0)
    await live.stop()
    async with asyncio.timeout(LONGEST_WAIT):
        assert await waiting is None


async def test_no_more_pages_than_the_limit(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(live_module, "MOST_PAGES", 1)
    live = LiveEvents(lambda: 1, dict)
    page = live.events()
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
