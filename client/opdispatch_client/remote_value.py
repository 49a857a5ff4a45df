"""Remote tensors, which stay in the interpreter that created them."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable
from typing import Any, NoReturn

import numpy as np

from opdispatch import DispatchKey
from opdispatch.arrays import LAYOUTS, split_device
from opdispatch.errors import ArgumentError, DeviceError
from opdispatch.keys.dispatch_key_set import AUTOGRAD_KEYSET
from opdispatch_client.value_lease import Lease, Release
from opdispatch_wire.errors import RemoteValueGoneError
from opdispatch_wire.remote_values import RemoteFacts, facts_from_proto
from opdispatch_wire.v1 import values_pb2

Array = np.ndarray[Any, Any]
_RECORDING = AUTOGRAD_KEYSET.add(DispatchKey.ADInplaceOrView)


class HeldId(bytes):
    """The id of a value, which is released when this object is collected.

    Calls in flight hold a reference, since the release must not overtake a direct call. See
    Note [Letting go of a remote tensor].
    """

    release: Release

    def __del__(self) -> None:
        self.release(bytes(self))


class RemoteValue:
    """The base of both kinds of sessions' remote tensors.

    The value lives until this object is closed or collected, or its session ends. It can be an
    argument of calls like any tensor.
    """

    __slots__ = ("__weakref__", "_elsewhere", "_facts", "_held", "_lease", "_number", "interpreter")

    def __init__(
        self, number: bytes, facts: RemoteFacts, interpreter: str, lease: Lease, elsewhere: Any
    ) -> None:
        """Take ``elsewhere``, the operations of the session whose lease keeps the value."""
        self._number = number
        self._elsewhere = elsewhere
        self._held: HeldId | None
        self._facts = facts
        self._lease = lease
        self.interpreter = interpreter
        """Its interpreter after the last finished call with it: see ``note_interpreter``."""
        held = self._held = HeldId(number)
        held.release = lease.release

    @property
    def id(self) -> str:
        """The id as text, for error messages."""
        return self._number.hex()

    @property
    def shape(self) -> tuple[int, ...]:
        """The extent of each dimension, in elements."""
        return self._facts.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """The element type."""
        return self._facts.dtype

    @property
    def device(self) -> str:
        """``"cpu"``, ``"cuda:N"``, ``"privateuseone:N"``, ..."""
        return self._facts.device

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return len(self._facts.shape)

    @property
    def size(self) -> int | None:
        """The number of elements; None for a nested tensor."""
        return None if None in self.shape else math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """The size of the elements in bytes; for layouts other than strided, of all parts."""
        return self._facts.nbytes

    @property
    def requires_grad(self) -> bool:
        """Whether it required gradients when it was created."""
        return self._facts.requires_grad

    @property
    def layout(self) -> str:
        """As ``Tensor.layout``: ``"strided"``, ``"sparse_coo"``, ``"sparse_csr"``, ``"jagged"``."""
        layout = LAYOUTS.get(self._facts.layout)
        return "strided" if layout is None else layout.pytorch_name

    @property
    def is_closed(self) -> bool:
        """Whether ``close`` was called."""
        return self._held is None

    def _is_on(self, device: Any) -> bool:
        """Return whether the value is on that device.

        Raises DeviceError for an invalid device string.
        """
        try:
            kind, number = split_device(device)
        except DeviceError:
            if not isinstance(device, str) or not device:
                raise
            return False  # the daemon says which devices exist
        here, place = split_device(self.device)
        return kind == here and (kind == "cpu" or number in (None, place))

    def close(self) -> None:
        """Release the value, once the calls in flight with it have ended.

        Idempotent; using the value afterwards raises RemoteValueGoneError.
        """
        self._held = None

    def __opdispatch_fill_value__(self, message: values_pb2.Value, at: str) -> None:
        why = "it was closed" if self.is_closed else self._lease.why_over
        if why:
            raise RemoteValueGoneError(
                f"{at}: the remote tensor {self.id} of interpreter {self.interpreter} is gone: "
                f"{why}",
                value=self.id,
                interpreter=self.interpreter,
                reason=why,
            )
        message.remote.id = self._number
        message.remote.session = self._lease.session
        message.remote.interpreter = self.interpreter
        self._facts.write_to(message.remote)  # the daemon routes the call by them

    def __opdispatch_take_value__(self, key: list[Any], leaves: list[Any]) -> bool:
        """Add what calls with similar tensors in one interpreter share: see ``take_value``."""
        facts, lease, held = self._facts, self._lease, self._held
        if held is None or lease.why_over or not facts.is_plain:
            return False
        key += (RemoteValue, lease.session, self.interpreter)
        key += (facts.device, facts.dtype_name, facts.shape)
        leaves.append(held)
        return True

    @property
    def kind(self) -> Hashable | None:
        """Return its part of a call's shape, which has its interpreter; None if it has none."""
        facts = self._facts
        if not facts.is_plain:
            return None
        # one element may be treated as a number
        of_one = facts.dtype_name if self.size == 1 else None
        return RemoteValue, self.interpreter, facts.device, of_one

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"a {type(self).__name__} can be neither pickled nor copied: it is the only handle to "
            "its value; put() makes another value of it"
        )

    def __repr__(self) -> str:
        device = "" if self.device == "cpu" else f", device={self.device!r}"
        layout = f", layout={self._facts.layout!r}" if self._facts.layout else ""
        state = " closed" if self.is_closed else " gone" if self._lease.why_over else ""
        return (
            f"<{type(self).__name__} {self.dtype} {list(self.shape)}{device}{layout} in "
            f"{self.interpreter}{state}>"
        )


def held_ids(values: Iterable[Any]) -> list[HeldId]:
    """Return the ids of the remote tensors among a call's arguments, also in lists."""
    found: list[HeldId] = []
    for value in values:
        if isinstance(value, RemoteValue):
            if value._held is not None:
                found.append(value._held)
        elif isinstance(value, list | tuple):
            found += held_ids(value)
    return found


def note_interpreter(values: Iterable[Any], interpreter: str) -> None:
    """Record the interpreter of a finished call in the remote tensors among its arguments.

    It is a hint, since only the daemon knows where a value is. Of two concurrent calls, the last
    one to return is recorded.
    """
    for value in values:
        if isinstance(value, RemoteValue):
            value.interpreter = interpreter
        elif isinstance(value, list | tuple):
            note_interpreter(value, interpreter)


def refuse_stream(stream: Any) -> None:
    """Raise ArgumentError for a stream passed to ``to_device``."""
    if stream is not None:
        raise ArgumentError(
            "to_device takes no stream; the interpreter uses the current one of the device"
        )


def remote_from_proto(message: values_pb2.RemoteTensor, at: str) -> tuple[bytes, RemoteFacts, str]:
    """Return the first three arguments of a RemoteValue. Raises WireError."""
    return message.id, facts_from_proto(message, at=at), message.interpreter
