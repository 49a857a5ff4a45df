"""Plans of calls: the facts that calls of arrays of the same types and shapes share. No I/O.

Note [Planned calls]
    The first direct call of an operator with arrays of certain dtypes and shapes is made the
    general way, and leaves a plan: the bytes of its request but for what differs from call to
    call, which are its id, the time left, and the elements. Protobuf's fields may stand in any
    order, so the callee cannot tell a planned request from another one.

    A plan covers nothing unusual: keywords, options, other arguments than arrays, keys or modes
    that a task has set, profiles and traces take the general way. So does what a planned call
    meets: a route that holds no more, a lane that ends, a reply that is not one plain array.
"""

from __future__ import annotations

import struct
from collections.abc import Hashable, Sequence
from typing import Any, Final

import numpy as np

from opdispatch_client.lanes.direct_way import DirectWay
from opdispatch_client.lanes.waiting_calls import may_move
from opdispatch_wire.dtypes import WIRE_DTYPES, dtype_to_name
from opdispatch_wire.lanes.blocking_lane import BlockingLane
from opdispatch_wire.protobuf_fields import field_tag, varint
from opdispatch_wire.v1 import execution_pb2, values_pb2

UNPLANNED: Final = object()
"""Stands for the result of a call, or of a look at a reply, that no plan covers."""

MOST_PLANS = 1024
"""How many a session keeps."""

# Longer requests cost what their elements cost, and may be better off in shared memory.
_LONGEST = 32 * 1024
_LENGTH_DELIMITED = 2
_ID = field_tag(execution_pb2.CallRequest.ID_FIELD_NUMBER, 0)
_ARGUMENT = field_tag(execution_pb2.CallRequest.ARGS_FIELD_NUMBER, _LENGTH_DELIMITED)
_TENSOR = field_tag(values_pb2.Value.TENSOR_FIELD_NUMBER, _LENGTH_DELIMITED)
_DATA = field_tag(values_pb2.Tensor.DATA_FIELD_NUMBER, _LENGTH_DELIMITED)
_TIMEOUT = field_tag(execution_pb2.CallRequest.TIMEOUT_FIELD_NUMBER, 1)
_SECONDS = struct.Struct("<d")


def plan_key(operator: str, args: Sequence[Any]) -> Hashable | None:
    """Return what calls have in common that one plan covers; None for one that none does."""
    if type(operator) is not str:
        return None
    key: list[Hashable] = [operator]
    for value in args:
        if type(value) is not np.ndarray:
            return None
        key.append(value.dtype)
        key.append(value.shape)
    return tuple(key)


class CallPlan:
    """The request of such calls, and the way that they go."""

    __slots__ = ("_head", "_prefixes", "_result", "moves", "shape", "size", "way")

    def __init__(
        self,
        head: bytes,
        prefixes: Sequence[bytes],
        size: int,
        shape: Hashable,
        way: DirectWay[BlockingLane],
        *,
        moves: bool,
    ) -> None:
        self._head = head
        self._prefixes = prefixes
        self.size = size
        """The bytes of a request, at most."""
        self.shape = shape
        """See ``call_shape``."""
        self.way = way
        """That of the call which has left the plan."""
        self.moves = moves
        """Whether a call may run twice; see ``may_move``."""
        # Of the last plain result: its dtype, the name of that, its shape, and its bytes.
        self._result: tuple[np.dtype[Any], str, list[int], int] | None = None

    @classmethod
    def of(
        cls,
        request: execution_pb2.CallRequest,
        args: Sequence[np.ndarray[Any, Any]],
        shape: Hashable,
        way: DirectWay[BlockingLane],
    ) -> CallPlan | None:
        """Return the plan that a request leaves; None where the elements are not as they lie."""
        prefixes = []
        for message, array in zip(request.args, args, strict=True):
            tensor = message.tensor
            name = tensor.dtype
            if not tensor.data or name == "bool" or array.dtype != WIRE_DTYPES[name]:
                return None
            prefixes.append(_prefix(tensor))
        head = execution_pb2.CallRequest()
        head.CopyFrom(request)
        for name in ("id", "timeout", "args"):
            head.ClearField(name)
        size = request.ByteSize() + _SECONDS.size
        if size > min(_LONGEST, way.lane.max_message_bytes):
            return None
        return cls(
            head.SerializeToString(), prefixes, size, shape, way, moves=may_move(way, request)
        )

    def encode(
        self, args: Sequence[np.ndarray[Any, Any]], number: int, timeout: float | None
    ) -> bytes:
        """Return the request of that id."""
        parts = [_ID, varint(number), self._head]
        if timeout is not None:
            parts.append(_TIMEOUT)
            parts.append(_SECONDS.pack(timeout))
        for prefix, array in zip(self._prefixes, args, strict=True):
            parts.append(prefix)
            parts.append(array.tobytes())
        return b"".join(parts)

    def read(self, reply: execution_pb2.CallReply) -> Any:
        """Return the result if it is one plain array like the last one; else UNPLANNED."""
        known, returns = self._result, reply.returns
        if known is None or len(returns) != 1 or reply.mutations or reply.generators:
            return UNPLANNED
        dtype, name, shape, size = known
        message = returns[0]
        if message.WhichOneof("kind") != "tensor":
            return UNPLANNED
        tensor = message.tensor
        if tensor.dtype != name or tensor.shape != shape or tensor.device != "cpu":
            return UNPLANNED
        if tensor.dispatch_keys or tensor.requires_grad:
            return UNPLANNED
        data = tensor.data
        if len(data) != size:
            return UNPLANNED
        return np.ndarray(shape, dtype, data).copy()

    def learn(self, result: Any) -> None:
        """Record the result that the general decoding has made of a reply."""
        if type(result) is np.ndarray and result.size and result.dtype != np.bool_:
            name = dtype_to_name(result.dtype, at="$")
            self._result = (result.dtype, name, list(result.shape), result.nbytes)


def _prefix(tensor: values_pb2.Tensor) -> bytes:
    """Return what stands before the elements of an argument."""
    facts = values_pb2.Tensor()
    facts.CopyFrom(tensor)
    facts.ClearField("data")
    length = len(tensor.data)
    inner = facts.SerializeToString() + _DATA + varint(length)
    value = _TENSOR + varint(len(inner) + length) + inner
    return _ARGUMENT + varint(len(value) + length) + value
