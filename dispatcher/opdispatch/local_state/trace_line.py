"""The dispatch trace: a line for each kernel visited, and the sink of lines."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True, slots=True)
class TraceLine:
    """One kernel visited.

    ``depth`` is the number of enclosing calls; ``kind`` is "call", "redispatch", "callBoxed" or
    "redispatchBoxed"; ``kernel`` is where it was registered, and ``reason`` why it was selected.
    """

    depth: int
    kind: str
    operator: str
    key: str
    kernel: str
    reason: str

    def __str__(self) -> str:
        return f"{' ' * self.depth}[{self.kind}] op=[{self.operator}], key=[{self.key}]"


class TraceSink(NamedTuple):
    """The destination of a task's trace lines, and the nesting depth of the running call.

    ``takes_remote`` says whether to include trace lines of other processes.
    """

    emit: Callable[[TraceLine], None]
    depth: int = 0
    takes_remote: bool = True

    def nested(self) -> TraceSink:
        """Return the sink for calls made by the kernel of the last line."""
        return TraceSink(self.emit, self.depth + 1, self.takes_remote)


def print_line(line: TraceLine) -> None:
    """Print ``line`` to stderr, as PyTorch's ``TORCH_SHOW_DISPATCH_TRACE`` does."""
    print(line, file=sys.stderr)


def sink_from_environment() -> TraceSink | None:
    """Return a printing sink if ``OPDISPATCH_SHOW_DISPATCH_TRACE`` is set to anything but "" or
    "0".
    """
    wanted = os.environ.get("OPDISPATCH_SHOW_DISPATCH_TRACE", "") not in ("", "0")
    return TraceSink(print_line) if wanted else None
