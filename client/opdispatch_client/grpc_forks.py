"""Which children of a fork can use gRPC, after their parent has.

gRPC starts its threads again in a child, unless ``GRPC_ENABLE_FORK_SUPPORT`` says no, or a thread
was in gRPC during the fork; and one is always there once its asyncio side has been used. Without
its threads, a request would wait for ever: so it is not begun.
"""

from __future__ import annotations

import os

from opdispatch_wire.errors import DaemonUnavailableError

SPAWN_HINT = 'start processes with the method "spawn" or "forkserver" of multiprocessing'
# As gRPC reads it, when it is first used.
_NO = ("0", "f", "false", "n", "no")


class GrpcForks:
    """Remembers the last process that used gRPC, of this one and those it was forked from."""

    def __init__(self) -> None:
        self._process: int | None = None
        self._by_asyncio = False

    def note_use(self, address: str, *, asyncio: bool) -> None:
        """For a session with ``address``. Raises DaemonUnavailableError if it cannot work here."""
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

    def explain_child(self) -> str:
        """What the process that this one was forked from has done, so that gRPC does not work
        here; empty if it does.
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
