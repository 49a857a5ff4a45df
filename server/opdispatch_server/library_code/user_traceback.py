"""Tracebacks of user code, without the frames of opdispatch.

Files of an uploaded library are shown under their original names.
"""

from __future__ import annotations

import linecache
import traceback
from collections.abc import Callable
from types import FrameType

from opdispatch_server.library_code.unpacked_libraries import show_paths

_MACHINERY = (
    "opdispatch",
    "opdispatch_server",
    "opdispatch_wire",
    "importlib",
    "concurrent",
    "contextlib",
    "threading",
)


def format_user_traceback(error: BaseException) -> str:
    """Format ``error`` with its causes, as Python prints it, without frames of opdispatch.

    Unlike Python's own traceback, it shows the source lines of uploads.
    """
    report = traceback.TracebackException.from_exception(error)
    _trim(report, error)
    return show_paths("".join(report.format()).rstrip("\n"))


def find_user_line(error: BaseException, owns: Callable[[str], bool]) -> str:
    """Return "FILE:LINE" of the innermost line in a file that ``owns`` accepts.

    Without one, that of the innermost line outside opdispatch; "" if there is none either.
    """
    if isinstance(error, SyntaxError) and error.lineno and owns(error.filename or ""):
        return show_paths(f"{error.filename}:{error.lineno}")
    frames = [
        (frame.f_code.co_filename, line)
        for frame, line in traceback.walk_tb(error.__traceback__)
        if not _is_machinery(frame)
    ]
    own = [place for place in frames if owns(place[0])] or frames
    return show_paths("{}:{}".format(*own[-1])) if own else ""


def describe_exception(error: BaseException) -> str:
    """Return "TYPE: MESSAGE" as Python prints it, or "TYPE" alone; never raise."""
    name, message = type(error).__qualname__, exception_message(error)
    return f"{name}: {message}" if message else name


def exception_message(error: BaseException) -> str:
    """Return ``str(error)``, even for a type whose ``__str__`` raises."""
    try:
        return str(error)
    except Exception:
        return "<its message cannot be shown>"


def _trim(report: traceback.TracebackException, error: BaseException) -> None:
    frames = list(traceback.walk_tb(error.__traceback__))
    if len(frames) == len(report.stack):
        report.stack[:] = [
            _shown(frame, summary)
            for (frame, _), summary in zip(frames, report.stack, strict=True)
            if not _is_machinery(frame)
        ]
    for inner, cause in (
        (report.__cause__, error.__cause__),
        (report.__context__, error.__context__),
    ):
        if inner is not None and cause is not None:
            _trim(inner, cause)
    if isinstance(error, BaseExceptionGroup):
        for part, each in zip(report.exceptions or (), error.exceptions, strict=False):
            _trim(part, each)


def _shown(frame: FrameType, summary: traceback.FrameSummary) -> traceback.FrameSummary:
    filename, number = summary.filename, summary.lineno or 0
    line = linecache.getline(filename, number, frame.f_globals).strip()
    return traceback.FrameSummary(filename, number, summary.name, line=line)


def _is_machinery(frame: FrameType) -> bool:
    module = frame.f_globals.get("__name__")
    top = module.partition(".")[0] if isinstance(module, str) else ""
    return top in _MACHINERY or frame.f_code.co_filename.startswith(("<frozen ", "<opdispatch"))
