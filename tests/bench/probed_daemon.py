"""A daemon that notes how long its event loop stands still.

Takes the arguments of ``opdispatch serve`` after the name of a file. A task of its loop sleeps for
2 ms again and again, and writes there when it woke, and how late, and when the garbage collector
has taken long.
"""

from __future__ import annotations

import asyncio
import gc
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, TextIO

INTERVAL = 0.002
LONG = 0.001  # collections that took less are not written down


class Probe:
    """Notes times, and writes them down in the loop alone.

    A thread that makes many objects has a collection every few microseconds: if it wrote then, it
    would let go of the interpreter lock each time, and the loop would wait for it as never else.
    """

    def __init__(self, file: TextIO) -> None:
        self._file = file
        self._collections: list[str] = []
        self._began = 0.0
        gc.callbacks.append(self._note_collection)

    async def run(self) -> None:
        """Sleep again and again, for ever."""
        while True:
            due = time.monotonic() + INTERVAL
            await asyncio.sleep(INTERVAL)
            now = time.monotonic()
            collections, self._collections = self._collections, []
            late = f"loop {now:.6f} {max(now - due, 0.0):.6f}\n"
            self._file.write("".join([*collections, late]))

    def _note_collection(self, phase: str, info: dict[str, int]) -> None:
        now = time.monotonic()
        if phase == "start":
            self._began = now
        elif now - self._began > LONG:
            line = f"collection-{info['generation']} {now:.6f} {now - self._began:.6f}\n"
            self._collections.append(line)


def main(arguments: Sequence[str]) -> int:
    """Serve until it is stopped."""
    from opdispatch_client.cli import main as command
    from opdispatch_server.daemon.lifecycle import Daemon

    serve: Callable[..., Any] = Daemon.run
    with open(arguments[0], "w") as file:
        probe = Probe(file)

        async def run(self: Daemon, *args: Any) -> None:
            probing = asyncio.create_task(probe.run())
            try:
                await serve(self, *args)
            finally:
                probing.cancel()

        Daemon.run = run  # type: ignore[method-assign]
        return command(["serve", *arguments[1:]])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
