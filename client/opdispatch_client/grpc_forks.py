"""Whether gRPC works in a forked child whose parent has used it.

gRPC restarts its threads in a child, unless ``GRPC_ENABLE_FORK_SUPPORT`` disables that or a thread
was inside gRPC during the fork, as is always the case once the asyncio API was used. Without the
threads, a request would wait forever, so the child rejects requests. Collecting the last asyncio
channel would also wait for a thread, so the child keeps its parent's channels alive.
"""

from __future__ import annotations

import os
import weakref

from opdispatch_wire.errors import DaemonUnavailableError

SPAWN_HINT = 'start processes with the method "spawn" or "forkserver" of multiprocessing'
# As gRPC interprets it, on first use.
_NO = ("0", "f", "false", "n", "no")


class GrpcForks:
    """Records which of this process and its ancestors used gRPC last."""

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
        """Return the reason why gRPC cannot work in this process; "" if it can."""
        if self._process in (None, os.getpid()):
            return ""
        if self._by_asyncio:
            return "has had a session of asyncio"
        if os.environ.get("GRPC_ENABLE_FORK_SUPPORT", "").lower() in _NO:
            return "used gRPC with GRPC_ENABLE_FORK_SUPPORT=0"
        return ""


GRPC_FORKS = GrpcForks()
"""The instance of this process, which inherits its parent's records."""
