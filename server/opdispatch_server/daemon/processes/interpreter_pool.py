"""Interpreters that only some libraries may use: those of one environment, or of one library."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path


@dataclass(eq=False, slots=True)
class InterpreterPool:
    """The interpreters of one environment, or of one version of one isolated library.

    They are started when a version needs them, and end with the last version that does.
    """

    # Two homes with the same key share a pool.
    key: str
    # "library NAME" or "environment KEY", for people.
    reserved_for: str
    # What their names begin with: "image@" of "image@1".
    prefix: str
    # Of the environment; None: the daemon's own.
    python: Path | None
    # Of its interpreters, running or being started.
    names: list[str] = field(default_factory=list)
    # How many versions hold it open.
    users: int = 0
