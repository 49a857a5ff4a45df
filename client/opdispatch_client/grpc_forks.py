"""Whether a forked child can use gRPC after its parent has.

gRPC restarts its threads in a child, unless ``GRPC_ENABLE_FORK_SUPPORT`` disables that, or a thread
was inside gRPC during the fork; once its asyncio API has been used, one always is. Without its
threads a request would wait forever, so none is begun. Collecting the last asyncio channel would
also wait for such a thread, so a child keeps its parent's channels.
"""

from __future__ import annotations

import os
import weakref

from opdispatch_wire.errors import DaemonUnavailableError

SPAWN_HINT = 'start processes with the method "spawn" or "forkserver" of multiprocessing'
# As gRPC interprets it, on first use.
_NO = ("0", "f", "false", "n", "no")


class GrpcForks:
    """Remembers the last process that used gRPC, among this one and those it was forked from."""

    def __init__(self) -> None:
        self._process: int | None = None
        self._by_asyncio = False
        self._channels: weakref.WeakSet[object] = weakref.WeakSet()
        self._channels_of_parents: list[object] = []
        os.register_at_fork(after_in_child=self._keep_channels)

    def note_use(self, address: str, *, asyncio: bool) -> None:
        """Record a session with ``address``.

        Raises DaemonUnavailableError if gRPC cannot work in this process.
        """
        process = os.getpid()
        if why := self.explain_child():
            raise DaemonUnavailableError(
                f"no session with {address} can be opened in process {process}: it was forked from "
                f"process {self._process}, which {why}",
                hint=SPAWN_HINT,
                address=address,
            )
        self._process = process
        self._by_asyncio = self._by_asyncio or asyncio

    def note_channel(self, channel: object) -> None:
        """Record an asyncio channel."""
        self._channels.add(channel)

    def _keep_channels(self) -> None:
        # Including closed channels that the parent has not collected.
        self._channels_of_parents.extend(self._channels)

    def explain_child(self) -> str:
        """Return what the parent process did that keeps gRPC from working here; "" if it works."""
        if self._process in (None, os.getpid()):
            return ""
        if self._by_asyncio:
            return "has had a session of asyncio"
        if os.environ.get("GRPC_ENABLE_FORK_SUPPORT", "").lower() in _NO:
            return "used gRPC with GRPC_ENABLE_FORK_SUPPORT=0"
        return ""


GRPC_FORKS = GrpcForks()
"""The process's own instance, with what its parent recorded."""
