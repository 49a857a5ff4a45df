"""A daemon that can be stopped in the middle of a change to its registry.

``python held_daemon.py METHOD FILE`` takes the arguments of ``opdispatch serve`` after that. While
FILE is there, ``OperatorRegistry.METHOD``, which runs in a thread, does not return; that
it has been called, FILE.entered says.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from opdispatch_client.cli import main as command


def main(arguments: Sequence[str]) -> int:
    """Serve until it is stopped."""
    from opdispatch_server.daemon.libraries.operator_registry import OperatorRegistry

    method, path = arguments[0], Path(arguments[1])
    work = getattr(OperatorRegistry, method)

    def hold(self: OperatorRegistry, *args: Any) -> Any:
        while path.exists():
            path.with_suffix(".entered").touch()
            time.sleep(0.005)
        return work(self, *args)

    setattr(OperatorRegistry, method, hold)
    return command(["serve", *arguments[2:]])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
