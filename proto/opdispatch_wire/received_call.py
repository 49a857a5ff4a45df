"""Parse received calls, and refuse those with too many parts before protobuf parses them.

Protobuf makes an object for each part while it holds the GIL, and the router looks at each of
them. So they are counted first, which needs only a scan of the bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import NamedTuple

from opdispatch_wire.chunks import BESIDE_BYTES, CHUNK_BYTES
from opdispatch_wire.detached_tensors import (
    CALL_REQUEST,
    MessagePieces,
    detach_in_place,
    text_bytes,
)
from opdispatch_wire.errors import WireError
from opdispatch_wire.message_size import parse_message
from opdispatch_wire.nesting_limits import MAX_VALUES, VALUES_HINT, too_many_values
from opdispatch_wire.protobuf_fields import FieldLimit, read_fields
from opdispatch_wire.v1 import execution_pb2

MAX_ARGUMENTS = 10_000
"""Most arguments of a call, and most inputs of a program."""
MAX_VALUES_BYTES = 4 << 20
"""Most bytes of a call outside its texts, its program and the data of tensors."""

# Shorter texts and tensors count towards the limit: finding them takes longer than passing them on.
_LEAST_BYTES = 1024
# The id of a call is among so many first fields.
_FIRST_FIELDS = 8
_ID = execution_pb2.CallRequest.ID_FIELD_NUMBER


class ReceivedCall(NamedTuple):
    """A parsed call, and views of the data of its large tensors, which are not copied.

    If the call is refused, ``request`` has only its id, to which the refusal can be sent.
    """

    request: execution_pb2.CallRequest
    arguments: Sequence[memoryview] = ()
    refusal: WireError | None = None


def read_call(payload: bytes | memoryview, *, detaches: bool = True) -> ReceivedCall:
    """Parse a call. Raises WireError if it is malformed.

    A call with too many parts is returned with a ``refusal`` instead. Without ``detaches``, the
    data of large tensors stays inline, and protobuf copies it.
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
                f"the call has {size} bytes besides its tensors and texts; the limit is "
                f"{MAX_VALUES_BYTES}"
            )
    return b"".join(pieces.parts), arguments


def _in_pieces(
    payload: bytes | memoryview, threshold: int
) -> tuple[MessagePieces, list[memoryview]]:
    limit = FieldLimit(MAX_VALUES, _TooManyError(too_many_values()))
    return detach_in_place(payload, CALL_REQUEST, threshold, limit=limit)


def _check_arguments(payload: bytes | memoryview) -> None:
    message = f"the call has more than {MAX_ARGUMENTS} arguments and other fields"
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
