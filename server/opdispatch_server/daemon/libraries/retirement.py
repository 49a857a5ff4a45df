"""The end of versions that were replaced or unloaded: after the calls that they are running."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from opdispatch_server.daemon.interpreters.blame import Blame
from opdispatch_server.daemon.libraries.interpreter_pools import InterpreterPools
from opdispatch_server.daemon.libraries.publication import LibraryPublication
from opdispatch_server.daemon.libraries.version import LibraryVersion, VersionState

# How long a change waits for direct calls, which the daemon does not see. After that the rest
# happens in the background, as it does for calls that the daemon sees.
DIRECT_CALLS_WAIT = 0.1


class LibraryRetirement:
    """Retires versions when their calls have ended. For use in the event loop only.

    ``start`` begins a background task.
    """

    def __init__(
        self,
        publication: LibraryPublication,
        pools: InterpreterPools,
        blame: Blame,
        start: Callable[[Coroutine[Any, Any, Any]], asyncio.Task[Any]],
    ) -> None:
        self._publication = publication
        self._pools = pools
        self._blame = blame
        self._start = start
        self.leaving: set[asyncio.Task[Any]] = set()
        """The background tasks that wait for the last calls of unloaded versions."""

    def supersede(self, replaced: LibraryVersion, too_old: list[LibraryVersion]) -> None:
        """Keep a version below the active one, and retire those that are no longer kept."""
        self._blame.forget(replaced.name, replaced.operators)
        for version in too_old:
            version.state = VersionState.GONE
            self._start(self._retire_when_idle(version, keep=False))
        keep = not replaced.batch.has_unload_hooks
        self._start(self._retire_when_idle(replaced, keep=keep))

    async def release(self, versions: list[LibraryVersion], wait: float) -> None:
        """Release unloaded versions, when their calls have finished.

        Waits up to ``wait`` seconds for that; the rest happens in the background. All together:
        kernels of an older version may call operators of the newer one.
        """
        busy = any(version.calls_in_flight for version in versions)
        if not busy:
            try:
                async with asyncio.timeout(wait):
                    await asyncio.gather(*(version.wait_idle() for version in versions))
            except TimeoutError:
                busy = True
        if busy:
            task = self._start(self._retire_all_when_idle(versions))
            self.leaving.add(task)
            task.add_done_callback(self.leaving.discard)
        else:
            await self._retire_all_when_idle(versions)

    async def _retire_all_when_idle(self, versions: list[LibraryVersion]) -> None:
        for version in versions:
            await version.wait_idle()
        await asyncio.gather(*(self._publication.retire(v, keep=False) for v in versions))
        for version in versions:
            version.replicas = []
            self._pools.let_go(version)
            await asyncio.to_thread(version.let_go)

    async def _retire_when_idle(self, version: LibraryVersion, *, keep: bool) -> None:
        load_id = version.load_id
        await version.wait_idle()
        # It may have been loaded anew while the interpreter was busy, and no longer need retiring.
        if load_id == version.load_id:
            await self._publication.retire(version, keep=keep)
        if version.state is VersionState.GONE:
            self._pools.let_go(version)
            await asyncio.to_thread(version.let_go)
