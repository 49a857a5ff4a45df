"""How deep lists and dicts may lie in each other, where values are sent and where they arrive."""

from __future__ import annotations

from typing import Any

from opdispatch.errors import ArgumentError, OpdispatchError

MAX_NESTING = 32
"""How many lists and dicts may lie in each other. Protobuf itself ends soon after that."""


def check_depth(at: str, depth: int, error: type[OpdispatchError] = ArgumentError) -> None:
    """Raises ``error`` for a list or dict at the place ``at`` that lies in ``depth`` others.

    ArgumentError for what is to be sent, WireError for what has arrived.
    """
    if depth >= MAX_NESTING:
        # The place has as many levels; its beginning is enough.
        raise error(
            f"{at[:60]}...: lists and dicts nest more than {MAX_NESTING} levels deep"
            + ("; does one of them lie in itself?" if error is ArgumentError else "")
        )


def check_nesting(value: Any, at: str, depth: int = 0) -> None:
    """Raises ArgumentError for a value to be sent whose lists and dicts nest too deep.

    For those that walk through values before these are encoded.
    """
    if isinstance(value, list | tuple):
        check_depth(at, depth)
        for place, item in enumerate(value):
            if isinstance(item, list | tuple | dict):
                check_nesting(item, f"{at}[{place}]", depth + 1)
    elif isinstance(value, dict):
        check_depth(at, depth)
        for key, item in value.items():
            if isinstance(item, list | tuple | dict):
                check_nesting(item, f"{at}[{str(key)[:20]!r}]", depth + 1)
