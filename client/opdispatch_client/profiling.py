"""Profiles of calls that travel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from opdispatch import profile
from opdispatch.profiler.schedule import Schedule


class ProfiledCalls:
    """``profile``, for sessions of both kinds."""

    def profile(
        self,
        *,
        schedule: Schedule | None = None,
        on_trace_ready: Callable[[profile], Any] | None = None,
        record_shapes: bool = False,
        profile_memory: bool = False,
        with_stack: bool = False,
        with_flops: bool = False,
        record_keys: bool = True,
    ) -> profile:
        """What calls of a ``with`` block take: here, in the daemon, and in interpreters.

        It is an ``opdispatch.profile``, which sees the calls of this task, of this session and any
        other. The round trip of a call is an event with "rpc" before the operator's name; in it
        are those that the daemon and the interpreters have told of it, at most 4,096 a call, also
        of one that failed, if its reply was there in time. Lines of Python are those of this
        process.
        """
        return profile(
            schedule=schedule,
            on_trace_ready=on_trace_ready,
            record_shapes=record_shapes,
            profile_memory=profile_memory,
            with_stack=with_stack,
            with_flops=with_flops,
            record_keys=record_keys,
        )
