"""Plans of calls: the facts that calls of arrays of the same types and shapes share. No I/O.

Note [Planned calls]
    The first direct call of an operator with arrays of certain dtypes and shapes is made the
    general way, and leaves a plan: the bytes of its request but for what differs from call to
    call, which are its id, the time left, and the elements; and those of its reply. See
    Note [Constant bytes].

    Numbers, texts, bools and None among the arguments are constants of a plan: another number is
    another plan. So that an argument that is new in each call leaves no plan each time, such
    calls are planned when they come again.

    A plan covers nothing unusual: keywords, options, lists and Tensors, keys or modes that a task
    has set, profiles and traces take the general way. So does what a planned call
    meets: a route that holds no more, a lane that ends, a reply that is not one plain array.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any, Final

import numpy as np
from google.protobuf.message import DecodeError

from opdispatch_client.lanes.direct_way import DirectWay
from opdispatch_client.lanes.waiting_calls import may_move
from opdispatch_wire.errors import WireError
from opdispatch_wire.lanes.blocking_lane import BlockingLane
from opdispatch_wire.planned_calls import LONGEST, ReplyForm, request_pieces, write_request
from opdispatch_wire.v1 import execution_pb2

UNPLANNED: Final = object()
"""Stands for the result of a call that no plan covers."""

MOST_PLANS = 1024
"""How many a session keeps."""

_CONSTANTS = frozenset({bool, int, str, type(None)})
# After so many replies in a row of other forms than the last one, the next ones will be as well.
_MOST_MISSES = 16
# The timeout, and the longest id.
_TAIL_BYTES = 9 + 11


def plan_key(operator: str, args: Sequence[Any]) -> Hashable | None:
    """Return what calls have in common that one plan covers; None for one that none does."""
    if type(operator) is not str:
        return None
    key: list[Any] = [operator]
    for value in args:
        cls = type(value)
        if cls is np.ndarray:
            key.append(value.dtype)
            key.append(value.shape)
        elif cls in _CONSTANTS:
            key.append(cls)
            key.append(value)
        elif cls is float:
            key.append(cls)
            key.append(value.hex())  # -0.0 equals 0.0, and no number equals none
        else:
            return None
    return tuple(key)


def arrays_of(args: Sequence[Any]) -> Sequence[np.ndarray[Any, Any]]:
    """Return the arguments of a planned call that are not constant."""
    return [value for value in args if type(value) is np.ndarray]


class CallPlan:
    """The request of such calls, their replies, and the way that they go."""

    __slots__ = ("_form", "_is_mixed", "_misses", "_pieces", "moves", "shape", "size", "way")

    def __init__(
        self,
        pieces: tuple[bytes, ...],
        size: int,
        shape: Hashable,
        way: DirectWay[BlockingLane],
        *,
        moves: bool,
        is_mixed: bool,
    ) -> None:
        self._pieces = pieces
        self._is_mixed = is_mixed  # some arguments are constant
        self.size = size
        """The bytes of a request, at most."""
        self.shape = shape
        """See ``call_shape``."""
        self.way = way
        """That of the call which has left the plan."""
        self.moves = moves
        """Whether a call may run twice; see ``may_move``."""
        self._form: ReplyForm | None = None
        self._misses = 0

    @classmethod
    def of(
        cls,
        request: execution_pb2.CallRequest,
        args: Sequence[Any],
        shape: Hashable,
        way: DirectWay[BlockingLane],
    ) -> CallPlan | None:
        """Return the plan that a request leaves; None where the elements are not as they lie."""
        pieces = request_pieces(request, args)
        if pieces is None:
            return None
        arrays = arrays_of(args)
        size = sum(map(len, pieces)) + sum(array.nbytes for array in arrays) + _TAIL_BYTES
        if size > min(LONGEST, way.lane.max_message_bytes):
            return None
        is_mixed = len(arrays) != len(args)
        return cls(pieces, size, shape, way, moves=may_move(way, request), is_mixed=is_mixed)

    def encode(self, args: Sequence[Any], timeout: float | None, number: int) -> bytes:
        """Return the request of that id."""
        arrays = arrays_of(args) if self._is_mixed else args
        return write_request(self._pieces, arrays, timeout, number)

    def read(self, payload: bytes | memoryview, place: int) -> np.ndarray[Any, Any] | None:
        """Return the result in a reply whose id ends at ``place``; None if it is not plain."""
        if self._form is not None and (result := self._form.read(payload, place)) is not None:
            self._misses = 0
            return result
        if self._misses == _MOST_MISSES:
            return None
        self._misses += 1
        try:
            form = ReplyForm.of(payload, execution_pb2.CallReply.FromString(bytes(payload)))
        except (DecodeError, WireError):
            return None  # the general way raises that error
        if form is None:
            return None
        self._form = form
        return form.read(payload, place)
