"""Planned requests: written by the caller, relayed by the daemon, read by the callee. No I/O.

See Note [Constant bytes].
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from operator import call
from typing import Any, Final

import numpy as np
from google.protobuf.message import DecodeError

from opdispatch_wire.errors import WireError
from opdispatch_wire.planned_calls import (
    ID,
    LONGEST,
    LONGEST_ID,
    alternating,
    shared_parts,
    shared_places,
    size_of,
)
from opdispatch_wire.protobuf_fields import LENGTH_DELIMITED, Field, field_tag, read_fields, varint
from opdispatch_wire.remote_values import PREFIX_BYTES, SESSION_BYTES
from opdispatch_wire.shared_leaves import ReadableMemory, read_shared
from opdispatch_wire.v1 import execution_pb2, remote_pb2
from opdispatch_wire.variable_parts import (
    Encode,
    IrregularError,
    Part,
    Pieces,
    Place,
    find_parts,
    joined,
    nested,
    split_value,
)

PLAIN_FIELDS: Final = frozenset(
    {"id", "operator", "args", "kwargs", "kernel", "retry", "timeout", "route_epoch"}
    | {"constant_bytes", "keep", "chunks_reply"}
)
"""Fields that a planned request may have."""

_REQUEST = execution_pb2.CallRequest
_ARGUMENT = field_tag(_REQUEST.ARGS_FIELD_NUMBER, LENGTH_DELIMITED)
_KEYWORD = field_tag(_REQUEST.KWARGS_FIELD_NUMBER, LENGTH_DELIMITED)
# Protobuf encodes a map entry as a message with the key in field 1 and the value in field 2.
_NAME, _NAMED = field_tag(1, LENGTH_DELIMITED), field_tag(2, LENGTH_DELIMITED)
_KEEP = field_tag(_REQUEST.KEEP_FIELD_NUMBER, LENGTH_DELIMITED)
_PREFIX = field_tag(remote_pb2.Keep.PREFIX_FIELD_NUMBER, LENGTH_DELIMITED)
_TIMEOUT = field_tag(_REQUEST.TIMEOUT_FIELD_NUMBER, 1)
_CONSTANT = field_tag(_REQUEST.CONSTANT_BYTES_FIELD_NUMBER, 5)
_SECONDS = struct.Struct(f"<{len(_TIMEOUT)}sd")
_SECONDS_AND_ID = struct.Struct(f"{_SECONDS.format}{len(ID)}s")
_ARGUMENTS = (_REQUEST.ARGS_FIELD_NUMBER, _REQUEST.KWARGS_FIELD_NUMBER)
_BESIDE_ARGUMENTS = (_REQUEST.KEEP_FIELD_NUMBER, _REQUEST.PATH_FIELD_NUMBER)
RUN_BYTES: Final = 16
"""Length of a run number in a planned request."""
_RUN = field_tag(execution_pb2.CallPath.RUN_FIELD_NUMBER, LENGTH_DELIMITED) + varint(RUN_BYTES)
_PATH = field_tag(_REQUEST.PATH_FIELD_NUMBER, LENGTH_DELIMITED) + varint(len(_RUN) + RUN_BYTES)
COUNT: Final = struct.Struct(f"<{len(_CONSTANT)}sI")
"""Tag and value of CallRequest.constant_bytes, the first field of a planned request."""

MOST_LEAVES: Final = 64
"""Most leaves of a planned request."""
MOST_CONSTANT_BYTES: Final = 4096
"""Most bytes of a planned request outside its leaves."""

Received = tuple[int, float | None, list[Any]]
"""A request's id, its timeout in seconds, and its leaves. Arrays are read-only copies.

