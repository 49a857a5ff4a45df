"""``record_function``: a named range of the program as an event of a profile.

Mirrors ``torch.profiler.record_function``.
"""

from __future__ import annotations

from typing import Self

from opdispatch.errors import ArgumentError
from opdispatch.local_state.mode_decorator import ModeDecorator
from opdispatch.local_state.observed_range import ObservedRange


class record_function(ModeDecorator):  # noqa: N801 - PyTorch's name
    """Context manager and decorator that records a block or function as an event with a name.

    Does nothing without an active profile. Raises ArgumentError for a name that is not a string.
    """

    def __init__(self, name: str) -> None:
        if not isinstance(name, str):
            raise ArgumentError(
                f"record_function takes a name, not {type(name).__qualname__}",
                hint='decorate with @record_function("name")',
            )
        self._name = name
        self._ranges: list[ObservedRange] = []

    def clone(self) -> record_function:
        """Return a new context manager with the same name, for one call of a decorated function."""
        return record_function(self._name)

    def __enter__(self) -> Self:
        self._ranges.append(ObservedRange(self._name, "user").__enter__())
        return self

    def __exit__(self, exc_type: object, exc: object, traceback: object) -> None:
        self._ranges.pop().__exit__(exc_type, exc, traceback)
