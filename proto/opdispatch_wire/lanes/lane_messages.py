"""The handshake of a local lane, and its errors."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import NoReturn

from google.rpc import status_pb2

from opdispatch_wire.errors import WireError
from opdispatch_wire.lanes.frame_kind import FrameKind
from opdispatch_wire.lanes.frames import Frame
from opdispatch_wire.message_size import parse_message
from opdispatch_wire.protocol_version import PROTOCOL_VERSION, SAME_VERSION_HINT, describe_mismatch
from opdispatch_wire.status import error_from_status, status_from_error
from opdispatch_wire.v1 import lane_pb2

HANDSHAKE_TIMEOUT = 5.0
"""Seconds that either side may take to send its first frame."""
# In characters, of up to four bytes each, to fit in a frame of MAX_CONTROL_BYTES.
_SCHEMAS_AT_MOST = 8 * 1024


def patience_until(deadline: float | None) -> float:
    """Return how many seconds a handshake may take; 0 if ``deadline`` has passed.

    ``deadline`` is a time of ``time.monotonic``, or None.
    """
    if deadline is None:
        return HANDSHAKE_TIMEOUT
    return max(min(deadline - time.monotonic(), HANDSHAKE_TIMEOUT), 0.0)


class LaneClosedError(ConnectionError):
    """A lane ended before the reply came. Internal: callers convert it to an OpdispatchError.

    ``was_sent`` tells whether the call may have reached the other side.
    """

    def __init__(self, why: str, *, was_sent: bool = True) -> None:
        super().__init__(why)
        self.was_sent = was_sent
        self.call = 0
        """The id of the call, if the lane assigned it; otherwise 0."""


class NotAdmittedError(LaneClosedError):
    """The other side refused the connection: it requires a ticket, or another one."""


class InterpreterBusyError(LaneClosedError):
    """A direct call was given up, because it moves to another interpreter."""

    def __init__(self) -> None:
        super().__init__("the interpreter is busy")


def hello(max_message_bytes: int, *, max_call_bytes: int = 0, shares_memory: bool = False) -> bytes:
    """Return the payload of HELLO."""
    message = lane_pb2.LaneHello(
        protocol_version=PROTOCOL_VERSION,
        max_message_bytes=max_message_bytes,
        max_call_bytes=max_call_bytes,
        shares_memory=shares_memory,
    )
    return message.SerializeToString()


def welcome(
    max_message_bytes: int,
    lane: int = 0,
    *,
    max_call_bytes: int = 0,
    shares_memory: bool = False,
    schemas: Sequence[str] = (),
) -> bytes:
    """Return the payload of WELCOME for the connection with the number ``lane``.

    ``schemas`` are left out if they are too long for the frame.
    """
    fits = sum(map(len, schemas)) <= _SCHEMAS_AT_MOST
    return lane_pb2.LaneWelcome(
        protocol_version=PROTOCOL_VERSION,
        max_message_bytes=max_message_bytes,
        max_call_bytes=max_call_bytes,
        lane=lane,
        shares_memory=shares_memory,
        schemas=schemas if fits else (),
    ).SerializeToString()


def refusal(error: BaseException) -> bytes:
    """Return the payload of REFUSAL."""
    payload: bytes = status_from_error(error).SerializeToString()
    return payload


def read_hello(frame: Frame) -> lane_pb2.LaneHello:
    """Parse the peer's first frame. Raises WireError unless it is a HELLO of our version."""
    kind, payload = frame
    if kind is not FrameKind.HELLO:
        raise WireError(f"the lane began with a {kind.name} frame; expected HELLO")
    message = lane_pb2.LaneHello()
    parse_message(message, payload)
    _check_version(message.protocol_version)
    return message


def read_welcome(frame: Frame) -> lane_pb2.LaneWelcome:
    """Parse the answer to a HELLO. Raises the error of a REFUSAL, and WireError."""
    kind, payload = frame
    if kind is FrameKind.REFUSAL:
        raise refusal_error(payload)
    if kind is not FrameKind.WELCOME:
        raise WireError(f"the lane answered HELLO with a {kind.name} frame; expected WELCOME")
    message = lane_pb2.LaneWelcome()
    parse_message(message, payload)
    _check_version(message.protocol_version)
    return message


def refuse_frame(kind: FrameKind, payload: bytes | memoryview) -> NoReturn:
    """Raise WireError for a frame received in place of a reply, with the reason of a REFUSAL."""
    if kind is FrameKind.REFUSAL:
        raise WireError(str(refusal_error(payload)))
    raise WireError(f"received a {kind.name} frame; expected REPLY")


def refusal_error(payload: bytes | memoryview) -> Exception:
    """Return the error in a REFUSAL; a WireError if that is malformed."""
    status = status_pb2.Status()
    try:
        parse_message(status, payload)
    except WireError as error:
        return error
    return error_from_status(status)


def _check_version(version: int) -> None:
    if version != PROTOCOL_VERSION:
        raise WireError(
            describe_mismatch(version, "the other side of the lane", "this one"),
            hint=SAME_VERSION_HINT,
        )
