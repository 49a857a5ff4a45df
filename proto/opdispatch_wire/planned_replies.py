"""Planned replies: written by the callee, read by the caller. No I/O.

See Note [Constant bytes].
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from operator import call
from typing import Any, TypeAlias

import numpy as np
from google.protobuf.message import DecodeError

from opdispatch.boxing.named_results import make_results
from opdispatch.tensors.tensor import Tensor
from opdispatch_wire.errors import WireError
from opdispatch_wire.nesting_limits import ValueCount
from opdispatch_wire.planned_calls import (
    ID,
    LONGEST,
    alternating,
    shared_parts,
    shared_places,
    size_of,
)
from opdispatch_wire.protobuf_fields import LENGTH_DELIMITED, field_tag, read_fields, varint
from opdispatch_wire.shared_leaves import ReadableMemory, SharedPlace, read_shared
from opdispatch_wire.shared_memory.call_memory import THRESHOLD
from opdispatch_wire.tensor_bytes import count_bytes
from opdispatch_wire.v1 import execution_pb2, values_pb2
from opdispatch_wire.values import fill_value
from opdispatch_wire.variable_parts import (
    Encode,
    IrregularError,
    Leaf,
    Pieces,
    Place,
    filled,
    find_parts,
    joined,
    nested,
    split_value,
    take_value,
)

# Quoted, because a daemon imports NumPy late.
Array: TypeAlias = "np.ndarray[Any, Any]"

_REPLY = execution_pb2.CallReply
_RETURN = field_tag(_REPLY.RETURNS_FIELD_NUMBER, LENGTH_DELIMITED)

MakeKept = Callable[[values_pb2.RemoteTensor], Callable[[bytes], Any]]
"""Given a kept result, returns a function from an id to a remote value with the same facts."""

PlaceResult: TypeAlias = "Callable[[Any, np.dtype[Any]], SharedPlace | None]"
"""Copies a tensor into shared memory, converted to the dtype; None if there is no room."""


def reply_with_id(rest: bytes, number: int) -> bytes:
    """Return a reply with the id ``number``, followed by ``rest``."""
    return ID + varint(number) + rest


class ReplyForm:
    """Writes replies whose results have the same kinds, dtypes and shapes. Immutable.

    The constants include the name of the interpreter, so that a form belongs to one process.
    """

    __slots__ = ("_encoders", "_key", "_pieces", "shared", "tensor_bytes")

    def __init__(
        self,
        key: tuple[Any, ...],
        tensor_bytes: int,
        constants: tuple[bytes, ...],
        encoders: tuple[Encode, ...],
        shared: tuple[tuple[int, np.dtype[Any]], ...] = (),
    ) -> None:
        self._key = [*key]
        self.tensor_bytes = tensor_bytes
        """The size of all results, as ``count_bytes`` counts it."""
        # b"" in the place of the id, and of each leaf.
        self._pieces = [part for constant in constants for part in (b"", constant)]
        self._encoders = encoders
        self.shared = shared
        """Number and element dtype of each leaf that is placed in shared memory."""

    @classmethod
    def of(
        cls,
        returns: Sequence[Any],
        interpreter: str,
        names: tuple[str, ...] = (),
        *,
        shares: bool = False,
        limit: int = LONGEST,
    ) -> ReplyForm | None:
        """Return the form of replies with results like these.

        None if a result is not plain, or the reply would exceed ``limit`` bytes. With ``shares``,
        large results are placed in shared memory.
        """
        key: list[Any] = []
        leaves: list[Any] = []
        if not all(take_value(value, key, leaves) for value in returns):
            return None
        if not shares and sum(map(_size_of, leaves)) > limit:
            return None
        reply = execution_pb2.CallReply(interpreter=interpreter)
        pieces: Pieces = [reply.SerializeToString()]
        count, memory = ValueCount(), _LargeTensors() if shares else None
        try:
            for value in returns:
                message = reply.returns.add()
                fill_value(message, value, at="$", count=count, memory=memory)
                pieces += nested(_RETURN, split_value(message, value))
        except (WireError, IrregularError):
            return None
        if names:
            last = execution_pb2.CallReply()
            last.result_names.add(names=names)
            pieces.append(last.SerializeToString())
        if size_of(pieces) > limit:
            return None
        return cls(tuple(key), count_bytes(returns), *joined(pieces), shared_parts(pieces))

    def write(
        self, number: int, returns: Sequence[Any], place: PlaceResult | None = None
    ) -> bytes | None:
        """Return the reply to call ``number``; None if the results need another form.

        ``place`` copies the ``shared`` results into shared memory; None also if it has no room.
        """
        key: list[Any] = []
        leaves: list[Any] = []
        for value in returns:
            if type(value) is np.ndarray and value.size:  # ``take_value``, inlined
                key += (value.dtype, value.shape)
                leaves.append(value)
            elif not take_value(value, key, leaves):
                return None
        if key != self._key:
            return None
        for at, dtype in self.shared:
            placed = place(leaves[at], dtype) if place is not None else None
            if placed is None:
                return None
            leaves[at] = placed
        first = bytearray(ID)
        while number > 0x7F:  # a varint
            first.append(number & 0x7F | 0x80)
            number >>= 7
        first.append(number)
        pieces: list[Any] = self._pieces.copy()
        pieces[0] = first
        pieces[2::2] = map(call, self._encoders, leaves)
        return b"".join(pieces)


class _LargeTensors:
    """A ``TensorMemory`` that stores nothing: it marks the tensors that would be shared."""

    def place(
        self, message: values_pb2.Tensor, array: Array, dtype: np.dtype[Any], value: object
    ) -> bool:
        """Return whether the elements would be shared; if so, set their length in ``message``."""
        if array.nbytes < THRESHOLD:
            return False
        message.memory.length = array.nbytes
        return True

    def read(
        self,
        message: values_pb2.Tensor,
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
        *,
        writable: bool,
        at: str,
    ) -> Array:
        """Raise WireError: nothing was stored."""
        raise WireError(f"{at}.memory has no elements; expected a tensor in shared memory")


def _size_of(leaf: Any) -> int:
    """Return the size of a leaf in bytes; 0 for a number."""
    if type(leaf) is bytes:
        return len(leaf)
    array = leaf.array if type(leaf) is Tensor else leaf
    return array.nbytes if isinstance(array, np.ndarray) else 0


class ReplyLayout:
    """Reads replies with the same layout; offsets count from the end of the id. Immutable."""

    __slots__ = (
        "_constants",
        "_makers",
        "_names",
        "_places",
        "_size",
        "_templates",
        "_unpack",
        "interpreter",
        "shared",
    )

    def __init__(
        self,
        places: Sequence[Place],
        constants: tuple[bytes, ...],
        sizes: tuple[int, ...],
        size: int,
        templates: list[Any],
        names: tuple[str, ...],
        makers: Sequence[tuple[int, Callable[[bytes], Any]]] = (),
        interpreter: str = "",
    ) -> None:
        self.interpreter = interpreter
        """The name of the interpreter that ran the calls."""
        self._makers = makers
        self._places = [(each.start, each.decode) for each in places]
        self.shared = shared_places(places)
        """Number and facts of each leaf whose elements are in shared memory."""
        self._constants = constants
        parts = [f"{len(c)}s{size}x" for c, size in zip(constants, (*sizes, 0), strict=True)]
        self._unpack = struct.Struct("".join(("<", *parts))).unpack_from
        self._size = size
        self._templates = None if templates == [Leaf(0)] else templates
        self._names = names

    @classmethod
    def of(
        cls,
        payload: bytes | memoryview,
        reply: execution_pb2.CallReply,
        make_kept: MakeKept | None = None,
    ) -> ReplyLayout | None:
        """Return the layout of a parsed reply; None if a result is not plain."""
        usual = {"id", "returns", "interpreter", "result_names"}
        if {field.name for field, _ in reply.ListFields()} - usual:
            return None
        view, places = memoryview(payload), list[Place]()
        templates: list[Any] = []
        values = iter(reply.returns)
        try:
            fields = list(read_fields(view, 0, len(view)))
            if not fields or fields[0].number != _REPLY.ID_FIELD_NUMBER:
                return None
            for field in fields[1:]:
                if field.number == _REPLY.ID_FIELD_NUMBER:
                    return None
                if field.number == _REPLY.RETURNS_FIELD_NUMBER:
                    templates.append(find_parts(view, field, next(values), places))
        except (WireError, IrregularError, StopIteration):
            return None
        base = fields[0].end
        constants, sizes = alternating(view, places, base, len(view))
        names = tuple(reply.result_names[0].names) if reply.result_names else ()
        kept = [(i, each.remote) for i, each in enumerate(places) if each.remote is not None]
        if kept and make_kept is None:
            return None
        return cls(
            [p._replace(start=p.start - base, end=p.end - base) for p in places],
            constants,
            sizes,
            len(view) - base,
            templates,
            names if len(names) == len(templates) else (),
            [(i, make_kept(remote)) for i, remote in kept] if make_kept is not None else (),
            reply.interpreter,
        )

    def read(
        self, payload: bytes | memoryview, place: int, memory: ReadableMemory | None = None
    ) -> tuple[Any] | None:
        """Return a 1-tuple of the result in a reply whose id ends at ``place``.

        Return None if the reply has another layout, or needs shared memory and ``memory`` is None.
        Arrays are writable. Raises WireError if the reply refers to memory that does not exist.
        """
        if self.shared and memory is None:
            return None
        if len(payload) != place + self._size:
            return None
        if self._unpack(payload, place) != self._constants:
            return None
        leaves: list[Any] = []
        try:
            for start, decode in self._places:
                leaf = decode(payload, place + start)
                if type(leaf) is np.ndarray:
                    leaf = leaf.copy()
                elif type(leaf) is Tensor:
                    leaf.array = leaf.array.copy()
                leaves.append(leaf)
        except (ValueError, DecodeError):
            return None
        # Once nothing returns None any more: blocks that were read belong to the caller.
        if memory is not None:
            for number, facts in self.shared:
                leaves[number] = read_shared(memory, leaves[number], facts, writable=True)
        for number, make in self._makers:
            leaves[number] = make(leaves[number])
        templates = self._templates
        if templates is None:
            return (leaves[0],)
        values = [filled(each, leaves) for each in templates]
        if len(values) == 1:
            return (values[0],)
        if self._names:
            return (make_results(self._names, values),)
        return (tuple(values) if values else None,)
