"""The Python frames that called an operator, without those of this distribution."""

from __future__ import annotations

import functools
import re
import sys
import warnings
from contextlib import contextmanager
from types import FrameType

_CONTEXTLIB = contextmanager.__code__.co_filename
_PACKAGES = frozenset({"opdispatch", "opdispatch_client", "opdispatch_server", "opdispatch_wire"})

# Calls by these are registrations, also by libraries of this distribution. ``functools`` calls
# functions created for several types, ``define`` and ``impl``.
_REGISTERING = re.compile(
    r"functools|opdispatch\.(local_state\.caller_frames|"
    r"library\.(library|custom_operator|\w+_registration))"
)


def caller_lines(most: int) -> tuple[str, ...]:
    """Return at most ``most`` callers, the nearest first: ``train.py(12): step``."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and is_between(frame):
        frame = frame.f_back
    lines: list[str] = []
    while frame is not None and len(lines) < most:
        code = frame.f_code
        lines.append(f"{code.co_filename}({frame.f_lineno}): {code.co_name}")
        frame = frame.f_back
    return tuple(lines)


def warn_caller(text: str, category: type[Warning]) -> None:
    """Warn at the nearest line of a caller outside this distribution."""
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and is_between(frame):
        level, frame = level + 1, frame.f_back
    warnings.warn(text, category, stacklevel=level)


def caller_site() -> str:
    """Return the site of a registration, "FILE:LINE": the nearest frame outside this package."""
    frame = sys._getframe(1)
    while (outer := frame.f_back) is not None and _is_registering(
        str(frame.f_globals.get("__name__", ""))
    ):
        frame = outer
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


@functools.lru_cache(maxsize=256)
def _is_registering(module: str) -> bool:
    return _REGISTERING.fullmatch(module) is not None


def is_between(frame: FrameType) -> bool:
    """Return whether a frame belongs to this distribution, or to code that runs its generators."""
    filename = frame.f_code.co_filename
    module = str(frame.f_globals.get("__name__", ""))
    return (
        module.partition(".")[0] in _PACKAGES
        or filename.startswith("<opdispatch")
        or filename == _CONTEXTLIB
    )
