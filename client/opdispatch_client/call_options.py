"""Options of calls that differ from their session's: see ``Session.with_options``."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import Any, Final

from opdispatch_client.request_arguments import check_callable, check_flag, check_timeout
from opdispatch_wire.caller_tensors import OnTransfer


@dataclass(frozen=True, slots=True)
class CallOptions:
    """The options of some calls; None means the session's own."""

    retry: bool | None = None
    remote: bool = False
    timeout: float | None = None
    """Seconds, counted from the call; infinity means no limit."""
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
        """Return checked options.

        Raises ArgumentError, which names the argument, for invalid ones.
        """
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
        """Deadline, by ``time.monotonic``, of a call made now; None for the session's timeout."""
        return None if self.timeout is None else time.monotonic() + self.timeout


def deadline_in(timeout: float | None) -> float | None:
    """Return the deadline, by ``time.monotonic``, of a call made now. Raises ArgumentError."""
    return None if timeout is None else CallOptions.checked(timeout=timeout).deadline


SESSIONS_OPTIONS: Final = CallOptions()
"""The session's own options."""

KEEPING_OPTIONS: Final = CallOptions(remote=True)
"""The session's own options, except that results stay in the interpreter."""


def options_of(remote: Any, timeout: Any) -> CallOptions:
    """Return the options with these settings, one of the constants above if possible.

    Raises ArgumentError, which names the argument, for invalid values.
    """
    if timeout is not None:
        return CallOptions.checked(remote=remote, timeout=timeout)
    return KEEPING_OPTIONS if check_flag(remote, "remote") else SESSIONS_OPTIONS
