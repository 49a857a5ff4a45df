"""Common state of both kinds of sessions, and methods that need no daemon."""

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
    """A session's daemon, and its memory."""

    _connection: ConnectionBase
    _endpoint: Endpoint
    _memory: SessionMemory
    _server_info: ServerInfo

    @property
    def address(self) -> str:
        """Where the daemon listens."""
        return self._endpoint.address

    @property
    def timeout(self) -> float | None:
        """Seconds that one request may take; None: any time."""
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

    def empty(self, shape: Shape, dtype: DTypeLike = np.float64) -> np.ndarray[Any, Any]:
        """Return an uninitialized array like ``numpy.empty`` that calls need not copy.

        It lies in memory that the session shares with the interpreters which it calls directly;
        they read it, or a contiguous part of it, where it is, and write there what their operators
        write. So let it be while a call that has it is under way. `shape` is an int or a tuple
        of them, and `dtype` any that tensors can have; arrays of bools are copied all the same.

        It is an ordinary array where no memory can be shared, or none is left, or if it is
        smaller than a page; any other use of it is an ordinary array's, also after ``close``. Its
        memory is free again when the last view of it is collected. Raises WireError for a
        dtype that tensors cannot have, and ValueError for a negative dimension.
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
        """Keep what the daemon says of itself; its message limit counts from now on."""
        self._connection.limit = self._endpoint.message_limit(info)
        self._server_info = info
        return info
