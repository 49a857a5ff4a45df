"""Interpreters reserved for some libraries: those of one environment, or one isolated library."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path


@dataclass(eq=False, slots=True)
class InterpreterPool:
    """The interpreters of one environment, or of one version of one isolated library.

    They start when a version needs them, and end with the last version that does.
    """

    # Two homes with the same key share a pool.
    key: str
    # "library NAME" or "environment KEY", for messages.
    reserved_for: str
    # The prefix of their names: "image@" of "image@1".
    prefix: str
    # The environment's Python; None: the daemon's own.
    python: Path | None
    # The names of its interpreters, running or being started.
    names: list[str] = field(default_factory=list)
    # How many versions hold the pool open.
    users: int = 0
