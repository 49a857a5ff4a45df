"""Code that runs as an interpreter starts, before anything of it does."""

from __future__ import annotations

import os
from pathlib import Path

# Naming itself is the last thing that a process does before it is an interpreter.
_TEXT = """\
import os, time

import setproctitle

set_title = setproctitle.setproctitle


def note_title(title):
    set_title(title)
    if title.startswith("opdispatch: interpreter "):
        start()


def start():
{body}


setproctitle.setproctitle = note_title
"""


def at_each_start(folder: Path, code: str) -> dict[str, str]:
    """Return the environment of a daemon whose interpreters run ``code`` first of all."""
    body = "\n".join(f"    {line}" for line in code.splitlines())
    (folder / "sitecustomize.py").write_text(_TEXT.format(body=body))
    path = os.environ.get("PYTHONPATH", "")
    return {"PYTHONPATH": f"{folder}{os.pathsep}{path}" if path else str(folder)}
