"""Options of calls that differ from their session's: see ``Session.with_options``."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import Any, Final

from opdispatch_client.request_arguments import check_callable, check_flag, check_timeout
from opdispatch_wire.caller_tensors import OnTransfer


@dataclass(frozen=True, slots=True)
class CallOptions:
    """The choices for some calls; None is the session's own."""

    retry: bool | None = None
    remote: bool = False
    timeout: float | None = None
    """Seconds from the moment of the call; infinite: any time."""
    on_progress: OnTransfer | None = None

    @classmethod
    def checked(
        cls,
        *,
        retry: Any = None,
        remote: Any = False,
        timeout: Any = None,
        on_progress: Any = None,
    ) -> CallOptions:
        """Raise ArgumentError, which names the argument, for what cannot be."""
        return cls(
            retry=None if retry is None else check_flag(retry, "retry"),
            remote=check_flag(remote, "remote"),
            timeout=check_timeout(timeout),
            on_progress=check_callable(on_progress, "on_progress"),
        )

    def changed(
        self,
        *,
        retry: bool | None = None,
        remote: bool | None = None,
        timeout: float | None = None,
        on_progress: OnTransfer | None = None,
    ) -> CallOptions:
        """Return these options with some replaced. Raises ArgumentError."""
        given = CallOptions.checked(
            retry=retry,
            remote=self.remote if remote is None else remote,
            timeout=timeout,
            on_progress=on_progress,
        )
        return replace(
            self,
            retry=self.retry if retry is None else given.retry,
            remote=given.remote,
            timeout=self.timeout if timeout is None else given.timeout,
            on_progress=on_progress or self.on_progress,
        )

    @property
    def deadline(self) -> float | None:
        """When a call that is made now is too late, by ``time.monotonic``; None: no choice."""
        return None if self.timeout is None else time.monotonic() + self.timeout


def deadline_in(timeout: float | None) -> float | None:
    """Return ``CallOptions.deadline`` of a call with that timeout. Raises ArgumentError."""
    return None if timeout is None else CallOptions.checked(timeout=timeout).deadline


SESSIONS_OPTIONS: Final = CallOptions()
"""No other choices than the session's."""

KEEPING_OPTIONS: Final = CallOptions(remote=True)
"""The same, but that results stay where they are."""


def options_of(remote: Any, timeout: Any) -> CallOptions:
    """Return the options of calls with these choices: one of the constants, if possible.

    Raises ArgumentError, which names the argument, for what cannot be.
    """
    if timeout is not None:
        return CallOptions.checked(remote=remote, timeout=timeout)
    return KEEPING_OPTIONS if check_flag(remote, "remote") else SESSIONS_OPTIONS
