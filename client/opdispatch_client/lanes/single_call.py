"""One call over the daemon's local lane, for a process that makes only one.

A session requests the lane's path and the daemon's version over gRPC. Here, the path is read from a
file next to the daemon's socket, and the version from the lane's handshake, so neither gRPC nor the
dispatcher needs to be imported.
"""

from __future__ import annotations

import contextlib
import os
import socket
import stat
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from opdispatch_wire.lanes.frame_kind import HEADER, FrameKind, frame_header
from opdispatch_wire.protocol_version import PROTOCOL_VERSION, describe_mismatch
from opdispatch_wire.socket_owner import is_trusted, peer_of
from opdispatch_wire.v1 import execution_pb2, lane_pb2

_HIGHEST = 2**31 - 1
_LONGEST_PATH = 4096


class SingleCall:
    """A lane for one call, and the schemas of its operator."""

    def __init__(self, connection: socket.socket, deadline: float | None) -> None:
        self._connection = connection
        self._deadline = deadline
        self.schemas: Sequence[str] = ()
        """The schemas of all overloads that the operator's name may refer to."""

    @classmethod
    def open(cls, path: str, operator: str, timeout: float | None) -> Self:
        """Connect to the daemon that listens at the unix socket ``path``.

        The connection and the call together may take ``timeout`` seconds. Raises OSError or
        ValueError if the daemon has no usable lane, or its handshake is not as expected.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        call = cls(connection, deadline)
        try:
            call._be_in_time()
            connection.connect(_find_lane(f"{path}.lock"))
            _, user = peer_of(connection)
            if not is_trusted(user):
                raise ValueError(f"the lane belongs to user {user}; expected this user or root")
            call._shake_hands(operator)
        except BaseException:
            call.close()
            raise
        return call

    def make(self, request: execution_pb2.CallRequest) -> execution_pb2.CallReply:
        """Send the call and return the reply.

        Raises TimeoutError at the deadline, any other OSError if the lane ends, and ValueError for
        a malformed reply.
        """
        request.id = 1
        if self._deadline is not None:
            request.timeout = max(self._deadline - time.monotonic(), 0.0)
        self._write(FrameKind.CALL, request.SerializeToString())
        reply = execution_pb2.CallReply.FromString(self._read(FrameKind.REPLY))
        if reply.id != request.id:
            raise ValueError(f"the daemon replied to call {reply.id}; expected {request.id}")
        return reply

    def close(self) -> None:
        """Close the lane; the daemon cancels a call that has not been answered. Idempotent."""
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _shake_hands(self, operator: str) -> None:
        hello = lane_pb2.LaneHello(
            protocol_version=PROTOCOL_VERSION, max_call_bytes=_HIGHEST, operator=operator
        )
        self._write(FrameKind.HELLO, hello.SerializeToString())
        welcome = lane_pb2.LaneWelcome.FromString(self._read(FrameKind.WELCOME))
        if welcome.protocol_version != PROTOCOL_VERSION:
            raise ValueError(
                describe_mismatch(welcome.protocol_version, "the daemon", "this client")
            )
        self.schemas = welcome.schemas

    def _write(self, kind: FrameKind, payload: bytes) -> None:
        self._be_in_time()
        self._connection.sendall(frame_header(kind, len(payload)) + payload)

    def _read(self, expected: FrameKind) -> bytes:
        size, kind, _ = HEADER.unpack(self._receive(HEADER.size))
        if kind != expected:
            raise ValueError(f"the daemon sent a frame of kind {kind}; expected {int(expected)}")
        return bytes(self._receive(size))

    def _receive(self, size: int) -> bytearray:
        received = bytearray(size)
        rest = memoryview(received)
        while rest:
            self._be_in_time()
            count = self._connection.recv_into(rest)
            if not count:
                raise ConnectionError("the daemon has closed the lane")
            rest = rest[count:]
        return received

    def _be_in_time(self) -> None:
        if self._deadline is not None:
            left = self._deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError
            self._connection.settimeout(left)


def _find_lane(file: str) -> str:
    """Return the path of the lane, from a file that the daemon has written.

    Raises OSError, and ValueError if the file is not our own user's or root's, or has no path.
    """
    descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    with contextlib.closing(os.fdopen(descriptor, "rb")) as opened:
        facts = os.fstat(descriptor)
        if not stat.S_ISREG(facts.st_mode) or not is_trusted(facts.st_uid):
            raise ValueError(f"{file} may have been written by another user")
        path = Path(opened.read(_LONGEST_PATH).decode().rstrip("\n"))
    if not path.is_absolute():
        raise ValueError(f"{file} does not have an absolute path")
    return str(path)
