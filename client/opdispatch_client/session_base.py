"""The state and methods that both kinds of sessions share; none sends a request."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import numpy as np
from numpy.typing import DTypeLike

from opdispatch import profile
from opdispatch.profiler.schedule import Schedule
from opdispatch_client.connection_base import ConnectionBase
from opdispatch_client.endpoint import Endpoint
from opdispatch_client.listings import ServerInfo
from opdispatch_client.session_memory import SessionMemory, Shape


class SessionBase:
    """Base class of both kinds of sessions: the daemon's description, and shared memory."""

    _connection: ConnectionBase
    _endpoint: Endpoint
    _memory: SessionMemory
    _server_info: ServerInfo

    @property
    def address(self) -> str:
        """The daemon's address."""
        return self._endpoint.address

    @property
    def timeout(self) -> float | None:
        """Seconds that one request may take; None: without limit."""
        return self._endpoint.timeout

    @property
    def server_info(self) -> ServerInfo:
        """The daemon, as it introduced itself on connecting."""
        return self._server_info

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
        """Profile the calls of a ``with`` block: here, in the daemon, and in interpreters.

        It is an ``opdispatch.profile``, and records the calls of this task, of this session and any
        other. The round trip of a call is an event with "rpc" before the operator's name; nested in
        it are the events that the daemon and the interpreters reported, at most 4,096 for a call,
        also for a call that failed, if its reply arrived in time. Stack frames are those of this
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

    def empty(self, shape: Shape, dtype: DTypeLike = np.float64) -> np.ndarray[Any, Any]:
        """Return an uninitialized array, like ``numpy.empty``, that calls need not copy.

        It is in memory shared with the interpreters that the session calls directly; they read it,
        or a contiguous part of it, in place, and write their results there. So leave it unchanged
        while a call that uses it is in flight. `shape` is an int or a tuple of ints, and `dtype`
        any that tensors can have; arrays of bools are copied nonetheless.

        It is an ordinary array if no memory can be shared, or none is left, or if it is smaller
        than a page; in all other respects it behaves like an ordinary array, also after ``close``.
        Its memory is freed when the last view of it is collected. Raises WireError for a dtype that
        tensors cannot have, and ValueError for a negative dimension.
        """
        return self._memory.empty(shape, dtype)

    def __reduce__(self) -> NoReturn:
        """Raise TypeError."""
        raise TypeError(
            f"a {type(self).__name__} can be neither pickled nor copied: it is the connection of "
            "this process; another one opens its own, with connect()"
        )

    def __repr__(self) -> str:
        state = "closed" if self._connection.is_closed else "open"
        return f"<opdispatch_client.{type(self).__name__} {self.address} [{state}]>"

    def _introduced(self, info: ServerInfo) -> ServerInfo:
        """Store the daemon's reply to the handshake, and apply its message limit."""
        self._connection.limit = self._endpoint.message_limit(info)
        self._server_info = info
        return info
