"""Wait for libraries that have lost their interpreters, while another interpreter may come."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from opdispatch_server.daemon.libraries.interpreter_pools import InterpreterPools
from opdispatch_server.daemon.libraries.version import LibraryVersion, VersionState


class LibraryAvailability:
    """Wakes tasks that wait for a library to be in an interpreter. For the event loop only.

    ``newest`` returns the version of each library that is or will be active; ``publication`` is the
    lock held while these versions change, and with them the operators that can be called.
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
        # given up, and when an interpreter is given up.
        self._changed = asyncio.Condition()

    def explain_want(self, version: LibraryVersion) -> tuple[str, str]:
        """Return why no interpreter for the version can come, and a remedy; "" if one can.

        An interpreter that is being started, or is busy, can come.
        """
        if version.pool is None and not version.source.home.is_shared:
            return "", ""  # its interpreters have not even been started yet
        return self._pools.explain_want(version.pool)

    async def wait(self, affects: Callable[[LibraryVersion], bool]) -> None:
        """Wait while a library for which ``affects`` is true has no live interpreter.

        Does not wait for a library that has failed, or for which no interpreter can come. A caller
        that checks again right after the wait sees no half-made change: in the middle of one it
        would find operators that cannot be called although there is nothing to wait for.
        """
        async with self._changed:
            await self._changed.wait_for(
                lambda: all(self._is_available(v) for v in self._newest() if affects(v))
            )
        async with self._publication:
            pass

    async def announce(self) -> None:
        """Wake all waiters to check again."""
        async with self._changed:
            self._changed.notify_all()

    def _is_available(self, version: LibraryVersion) -> bool:
        if version.state not in (VersionState.ACTIVE, VersionState.WAITING):
            return True  # it is not restarted
        return version.is_serving or bool(self.explain_want(version)[0])
