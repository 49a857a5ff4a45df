"""The limit on the size of messages, and its checks by the sender.

gRPC checks it, too, on both sides: see ``channel``. Its errors do not say which message it was.
"""

from __future__ import annotations

from google.protobuf.message import DecodeError, EncodeError, Message

from opdispatch_wire.errors import MessageTooLargeError, WireError

MAX_MESSAGE_BYTES_DEFAULT = 64 * 1024 * 1024
MAX_MESSAGE_BYTES_HIGHEST = 2**31 - 1
"""Protobuf's own limit, which no setting can raise."""

MAX_MESSAGE_BYTES_KEY = "opdispatch-max-message-bytes"
"""The metadata key of a stream of calls for the longest reply that its client accepts."""

RAISE_LIMIT_HINT = (
    "raise the limit on both sides: `opdispatch serve --max-message-bytes N`, or "
    "OPDISPATCH_MAX_MESSAGE_BYTES, for the daemon, and `connect(max_message_bytes=N)` for the "
    "client"
)
RAISE_CALL_LIMIT_HINT = "raise the limit: `opdispatch serve --max-call-bytes N`"


def check_message_size(message: Message, limit: int, what: str) -> None:
    """Raise MessageTooLargeError if ``message``, called ``what``, has more than ``limit`` bytes.

    The sender checks, because gRPC's own error says neither which message it is nor what to do.
    Computing the size costs as much as serializing.
    """
    serialize_message(message, limit, what)


def serialize_message(message: Message, limit: int, what: str) -> bytes:
    """Serialize ``message``. Raises MessageTooLargeError as ``check_message_size`` does.

    For a gRPC method without a serializer of its own, so that the message is serialized once.
    """
    try:
        data = message.SerializeToString()
    except EncodeError as exc:  # beyond protobuf's own limit
        raise MessageTooLargeError(
            f"{what} has more than {MAX_MESSAGE_BYTES_HIGHEST} bytes, which no message can have",
            limit=str(MAX_MESSAGE_BYTES_HIGHEST),
        ) from exc
    if len(data) > limit:
        check_size(len(data), limit, what)
    return data


def parse_message(message: Message, payload: bytes | memoryview) -> Message:
    """Parse the payload of a lane's frame into ``message``. Raises WireError."""
    try:
        # protobuf accepts a bytearray without copying; only the stubs require bytes.
        message.ParseFromString(payload)  # type: ignore[arg-type]
    except DecodeError as error:
        raise WireError(f"a frame is not a valid {type(message).__name__}: {error}") from error
    return message


def check_size(size: int, limit: int, what: str, hint: str = RAISE_LIMIT_HINT) -> None:
    """Raise MessageTooLargeError if ``size`` is over the limit; ``hint`` says how to raise it."""
    if size > limit:
        raise MessageTooLargeError(
            f"{what} has {size} bytes, and the limit is {limit} bytes",
            hint=hint,
            size=str(size),
            limit=str(limit),
        )
