"""Fast path for calls whose arguments and result are plain arrays inside the messages.

Most calls are like that. The results are the same as those of ``calls``, to which everything else
is left, malformed messages included.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from opdispatch_wire.dtypes import NAMES_OF_DTYPES, WIRE_DTYPES
from opdispatch_wire.v1 import execution_pb2, values_pb2

if TYPE_CHECKING:
    from opdispatch.schema.function_schema import FunctionSchema

Array = np.ndarray[Any, Any]

# Size in bytes; larger arrays go into shared memory or chunks, outside the message.
_LARGEST = 32 * 1024
_HOST = ("cpu", "")


def may_be_plain(schema: FunctionSchema) -> bool:
    """Return whether an operator returns exactly one new value and writes to no argument."""
    aliases = any(each.alias_info for each in (*schema.arguments, *schema.returns))
    return len(schema.returns) == 1 and not schema.is_varret and not aliases


def plain_arguments(request: execution_pb2.CallRequest) -> list[Array] | None:
    """Return the arguments as read-only arrays if all are plain and positional; else None."""
    arguments = []
    for value in request.args:
        if value.WhichOneof("kind") != "tensor" or (array := plain_array(value.tensor)) is None:
            return None
        arguments.append(array)
    return None if request.kwargs else arguments


def plain_array(tensor: values_pb2.Tensor) -> Array | None:
    """Return a read-only array if the tensor is plain and inline in its message; else None."""
    name, data = tensor.dtype, tensor.data
    dtype = WIRE_DTYPES.get(name)
    if dtype is None or name == "bool" or not data or tensor.device not in _HOST:
        return None
    if tensor.dispatch_keys or tensor.requires_grad:
        return None
    if tensor.HasField("memory") or tensor.HasField("chunked"):
        return None
    try:
        array: Array = np.ndarray(tensor.shape, dtype, data)
    except (ValueError, TypeError):
        return None
    return array if array.nbytes == len(data) else None


def plain_reply(number: int, value: Any, interpreter: str) -> execution_pb2.CallReply | None:
    """Return the reply to call ``number`` if its only result is a plain array; else None."""
    if type(value) is not np.ndarray or value.nbytes > _LARGEST:
        return None
    name = NAMES_OF_DTYPES.get(value.dtype)
    if name is None or name == "bool" or WIRE_DTYPES[name] != value.dtype:
        return None
    reply = execution_pb2.CallReply(id=number, interpreter=interpreter)
    tensor = reply.returns.add().tensor
    tensor.data = value.tobytes()
    tensor.dtype = name
    tensor.shape.extend(value.shape)
    tensor.device = "cpu"
    return reply
