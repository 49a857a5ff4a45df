"""``OperatorCatalog`` of an asyncio session, which never blocks an event loop.

Attributes, ``help`` and ``dir`` cannot be awaited. In a running event loop they show what the
session already knows, and query the daemon in the background, so that a later access shows more.
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

    A thread without a running event loop, such as that of a prompt, queries the daemon and waits.
    """

    def __init__(self, ask: Ask, send: Send) -> None:
        super().__init__(ask)
        self._send = send
        self._described: dict[str, OperatorDescription] = {}
        # Pending queries by subject: no subject is queried twice at a time.
        self._asking: dict[str, asyncio.Task[None]] = {}

    def note_description(self, described: OperatorDescription) -> None:
        """Remember the daemon's description of an overload."""
        self._described[described.name] = described

    def names(self) -> list[str]:
        """Return the known names in an event loop; otherwise query the daemon."""
        if not _is_in_loop():
            return super().names()
        self._begin("", self._learn_names)
        return self._names

    def check(self, name: str) -> None:
        """Do nothing in an event loop: the name may have been loaded meanwhile."""
        if not _is_in_loop():
            super().check(name)

    def describe(self, name: str) -> list[OperatorDescription]:
        """Return the described overloads in an event loop; otherwise query the daemon."""
        if not _is_in_loop():
            return super().describe(name)
        self._begin(name, lambda: self._learn(name))
        return [self._described[each] for each in overloads_of(name, self._described)]

    def close(self) -> None:
        """Make no more queries."""
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
    with contextlib.suppress(OpdispatchError):  # a call will report it
        await learn()


def _is_in_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
