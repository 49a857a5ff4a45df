"""A call out of the bytes that came, unless it has more parts than a call may have.

Protobuf makes an object of each part, and no other thread runs meanwhile; the router of the call
looks at each of them. So they are counted before: a glance at the bytes is enough for that.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import NamedTuple

from opdispatch_wire.channel import parse_message
from opdispatch_wire.chunks import BESIDE_BYTES, CHUNK_BYTES
from opdispatch_wire.detached_tensors import (
    CALL_REQUEST,
    MessagePieces,
    detach_in_place,
    text_bytes,
)
from opdispatch_wire.errors import WireError
from opdispatch_wire.nesting import MAX_VALUES, VALUES_HINT, too_many_values
from opdispatch_wire.protobuf_fields import FieldLimit, read_fields
from opdispatch_wire.v1 import execution_pb2

MAX_ARGUMENTS = 10_000
"""How many arguments a call may have, and how many inputs a program."""
MAX_VALUES_BYTES = 4 << 20
"""Limit of the bytes of a call besides texts and the data of tensors and packed numbers."""

# A shorter text, and the data of a shorter tensor, count, too: to look for them takes longer than
# to pass them on.
_LEAST_BYTES = 1024
# Among the first fields of a call is its id.
_FIRST_FIELDS = 8
_ID = execution_pb2.CallRequest.ID_FIELD_NUMBER


class ReceivedCall(NamedTuple):
    """A call, and its large tensors, which stay where they are; of one that is refused, its id."""

    request: execution_pb2.CallRequest
    arguments: Sequence[memoryview] = ()
    refusal: WireError | None = None


def read_call(payload: bytes | memoryview, *, detaches: bool = True) -> ReceivedCall:
    """Return the call in a message. Raises WireError if it is malformed.

    Unless it ``detaches`` them, large tensors are inline: protobuf copies these.
    """
    request = execution_pb2.CallRequest()
    arguments: Sequence[memoryview] = ()
    if len(payload) > BESIDE_BYTES:
        try:
            _check_arguments(payload)
            if len(payload) > CHUNK_BYTES:
                small, arguments = _detached(payload)
                payload, arguments = (small, arguments) if detaches else (payload, ())
        except _TooManyError as error:
            return ReceivedCall(_only_id(payload), (), WireError(str(error), hint=VALUES_HINT))
    parse_message(request, payload)
    return ReceivedCall(request, arguments)


class _TooManyError(Exception):
    pass


def _detached(payload: bytes | memoryview) -> tuple[bytes, list[memoryview]]:
    pieces, arguments = _in_pieces(payload, BESIDE_BYTES)
    if len(pieces) > MAX_VALUES_BYTES:
        shorter, _ = _in_pieces(payload, _LEAST_BYTES)
        texts = text_bytes(payload, CALL_REQUEST, _LEAST_BYTES)
        size = len(shorter) - texts - _program_bytes(payload)
        if size > MAX_VALUES_BYTES:
            raise _TooManyError(
                f"the call has {size} bytes beside its tensors and texts; the limit is "
                f"{MAX_VALUES_BYTES}"
            )
    return b"".join(pieces.parts), arguments


def _in_pieces(
    payload: bytes | memoryview, threshold: int
) -> tuple[MessagePieces, list[memoryview]]:
    limit = FieldLimit(MAX_VALUES, _TooManyError(too_many_values()))
    return detach_in_place(payload, CALL_REQUEST, threshold, limit=limit)


def _check_arguments(payload: bytes | memoryview) -> None:
    message = f"the call has more than {MAX_ARGUMENTS} arguments and other parts"
    limit = FieldLimit(MAX_ARGUMENTS, _TooManyError(message))
    for _ in read_fields(memoryview(payload), 0, len(payload), limit=limit):
        pass


def _program_bytes(payload: bytes | memoryview) -> int:
    """Return the length of the program, which has a limit of its own."""
    number = execution_pb2.CallRequest.PROGRAM_FIELD_NUMBER
    fields = read_fields(memoryview(payload), 0, len(payload))
    return sum(field.end - field.start for field in fields if field.number == number)


def _only_id(payload: bytes | memoryview) -> execution_pb2.CallRequest:
    request = execution_pb2.CallRequest()
    view = memoryview(payload)
    for field in islice(read_fields(view, 0, len(view)), _FIRST_FIELDS):
        if field.number == _ID:
            parse_message(request, view[field.start : field.end])
            break
    return request
