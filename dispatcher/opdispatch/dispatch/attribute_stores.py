"""Attributes of several objects that change at one instant."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import starmap
from typing import Any

AttributeStore = tuple[object, str, Any]
"""An object, the name of an attribute that it has, and the value for it."""


def store_at_once(stores: Sequence[AttributeStore]) -> None:
    """Store them all: a thread that has seen one of them finds the others so, too.

    They are one step of C code, in which CPython does not change threads. Nothing is finalized in
    it either, which might run Python: what there was before is let go afterwards.
    """
    before = [getattr(owner, name) for owner, name, _ in stores]
    any(starmap(setattr, stores))  # setattr returns None
    while before:  # one by one: so much may go that one step would hold up other threads
        before.pop()
