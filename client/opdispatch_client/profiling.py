"""Profiles of calls that travel."""

from __future__ import annotations

from opdispatch import profile


class ProfiledCalls:
    """``profile``, for sessions of both kinds."""

    def profile(
        self,
        *,
        record_shapes: bool = False,
        with_flops: bool = False,
        record_keys: bool = True,
    ) -> profile:
        """What calls of a ``with`` block take: here, in the daemon, and in interpreters.

        It is an ``opdispatch.profile``, which sees the calls of this task, of this session and any
        other. The round trip of a call is an event with "rpc" before the operator's name; in it
        are those that the daemon and the interpreters have told of it, at most 4,096 a call. Of a
        call that failed there is the round trip alone.
        """
        return profile(record_shapes=record_shapes, with_flops=with_flops, record_keys=record_keys)