The leaf of a tensor in shared memory is a ``SharedMemory`` message: see ``RequestLayout.shared``.
"""


class RequestForm:
    """Writes planned requests with the same layout, for the caller. Immutable."""

    __slots__ = ("_encoders", "_pieces", "shared", "size")

    def __init__(
        self,
        constants: tuple[bytes, ...],
        encoders: tuple[Encode, ...],
        size: int,
        shared: tuple[tuple[int, np.dtype[Any]], ...] = (),
    ) -> None:
        # The constants, and b"" in the place of each leaf.
        self._pieces = [part for constant in constants for part in (constant, b"")][:-1]
        self._encoders = encoders
        self.size = size
        """An upper bound of the size of a request in bytes."""
        self.shared = shared
        """Number and element dtype of each leaf that is written as a SharedPlace."""

    @classmethod
    def of(
        cls,
        request: execution_pb2.CallRequest,
        args: Sequence[Any],
        kwargs: Mapping[str, Any] | None = None,
        limit: int = LONGEST,
        *,
        inline: bool = False,
    ) -> RequestForm | None:
        """Return the form of requests like ``request``, which was made of ``args`` and ``kwargs``.

        Each argument must be one that ``take_value`` accepts. The prefix of kept results is one
        more leaf. Return None if ``request`` has a field that belongs to a single call, such as a
        traceparent, has a value without a form, or would exceed ``limit`` bytes.

        With ``inline``, tensors that ``request`` has in shared memory are inline in the form.
        """
        if {field.name for field, _ in request.ListFields()} - PLAIN_FIELDS:
            return None
        head = execution_pb2.CallRequest()
        head.CopyFrom(request)
        for name in ("id", "timeout", "args", "kwargs", "constant_bytes", "keep"):
            head.ClearField(name)
        pieces: Pieces = [head.SerializeToString()]
        try:
            for message, value in zip(request.args, args, strict=True):
                pieces += nested(_ARGUMENT, split_value(message, value, inline=inline))
            for name, value in (kwargs or {}).items():
                text = name.encode()
                entry = nested(_NAMED, split_value(request.kwargs[name], value, inline=inline))
                pieces += nested(_KEYWORD, [_NAME + varint(len(text)) + text, *entry])
            if request.HasField("keep"):
                pieces += nested(_KEEP, _split_keep(request.keep))
        except IrregularError:
            return None
        size = COUNT.size + size_of(pieces) + _SECONDS.size
        if size > limit:
            return None
        constants, encoders = joined(pieces)
        first = COUNT.pack(_CONSTANT, COUNT.size + len(constants[0])) + constants[0]
        return cls((first, *constants[1:]), encoders, size, shared_parts(pieces))

    def write(self, leaves: Sequence[Any], timeout: float | None, number: int) -> bytes:
        """Return the request with the id ``number`` and those leaves; ``timeout`` in seconds."""
        pieces: list[Any] = self._pieces.copy()
        pieces[1::2] = map(call, self._encoders, leaves)
        pieces.append(_end_of(timeout, number))
        return b"".join(pieces)


def _end_of(timeout: float | None, number: int) -> bytearray:
    """Return the fields that end each request: the timeout, if any, and the id."""
    last = bytearray(ID if timeout is None else _SECONDS_AND_ID.pack(_TIMEOUT, timeout, ID))
    while number > 0x7F:  # a varint
        last.append(number & 0x7F | 0x80)
        number >>= 7
    last.append(number)
    return last


class RelayForm:
    """Rewrites planned requests for the daemon to relay: replaces everything but the arguments.

        constant_bytes, head | arguments and keep, as received | run | timeout | id

    The leaves are those of the layout, and one more at the end, the run number. Immutable.
    """

    __slots__ = ("_end", "_first", "_start")

    def __init__(self, layout: RequestLayout, head: execution_pb2.CallRequest) -> None:
        """Take the fields before the arguments from ``head``: operator, kernel and the like."""
        self._start, self._end = layout.arguments
        message = head.SerializeToString()
        count = COUNT.size + len(message) + max(len(layout.constant) - self._start, 0)
        self._first = COUNT.pack(_CONSTANT, count) + message

    def write(self, payload: bytes, run: int, timeout: float | None, number: int) -> bytes:
        """Return the request to relay, with the id ``number``.

        ``payload`` is the received request, which must have the layout; ``timeout`` in seconds.
        """
        parts = (self._first, payload[self._start : self._end], _PATH, _RUN)
        return b"".join((*parts, run.to_bytes(RUN_BYTES), _end_of(timeout, number)))


def constant_bytes_of(payload: bytes | memoryview) -> bytes:
    """Return the leading constant bytes of a request; empty if it does not declare any."""
    if type(payload) is not bytes or not COUNT.size < len(payload) <= LONGEST:
        return b""
    tag, count = COUNT.unpack_from(payload)
    return payload[:count] if tag == _CONSTANT else b""


class RequestLayout:
    """Reads planned requests with the same layout, for the callee. Immutable."""

    __slots__ = (
        "_constants",
        "_decoders",
        "_end",
        "_unpack",
        "args",
        "arguments",
        "constant",
        "has_run",
        "keeps_for",
        "kwargs",
        "longest",
        "remote",
        "shared",
    )

    def __init__(
        self,
        constant: bytes,
        places: Sequence[Place],
        constants: tuple[bytes, ...],
        sizes: tuple[int, ...],
        end: int,
        args: list[Any],
        kwargs: dict[str, Any],
        keeps_for: bytes = b"",
        *,
        start: int = 0,
        has_run: bool = False,
    ) -> None:
        self.arguments = start, end
        """Start and end of the arguments, with the fields between them and the timeout."""
        self.has_run = has_run
        """Whether the last leaf is a run number, which only the daemon sends."""
        self.constant = constant
        """The constant bytes, as ``constant_bytes_of`` returns them."""
        self._decoders = [each.decode for each in places]
        self.shared = shared_places(places)
        """Number and facts of each leaf whose elements are in shared memory."""
        self.remote = [(i, p.remote.session) for i, p in enumerate(places) if p.remote is not None]
        """Number and session of each leaf that is the id of a remote tensor."""
        self.longest = max((each.end - each.start for each in places), default=0)
        """Size in bytes of the longest leaf."""
        self.keeps_for = keeps_for
        """The session that keeps the results; the last leaf is the prefix of their ids."""
        self._constants = constants
        parts = [f"{len(c)}s{size}s" for c, size in zip(constants, (*sizes, 0), strict=True)]
        # Constants and leaves alternate, followed by an empty piece.
        self._unpack = struct.Struct("".join(("<", *parts))).unpack_from
        self._end = end
        self.args = args
        """Templates of the positional arguments: see ``filled``."""
        self.kwargs = kwargs
        """Templates of the keyword arguments."""

    @classmethod
    def of(cls, payload: bytes, request: execution_pb2.CallRequest) -> RequestLayout | None:
        """Return the layout of a request of plain values; None for any other."""
        view, last = memoryview(payload), len(payload)
        places: list[Place] = []
        args: list[Any] = []
        kwargs: dict[str, Any] = {}
        keeps_for, has_run, first = b"", False, last
        try:
            fields = list(read_fields(view, 0, len(payload)))
            if not fields or fields.pop().number != _REQUEST.ID_FIELD_NUMBER:
                return None
            if fields and fields[-1].number == _REQUEST.TIMEOUT_FIELD_NUMBER:
                fields.pop()
            first = last = fields[-1].end if fields else 0
            values = iter(request.args)
            for field in fields:
                if field.number in (_REQUEST.ID_FIELD_NUMBER, _REQUEST.TIMEOUT_FIELD_NUMBER):
                    return None
                if field.number in _ARGUMENTS:
                    first = min(first, field.start)
                    if keeps_for or has_run:
                        return None
                elif first < last and field.number not in _BESIDE_ARGUMENTS:
                    return None  # RelayForm would copy the field along with the arguments
                if field.number == _REQUEST.PATH_FIELD_NUMBER:
                    run = _find_run(view, field)
                    has_run = run is not None
                    places += [run] if run is not None else []
                if field.number == _REQUEST.KEEP_FIELD_NUMBER:
                    keeps_for = request.keep.session
                    places.append(_find_prefix(view, field, request.keep))
                if field.number == _REQUEST.ARGS_FIELD_NUMBER:
                    args.append(find_parts(view, field, next(values), places))
                elif field.number == _REQUEST.KWARGS_FIELD_NUMBER:
                    key, value = read_fields(view, field.body, field.end)
                    name = bytes(view[key.body : key.end]).decode()
                    if (key.number, value.number) != (1, 2) or name not in request.kwargs:
                        return None
                    kwargs[name] = find_parts(view, value, request.kwargs[name], places)
        except (WireError, IrregularError, StopIteration, ValueError):
            return None
        count = request.constant_bytes
        if not COUNT.size <= count <= last or len(kwargs) != len(request.kwargs):
            return None
        if any(place.start < count for place in places if place.end > place.start):
            return None
        constants, sizes = alternating(payload, places, count, last)
        constant_bytes = count + sum(map(len, constants))
        if len(places) > MOST_LEAVES or constant_bytes > MOST_CONSTANT_BYTES:
            return None  # plan tables bound the number of layouts, this bounds the size of each
        return cls(
            payload[:count],
            places,
            constants,
            sizes,
            last,
            args,
            kwargs,
            keeps_for,
            start=first,
            has_run=has_run,
        )

    def read(self, payload: bytes) -> Received | None:
        """Return the variable parts of a request; None if it has another layout.

        Its first constant bytes must be those of this layout: they are not compared again.
        """
        last = payload[self._end :]
        timeout = None
        if last[:1] == _TIMEOUT and len(last) > _SECONDS.size:
            timeout = _SECONDS.unpack_from(last)[1]
            last = last[_SECONDS.size :]
        if not 1 < len(last) < LONGEST_ID or last[:1] != ID or last[-1] > 0x7F:
            return None
        number = last[-1]
        for byte in last[-2:0:-1]:  # a varint
            if byte < 0x80:
                return None
            number = number << 7 | byte & 0x7F
        # Copies, for their alignment.
        pieces = self._unpack(payload, len(self.constant))
        if pieces[::2] != self._constants:
            return None
        try:
            return number, timeout, [*map(call, self._decoders, pieces[1::2])]
        except (ValueError, DecodeError):
            return None

    def filled_with_blanks(self, leaves: list[Any]) -> list[Any]:
        """Return the leaves of a request with blank tensors for those in shared memory."""
        blank = leaves.copy()
        for number, facts in self.shared:
            blank[number] = facts.blank()
        return blank

    def filled_with(self, leaves: list[Any], memory: ReadableMemory) -> list[Any]:
        """Return the leaves of a request with the tensors in shared memory read.

        Raises WireError if a leaf refers to memory that does not exist.
        """
        read = leaves.copy()
        for number, facts in self.shared:
            read[number] = read_shared(memory, leaves[number], facts, writable=False)
        return read


def _split_keep(keep: remote_pb2.Keep) -> Pieces:
    """Return the bytes of a Keep message, with a Part for its prefix."""
    if keep.on or keep.device or not keep.session:
        raise IrregularError
    session = remote_pb2.Keep(session=keep.session).SerializeToString()
    size = len(keep.prefix)
    return [session + _PREFIX + varint(size), Part(size, bytes)]


def _find_prefix(view: memoryview, field: Field, keep: remote_pb2.Keep) -> Place:
    fields = read_fields(view, field.body, field.end)
    found = [each for each in fields if each.number == remote_pb2.Keep.PREFIX_FIELD_NUMBER]
    if len(found) != 1 or len(keep.prefix) != PREFIX_BYTES or len(keep.session) != SESSION_BYTES:
        raise IrregularError
    if keep.on or keep.device:
        raise IrregularError
    return Place(found[0].body, found[0].end, bytes)


def _find_run(view: memoryview, field: Field) -> Place | None:
    """Return the place of the run number in a path with no other field; else None."""
    inner = list(read_fields(view, field.body, field.end))
    if [each.number for each in inner] != [execution_pb2.CallPath.RUN_FIELD_NUMBER]:
        return None
    [run] = inner
    return Place(run.body, run.end, int.from_bytes) if run.end - run.body == RUN_BYTES else None
