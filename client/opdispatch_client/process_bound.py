"""What belongs to one process."""

from __future__ import annotations

from typing import NoReturn


class ProcessBound:
    """A base of sessions: no other process gets one. See Note [Sessions in forked children]."""

    def __reduce__(self) -> NoReturn:
        """Raises TypeError."""
        raise TypeError(
            f"a {type(self).__name__} can be neither pickled nor copied: it is the connection of "
            "this process; another one opens its own, with connect()"
        )
