"""The large tensors of a call, outside its messages, on the caller's side."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from opdispatch_wire.chunks import Buffer, CallTensors
from opdispatch_wire.detached_tensors import CALL_REQUEST, attach
from opdispatch_wire.errors import WireError
from opdispatch_wire.tensor_bytes import bytes_of, contents_of
from opdispatch_wire.v1 import execution_pb2, values_pb2

LOG = logging.getLogger("opdispatch.client")

Array = np.ndarray[Any, Any]

# Smaller tensors are sent inline, whatever else is in the message.
_LEAST_BYTES = 16 * 1024


@dataclass(frozen=True, slots=True)
class TransferProgress:
    """How many bytes of a call's large tensors have been sent, and received.

    ``bytes_to_receive`` is 0 until the first of the results arrives.
    """

    bytes_sent: int
    bytes_to_send: int
    bytes_received: int
    bytes_to_receive: int


OnTransfer = Callable[[TransferProgress], None]
"""Called in the threads that send and receive, or in the event loop: it must be quick."""


class CallerTensors(CallTensors):
    """A ``CallerTensorMemory`` for one call.

    Arguments are not copied before they are sent, unless their elements must be rearranged, or the
    caller may change them before that (``copies``).
    """

    def __init__(
        self, inline_bytes: int, on_progress: OnTransfer | None = None, *, copies: bool = False
    ) -> None:
        """Send tensors inline if they have no more than ``inline_bytes`` together."""
        super().__init__()
        self._placed: list[Buffer] = []
        self.arguments = self._placed
        self._inline_bytes = self._inline_left = inline_bytes
        self._least = min(_LEAST_BYTES, inline_bytes // 32)
        self._on_progress = on_progress
        self._copies = copies
        self._sent = 0
        self._received = self._to_receive = 0

    def place(
        self, message: values_pb2.Tensor, array: Array, dtype: np.dtype[Any], value: object
    ) -> bool:
        """Place large tensors, and those after many others, outside the message.

        See ``TensorMemory.place``.
        """
        size = array.nbytes
        if size <= self._inline_bytes and (size <= self._inline_left or size < self._least):
            self._inline_left -= size
            return False
        message.chunked.number, message.chunked.length = len(self._placed), size
        self._placed.append(bytes_of(array, dtype, copies=self._copies))
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
        """Return a result that uses the memory in which it was received.

        Raises WireError if it was not received.
        """
        if not message.HasField("chunked"):
            raise WireError(f"{at}.memory: no memory is shared with the peer; expected inline data")
        number, length = message.chunked.number, message.chunked.length
        if number >= len(self.results) or len(self.results[number]) != length:
            raise WireError(
                f"{at}.chunked refers to tensor {number} of {length} bytes, which was not received"
            )
        contents = contents_of(self.results[number], copies=False)
        array = np.ndarray(shape, dtype, buffer=contents.data)
        array.flags.writeable = writable
        return array

    def contents_of(self, value: object) -> Array | None:
        """Return None: the reply contains an argument that an operator writes to."""
        return None

    def begin_again(self) -> None:
        """Reset the counts: the arguments are sent again, to another receiver."""
        self._sent = self._received = self._to_receive = 0

    def move_inline(self, request: execution_pb2.CallRequest) -> None:
        """Put the arguments into the request itself."""
        pieces = attach(request.SerializeToString(), CALL_REQUEST, self.arguments)
        request.ParseFromString(b"".join(pieces.parts))

    def note_sent(self, count: int) -> None:
        """Count bytes sent, and report the progress to the caller."""
        self._sent += count
        self._tell()

    def note_received(self, count: int, total: int) -> None:
        """Count bytes received, and report the progress to the caller."""
        self._received += count
        self._to_receive = total
        self._tell()

    def _tell(self) -> None:
        if self._on_progress is None:
            return
        to_send = sum(len(tensor) for tensor in self._placed)
        progress = TransferProgress(self._sent, to_send, self._received, self._to_receive)
        try:
            self._on_progress(progress)
        except Exception:  # it must not end the stream, which other calls share
            LOG.exception("on_progress of a call failed")
            self._on_progress = None
