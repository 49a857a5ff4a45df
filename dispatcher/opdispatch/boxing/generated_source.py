"""Compiles source that is generated at run time, so that tracebacks show its lines."""

from __future__ import annotations

import itertools
import linecache
import weakref
from typing import Any

_numbers = itertools.count(2)


def compile_function(title: str, text: str, scope: dict[str, Any], name: str) -> Any:
    """Return the function that ``text`` defines as ``name``, with ``scope`` as its globals.

    Tracebacks show its lines, in the file ``<opdispatch title>``, as long as the function lives.
    Raises SyntaxError.
    """
    filename = run_source(title, text, scope, scope)
    function = scope[name]
    keep_lines(filename, function)
    return function


def run_source(title: str, text: str, scope: dict[str, Any], members: dict[str, Any]) -> str:
    """Define in ``members`` what ``text`` defines; return its file name for tracebacks.

    It is ``<opdispatch title>``, with a number if that name is taken. The lines stay until the
    owner passed to ``keep_lines`` is collected. Raises SyntaxError.
    """
    filename = f"<opdispatch {title}>"
    if filename in linecache.cache:
        filename = f"<opdispatch {title} #{next(_numbers)}>"
    code = compile(text, filename, "exec")
    # Without a modification time, ``linecache.checkcache`` leaves the entry alone.
    linecache.cache[filename] = (len(text), None, text.splitlines(keepends=True), filename)
    exec(code, scope, members)
    return filename


def keep_lines(filename: str, owner: object) -> None:
    """Drop the lines of a file of ``run_source`` when ``owner`` is collected."""
    weakref.finalize(owner, linecache.cache.pop, filename, None).atexit = False
