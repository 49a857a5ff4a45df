"""The lines of Python that have called an operator, without those of this distribution."""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager
from types import FrameType

_ROOT = os.path.dirname(__file__) + os.sep
_CONTEXTLIB = contextmanager.__code__.co_filename
_PACKAGES = frozenset({"opdispatch", "opdispatch_client", "opdispatch_server", "opdispatch_wire"})


def is_ours(filename: str) -> bool:
    """Whether a file is one of this package, or generated code, or what runs their generators."""
    return filename.startswith((_ROOT, "<opdispatch")) or filename == _CONTEXTLIB


def caller_lines(most: int) -> tuple[str, ...]:
    """Who calls, the nearest first: ``train.py(12): step``. At most so many lines."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and _is_between(frame):
        frame = frame.f_back
    lines: list[str] = []
    while frame is not None and len(lines) < most:
        code = frame.f_code
        lines.append(f"{code.co_filename}({frame.f_lineno}): {code.co_name}")
        frame = frame.f_back
    return tuple(lines)


def _is_between(frame: FrameType) -> bool:
    module = str(frame.f_globals.get("__name__", ""))
    return module.partition(".")[0] in _PACKAGES or is_ours(frame.f_code.co_filename)
