"""The large tensors of a call on a local lane, outside its messages, on the callee's side."""

from __future__ import annotations

from typing import Any

import numpy as np

from opdispatch_wire.chunks import BESIDE_BYTES, Buffer
from opdispatch_wire.errors import WireError
from opdispatch_wire.tensor_bytes import bytes_of, contents_of
from opdispatch_wire.v1 import values_pb2

Array = np.ndarray[Any, Any]


class CalleeTensors:
    """A ``CalleeTensorMemory`` for one call. For the thread that runs the call."""

    __slots__ = ("_arguments", "frame_bytes", "is_limited", "results")

    def __init__(
        self, arguments: list[Buffer], frame_bytes: int = 0, *, is_limited: bool = True
    ) -> None:
        """Hold the ``arguments`` in the frame of the call, by ChunkedData.number."""
        self.frame_bytes = frame_bytes
        """The length of that frame."""
        self.is_limited = is_limited
        """Whether the limit for messages applies to the reply, too."""
        self._arguments: list[Buffer | None] = [*arguments]
        self.results: list[Buffer] = []
        """The large tensors of the reply."""

    def place(
        self, message: values_pb2.Tensor, array: Array, dtype: np.dtype[Any], value: object
    ) -> bool:
        """Store a copy of a large result: the kernel may have kept it and write to it later."""
        if array.nbytes <= BESIDE_BYTES:
            return False
        message.chunked.number, message.chunked.length = len(self.results), array.nbytes
        self.results.append(bytes_of(array, dtype, copies=True))
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
        """Return an argument, once: in place, or copied if it is written to or misaligned."""
        if not message.HasField("chunked"):
            raise WireError(f"{at}.memory: no memory is shared with the peer; expected inline data")
        number, length = message.chunked.number, message.chunked.length
        data = self._arguments[number] if number < len(self._arguments) else None
        if data is None or len(data) != length:
            raise WireError(
                f"{at}.chunked refers to tensor {number} of {length} bytes, which this call did "
                "not send or has already read"
            )
        contents = contents_of(data, copies=writable)
        if contents.base is None:
            self._arguments[number] = None  # releases the frame
        contents.flags.writeable = writable
        return np.ndarray(shape, dtype, buffer=contents.data)

    def is_in_place(self, sent: values_pb2.Value, value: object) -> bool:
        """Return False: the caller does not share this memory."""
        return False

    def expect_writes(self) -> None:
        """Do nothing: there is nothing to prepare."""

    def drop_results(self) -> None:
        """Drop the results: the reply is an error, which is sent alone."""
        self.results.clear()
