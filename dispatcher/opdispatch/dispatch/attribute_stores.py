"""Stores to attributes of several objects at one instant."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import starmap
from typing import Any

AttributeStore = tuple[object, str, Any]
"""An object, the name of one of its attributes, and the value to store."""


def store_at_once(stores: Sequence[AttributeStore]) -> None:
    """Store them all at once: a thread that sees one of the new values sees all of them.

    The stores are one step of C code, in which CPython does not switch threads. The old values are
    released only afterwards, so that no finalizer, which might run Python code, runs in between.
    """
    before = [getattr(owner, name) for owner, name, _ in stores]
    any(starmap(setattr, stores))  # setattr returns None
    while before:  # one by one: freeing many objects in one step would block other threads
        before.pop()
