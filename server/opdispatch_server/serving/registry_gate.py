"""Admit, hold or refuse requests to the registry."""

from __future__ import annotations

import asyncio

from opdispatch_wire.status import stopping_error

REGISTRY = "/opdispatch.v1.RegistryService/"

_CHANGES = frozenset(
    f"{REGISTRY}{name}"
    for name in (
        *("LoadLibrary", "LoadLibraryWithProgress", "UploadLibrary", "UnloadLibrary"),
        *("ScaleLibrary", "RollbackLibrary", "DrainInterpreter", "ReviveInterpreter"),
    )
)


class RegistryGate:
    """Controls access to the registry's methods. For use in the event loop only."""

    def __init__(self) -> None:
        self._is_stopping = False
        self._open = asyncio.Event()
        self._open.set()
        self._running = 0
        self._idle = asyncio.Event()
        self._idle.set()

    async def enter(self, method: str) -> None:
        """Admit a request; one that changes the registry waits while changes are held.

        Raises RefusedError once the daemon is stopping. ``leave`` must follow, unless it raises.
        """
        if method in _CHANGES:
            while not (self._open.is_set() or self._is_stopping):
                await self._open.wait()
        if self._is_stopping:
            raise stopping_error("the request never started")
        if method in _CHANGES:
            self._running += 1
            self._idle.clear()

    def leave(self, method: str) -> None:
        """End a request that was admitted."""
        if method in _CHANGES:
            self._running -= 1
            if not self._running:
                self._idle.set()

    async def hold(self, patience: float) -> bool:
        """Hold changes from now on, and wait for those in progress.

        Return False, and hold none, if they take longer than ``patience`` seconds.
        """
        self._open.clear()
        try:
            if self._running:
                await asyncio.wait_for(self._idle.wait(), patience)
        except TimeoutError:
            self.resume()
            return False
        return True

    def resume(self) -> None:
        """Admit changes again."""
        self._open.set()

    def stop(self) -> None:
        """Refuse requests from now on, including those that are held: the daemon is stopping.

        Requests to other services are not affected: some belong to calls that are still running.
        """
        self._is_stopping = True
        self._open.set()
