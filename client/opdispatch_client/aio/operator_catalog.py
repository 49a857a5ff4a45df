"""``OperatorCatalog`` of an asyncio session, which never has an event loop wait.

Attributes, ``help`` and ``dir`` cannot be awaited. Where an event loop runs, they show what the
session has been told, and ask in the background, so that the next look shows more.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any

from opdispatch.errors import OpdispatchError
from opdispatch_client import rpcs
from opdispatch_client.listings import OperatorDescription
from opdispatch_client.operator_catalog import Ask, OperatorCatalog, overloads_of
from opdispatch_client.rpcs import Rpc

Send = Callable[[Rpc[Any]], Awaitable[Any]]
"""Sends a request in the session's event loop."""


class AsyncOperatorCatalog(OperatorCatalog):
    """The operators of one daemon, as far as an asyncio session knows them.

    Threads in which no event loop runs, as that of a prompt, ask and wait.
    """

    def __init__(self, ask: Ask, send: Send) -> None:
        super().__init__(ask)
        self._send = send
        self._described: dict[str, OperatorDescription] = {}
        # By what they ask for: nothing is asked for twice at a time.
        self._asking: dict[str, asyncio.Task[None]] = {}

    def note_description(self, described: OperatorDescription) -> None:
        """Remember what the daemon says of an overload."""
        self._described[described.name] = described

    def names(self) -> list[str]:
        """Return the names that are known, in an event loop; otherwise ask."""
        if not _is_in_loop():
            return super().names()
        self._begin("", self._learn_names)
        return self._names

    def check(self, name: str) -> None:
        """Do nothing in an event loop: the name may have been loaded meanwhile."""
        if not _is_in_loop():
            super().check(name)

    def describe(self, name: str) -> list[OperatorDescription]:
        """Return the overloads that have been described, in an event loop; otherwise ask."""
        if not _is_in_loop():
            return super().describe(name)
        self._begin(name, lambda: self._learn(name))
        return [self._described[each] for each in overloads_of(name, self._described)]

    def close(self) -> None:
        """Ask no more."""
        for task in self._asking.values():
            task.cancel()

    def _begin(self, what: str, learn: Callable[[], Awaitable[None]]) -> None:
        if what not in self._asking:
            task = self._asking[what] = asyncio.get_running_loop().create_task(_quietly(learn))
            task.add_done_callback(lambda _: self._asking.pop(what))

    async def _learn_names(self) -> None:
        self.note(await self._send(rpcs.list_operators("")))

    async def _learn(self, name: str) -> None:
        found = await self._send(rpcs.list_operators(name))
        known = overloads_of(name, self._described)
        now = overloads_of(name, [each.name for each in found])
        described = [await self._send(rpcs.describe(each)) for each in now]
        for each in known:
            del self._described[each]
        for each in described:
            self.note_description(each)


async def _quietly(learn: Callable[[], Awaitable[None]]) -> None:
    with contextlib.suppress(OpdispatchError):  # a call will say so
        await learn()


def _is_in_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
