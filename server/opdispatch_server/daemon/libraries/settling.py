"""Libraries that have lost their interpreters: who waits for them, and whether that is any use."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from opdispatch_server.daemon.libraries.interpreter_pools import InterpreterPools
from opdispatch_server.daemon.libraries.version import LibraryVersion, VersionState


class LibrarySettling:
    """Wakes tasks that wait for libraries to be in an interpreter. Belongs to the event loop.

    ``newest`` gives the version of each library that is active, or is to be; ``publication`` is
    held while these change, and with them what can be called.
    """

    def __init__(
        self,
        pools: InterpreterPools,
        newest: Callable[[], Iterable[LibraryVersion]],
        publication: asyncio.Lock,
    ) -> None:
        self._pools = pools
        self._newest = newest
        self._publication = publication
        # Notified when a version is published or unloaded, gains or loses an interpreter, or is
        # given up, and when an interpreter is.
        self._changed = asyncio.Condition()

    def explain_want(self, version: LibraryVersion) -> tuple[str, str]:
        """Return why no interpreter for the version can come, and a remedy; else "".

        One that is being started, or is busy, can come.
        """
        if version.pool is None and not version.source.home.is_shared:
            return "", ""  # its interpreters are not even started yet
        return self._pools.explain_want(version.pool)

    async def wait(self, affects: Callable[[LibraryVersion], bool]) -> None:
        """Wait while a library that ``affects`` is true of has no live interpreter.

        Not for one that has failed, or that no interpreter can come for. A caller that looks again
        right after that sees no change half made: in the middle of a change it would find
        operators that cannot be called, though there is nothing to wait for.
        """
        async with self._changed:
            await self._changed.wait_for(
                lambda: all(self._is_settled(v) for v in self._newest() if affects(v))
            )
        async with self._publication:
            pass

    async def announce(self) -> None:
        """Wake all waiters to look again."""
        async with self._changed:
            self._changed.notify_all()

    def _is_settled(self, version: LibraryVersion) -> bool:
        if version.state not in (VersionState.ACTIVE, VersionState.WAITING):
            return True  # it does not come back
        return version.is_serving or bool(self.explain_want(version)[0])
