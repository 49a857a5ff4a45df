"""The base of both kinds of connections: the channel's methods and the message limit."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic
from typing import Any

import grpc

from opdispatch_client.daemon_wait import DaemonWait
from opdispatch_client.endpoint import Endpoint
from opdispatch_client.library_upload import LibraryUpload, OnUpload
from opdispatch_client.rpcs import Load, Rpc
from opdispatch_wire.addresses import check_socket_owner
from opdispatch_wire.message_size import check_message_size


class ConnectionBase:
    """The methods of a channel, each created on first use.

    Unusable in a forked child: see Note [Sessions in forked children].
    """

    def __init__(self, endpoint: Endpoint) -> None:
        check_socket_owner(endpoint.address, endpoint.daemon_user)
        self.endpoint = endpoint
        self.limit = endpoint.max_message_bytes
        """Largest message in bytes that both sides accept."""
        self.is_closed = False
        self._methods: dict[str, Callable[..., Any]] = {}

    def begin_close(self) -> bool:
        """Reject requests from now on; return whether the caller must close the connection.

        Return False in a forked child, which must close nothing.
        """
        self.is_closed = True
        return self.endpoint.is_of_this_process

    def _check_open(self) -> None:
        if self.is_closed or not self.endpoint.is_of_this_process:
            raise self.endpoint.closed_error()

    def _wait_for_daemon(self, seconds: float | None, wait: float | None) -> DaemonWait:
        """Return the wait for a request that may take ``seconds``, or has a ``wait`` of its own."""
        if wait is not None:
            return DaemonWait(wait)
        return DaemonWait(self.endpoint.wait, None if seconds is None else monotonic() + seconds)

    def _method(self, rpc: Rpc[Any], make: Callable[..., Any]) -> Callable[..., Any]:
        """Return the method for a request, created by ``make``, which is one of the channel's.

        Raises DaemonUnavailableError after ``close``, or in a child of the session's process, and
        MessageTooLargeError.
        """
        self._check_open()
        check_message_size(rpc.request, self.limit, rpc.what)
        # Threads may race to create a method; either result will do.
        method = self._methods.get(rpc.path)
        if method is None:
            method = self._methods[rpc.path] = make(
                rpc.path,
                request_serializer=type(rpc.request).SerializeToString,
                response_deserializer=rpc.reply_type.FromString,
            )
        return method

    def _upload_over(
        self, channel: grpc.Channel, load: Load, on_upload: OnUpload | None
    ) -> LibraryUpload:
        """Return an upload.

        Raises DaemonUnavailableError after ``close``, or in a child of the session's process.
        """
        self._check_open()
        return LibraryUpload(
            channel,
            load,
            address=self.endpoint.address,
            timeout=self.endpoint.timeout,
            max_message_bytes=self.limit,
            on_upload=on_upload,
        )
