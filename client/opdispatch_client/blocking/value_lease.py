"""The lease of a blocking session: a stream whose requests a gRPC thread sends."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Iterator
from typing import Any

import grpc

from opdispatch.errors import OpdispatchError
from opdispatch_client.endpoint import Endpoint
from opdispatch_client.value_lease import (
    RELEASED_AT_ONCE,
    Lease,
    hold_values,
    no_values_error,
    silent_daemon_error,
    why_over,
)
from opdispatch_wire.status import error_from_rpc
from opdispatch_wire.v1 import remote_pb2

# Releases within this time, in seconds, are sent together.
_GATHERING = 0.02


class ValueLease:
    """The lease of a blocking session, opened on first use.

    ``_mutex`` protects ``current``, ``_stream`` and ``_is_closed``: at most one stream is open, and
    ``current`` is its lease.
    """

    def __init__(self, channel: grpc.Channel, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._is_closed = False
        self._method = hold_values(channel)
        self._mutex = threading.Lock()
        self.current: Lease | None = None
        """The last opened lease, which may have ended."""
        self._stream: _Stream | None = None

    def get(self, timeout: float) -> Lease:
        """Return the lease; open it if necessary.

        Raises the daemon's error, and DaemonUnavailableError if the daemon does not answer in time,
        or after ``close``.
        """
        # before the mutex, which another thread may have held during the fork
        self._endpoint.check_process()
        with self._mutex:
            if self._is_closed:
                raise self._endpoint.closed_error()
            if self.current is not None and not self.current.why_over:
                return self.current
            self._stream = _Stream(self._method, self._endpoint.address)
            self.current = self._stream.open(timeout)
            return self.current

    def close(self) -> None:
        """End the stream; the daemon then releases all values. Idempotent."""
        with self._mutex:
            self._is_closed = True
            if self._stream is not None:
                self._stream.close()


class _Stream:
    """One stream, whose requests gRPC reads in a thread of its own."""

    def __init__(self, method: Any, address: str) -> None:
        self._address = address
        self._released: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._closing = threading.Event()
        self._opened = threading.Event()
        self._interval = 1.0
        self._lease: Lease | None = None
        self._error: OpdispatchError | None = None
        self._call = method(self._requests())

    def open(self, timeout: float) -> Lease:
        threading.Thread(target=self._read, name="value-lease", daemon=True).start()
        if not self._opened.wait(timeout):
            self.close()
            raise silent_daemon_error(self._address, timeout)
        if self._lease is None:
            assert self._error is not None, "the stream has ended without a word"
            raise self._error
        return self._lease

    def close(self) -> None:
        self._closing.set()
        self._released.put(b"")  # wakes the thread that waits there
        self._call.cancel()

    def _read(self) -> None:
        why = "the daemon has ended the stream"
        try:
            for reply in self._call:
                self._interval = max(reply.interval, 0.1)
                self._lease = Lease(reply.session, self._released.put)
                self._opened.set()
        except grpc.RpcError as error:
            self._error = error_from_rpc(error, address=self._address)
            why = why_over(self._error)
        if self._error is None:
            self._error = no_values_error(self._address)
        if self._lease is not None:
            self._lease.why_over = "the session is closed" if self._closing.is_set() else why
        self._closing.set()
        self._released.put(b"")
        self._opened.set()

    def _requests(self) -> Iterator[remote_pb2.HoldValuesRequest]:
        yield remote_pb2.HoldValuesRequest()
        while not self._closing.is_set():
            yield remote_pb2.HoldValuesRequest(release=self._collect())

    def _collect(self) -> list[bytes]:
        """Wait for released values and return their ids; an empty list after the interval."""
        try:
            ids = [self._released.get(timeout=self._interval)]
        except queue.Empty:
            return []
        self._closing.wait(_GATHERING)
        with contextlib.suppress(queue.Empty):
            while len(ids) < RELEASED_AT_ONCE:
                ids.append(self._released.get_nowait())
        return [number for number in ids if number]
