"""Which children of a fork can use gRPC, after their parent has.

gRPC starts its threads again in a child, unless ``GRPC_ENABLE_FORK_SUPPORT`` says no, or a thread
was in gRPC during the fork; and one is always there once its asyncio side has been used. Without
its threads, a request would wait for ever: so it is not begun. The last channel of asyncio that is
collected would wait for that thread, too: so the parent's are kept in a child.
"""

from __future__ import annotations

import os
import weakref

from opdispatch_wire.errors import DaemonUnavailableError

SPAWN_HINT = 'start processes with the method "spawn" or "forkserver" of multiprocessing'
# As gRPC reads it, when it is first used.
_NO = ("0", "f", "false", "n", "no")


class GrpcForks:
    """Remembers the last process that used gRPC, of this one and those it was forked from."""

    def __init__(self) -> None:
        self._process: int | None = None
        self._by_asyncio = False
        self._channels: weakref.WeakSet[object] = weakref.WeakSet()
        self._channels_of_parents: list[object] = []
        os.register_at_fork(after_in_child=self._keep_channels)

    def note_use(self, address: str, *, asyncio: bool) -> None:
        """Record a session with ``address``.

        Raises DaemonUnavailableError if it cannot work here.
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
        """Record a channel of asyncio."""
        self._channels.add(channel)

    def _keep_channels(self) -> None:
        # Also closed ones, that the parent has not collected yet.
        self._channels_of_parents.extend(self._channels)

    def explain_child(self) -> str:
        """Describe what the parent process did that keeps gRPC from working here.

        Empty if it works.
        """
        if self._process in (None, os.getpid()):
            return ""
        if self._by_asyncio:
            return "has had a session of asyncio"
        if os.environ.get("GRPC_ENABLE_FORK_SUPPORT", "").lower() in _NO:
            return "used gRPC with GRPC_ENABLE_FORK_SUPPORT=0"
        return ""


GRPC_FORKS = GrpcForks()
"""The process's own, with what it knows from the one that it was forked from."""
