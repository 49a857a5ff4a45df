"""A daemon whose garbage is never collected, but looked at.

``python garbage_daemon.py FILE`` takes the arguments of ``opdispatch serve`` after
that. Told SIGUSR1, it writes the types of all that only the collector would free, one a line, to
FILE, and frees it; and to FILE.modules the modules of the server that it has loaded.
"""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from types import CoroutineType, FrameType, FunctionType
from typing import Any

from opdispatch_client.cli import main as command


def _describe(garbage: object) -> str:
    kind = type(garbage)
    text = f"{kind.__module__}.{kind.__qualname__}"
    match garbage:
        case FrameType():
            return f"{text} of {garbage.f_code.co_name}"
        case FunctionType() | CoroutineType():
            return f"{text} {garbage.__qualname__}"
        case _:
            return text


def _collect() -> list[str]:
    gc.unfreeze()
    gc.set_debug(gc.DEBUG_SAVEALL)
    gc.collect()
    found = sorted(map(_describe, gc.garbage))
    gc.set_debug(0)
    gc.garbage.clear()
    gc.collect()
    return found


def _write(path: Path, lines: Sequence[str]) -> None:
    draft = path.with_suffix(".draft")
    draft.write_text("".join(f"{line}\n" for line in lines))
    os.rename(draft, path)


def main(arguments: Sequence[str]) -> int:
    """Serve until it is stopped."""
    from opdispatch_server.daemon.interpreters import sessions as interpreter_sessions
    from opdispatch_server.daemon.lifecycle import Daemon

    # Of interpreters that have ended, all but the last one are to be let go.
    interpreter_sessions.ENDED_REMEMBERED = 1

    path = Path(arguments[0])
    serve = Daemon.run

    async def run(self: Daemon, *args: Any) -> None:
        def report() -> None:
            loaded = [name for name in sys.modules if name.startswith("opdispatch_server.")]
            _write(path.with_suffix(".modules"), loaded)
            _write(path, _collect())

        asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, report)
        gc.disable()
        gc.enable = lambda: None
        await serve(self, *args)

    Daemon.run = run  # type: ignore[method-assign]
    return command(["serve", *arguments[1:]])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
