"""Arrays <-> ``v1.Tensor``. A received message is checked fully before anything is allocated.

A plain array (of any backend) has no dispatch keys on the wire and is decoded as a plain array.
An ``opdispatch.Tensor`` with other keys, or one that requires gradients, is decoded as a Tensor.
"""

from __future__ import annotations

import math
import reprlib
import sys
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np

from opdispatch import arrays
from opdispatch.arrays import describe_type, find_layout, register_tensor_type
from opdispatch.arrays.level_array import LevelArray
from opdispatch.errors import (
    DeviceError,
    DeviceLostError,
    DeviceMemoryError,
    OpdispatchError,
    TransformError,
)
from opdispatch.keys.dispatch_key import DispatchKey, to_runtime_key
from opdispatch.keys.dispatch_key_set import DispatchKeySet, bits_of_key
from opdispatch.tensors.tensor import Tensor, key_set_of_backend
from opdispatch_wire import dtypes
from opdispatch_wire.dtypes import ACCEPTED_DTYPES, dtype_from_name, dtype_to_name, item_size
from opdispatch_wire.errors import WireError
from opdispatch_wire.tensor_bytes import check_tensor_size
from opdispatch_wire.v1 import values_pb2

Array: TypeAlias = "np.ndarray[Any, Any]"

MAX_DIMENSIONS = 64
# NumPy counts bytes in a signed 64-bit number, and ignores dimensions of extent 0 in that count.
_MAX_BYTES = 2**63 - 1
_CPU_DEVICES = ("", "cpu")
_PLAIN_KEY_BITS = {
    kind: bits_of_key(to_runtime_key(DispatchKey.Dense, component))
    for kind, component in arrays.COMPONENTS.items()
}
# Refuses absurd numbers before any backend is asked.
_HIGHEST_DEVICE = 9999
# Prefixes of dtypes without gradients: see ``autograd.variable.DIFFERENTIABLE_KINDS``.
_WITHOUT_GRADIENTS = ("bool", "int", "uint")
# Frequent types that are known not to be arrays.
_NO_TENSORS = frozenset({bool, int, float, complex, str, list, tuple, dict, type(None)})


class _Checked(NamedTuple):
    """The parts of a tensor message that has passed all checks."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes | None  # None: the elements are in shared memory, or came in chunks


class TensorMemory(Protocol):
    """Storage for the elements of large tensors outside the messages of a call.

    Either memory that both ends of a lane share, or chunks of a stream, as seen from one end.
    """

    def place(
        self, message: values_pb2.Tensor, array: Array, dtype: np.dtype[Any], value: object
    ) -> bool:
        """Store the elements, converted to ``dtype``, and write their place into ``message``.

        ``value`` is the object that ``array`` was taken from. Return False if the elements are to
        be sent inline.
        """

    def read(
        self,
        message: values_pb2.Tensor,
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
        *,
        writable: bool,
        at: str,
    ) -> Array:
        """Return an array over the elements, uncopied. Raises WireError if they are not there."""


class CalleeTensorMemory(TensorMemory, Protocol):
    """The ``TensorMemory`` of the side that serves a call."""

    def is_in_place(self, sent: values_pb2.Value, value: object) -> bool:
        """Return whether ``value`` is the argument's own memory, where the caller sees writes."""

    def expect_writes(self) -> None:
        """Prepare for an operator that writes to arguments; called before any argument is read."""

    def drop_results(self) -> None:
        """Free the results placed for a call that then failed.

        The error names no results, so the caller would never free them.
        """


class CallerTensorMemory(TensorMemory, Protocol):
    """The ``TensorMemory`` of the side that makes a call."""

    def contents_of(self, value: object) -> Array | None:
        """Return an argument's contents after a call that wrote to them in place.

        None if the argument was not placed in this memory.
        """


class WireTensor:
    """A received tensor, checked but not decoded, which the dispatcher accepts as a tensor.

    Serves to choose a kernel without decoding the elements; ``message`` is passed on unchanged.
    """

    __slots__ = ("device", "key_bits", "message", "requires_grad", "shape")

    def __init__(self, message: values_pb2.Tensor, *, at: str = "$") -> None:
        """Raise WireError if ``message`` is malformed."""
        checked = _check(message, at=at)
        self.message = message
        self.shape = checked.shape
        self.device: str = message.device or "cpu"
        self.requires_grad: bool = message.requires_grad
        self.key_bits = message.dispatch_keys or _default_key_bits(message)

    @property
    def dtype(self) -> np.dtype[Any]:
        """The element type."""
        return dtype_from_name(self.message.dtype, at="$.dtype")

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return len(self.shape)

    @property
    def is_plain(self) -> bool:
        """Whether it has only the keys of its device, and so is decoded as a plain array."""
        return not self.requires_grad and self.key_bits == plain_key_bits(self.device)

    def __repr__(self) -> str:
        return f"WireTensor({self.message.dtype}, shape={list(self.shape)}, device={self.device!r})"


register_tensor_type(WireTensor, described_as="a tensor")


def is_tensor(value: object) -> bool:
    """Return whether ``value`` is encoded as a tensor: an array, or convertible to one."""
    if isinstance(value, np.ndarray | np.generic | Tensor | WireTensor):
        return True
    cls = type(value)
    if cls in _NO_TENSORS:
        return False
    # Asked of the type, not of the value: an array class has the methods too, but is not an array.
    is_offered = hasattr(cls, "__dlpack__") or hasattr(cls, "__array__")
    return is_offered or arrays.find_backend(cls) is not None or find_layout(cls) is not None


def tensor_to_proto(value: Any, *, at: str = "$") -> values_pb2.Tensor:
    """Encode an array. Raises WireError, whose message starts with the place ``at``."""
    message = values_pb2.Tensor()
    fill_tensor(message, value, at=at)
    return message


def fill_tensor(
    message: values_pb2.Tensor, value: Any, *, at: str, memory: TensorMemory | None = None
) -> None:
    """Encode a tensor into an empty submessage, which saves the copy of ``tensor_to_proto``."""
    if isinstance(value, WireTensor):
        message.CopyFrom(value.message)
        return
    array, device = _fetch(value.array if isinstance(value, Tensor) else value, at=at)
    dtype = array.dtype
    name = dtype_to_name(dtype, at=at)
    sent = dtypes.WIRE_DTYPES[name]
    if memory is None or not memory.place(message, array, sent, value):
        check_tensor_size(array)
        if dtype != sent:
            array = array.astype(sent)
        data = array.tobytes()
        if name == "bool" and _has_odd_bools(data):  # as a view of bytes may have
            data = np.not_equal(np.frombuffer(data, np.uint8), 0).tobytes()
        message.data = data
    if isinstance(value, Tensor):
        if not value.key_bits:
            raise WireError(f"{at}: a tensor without dispatch keys cannot be sent")
        if value.requires_grad or value.key_bits != plain_key_bits(device):
            message.dispatch_keys = key_bits_elsewhere(value)
            message.requires_grad = value.requires_grad
    message.dtype = name
    message.shape.extend(array.shape)
    message.device = device


def tensor_from_proto(
    message: values_pb2.Tensor,
    *,
    at: str = "$",
    writable: bool = False,
    memory: TensorMemory | None = None,
) -> Array | Tensor:
    """Decode a tensor into an array of the backend for its device.

    Without ``writable``, a NumPy array is a read-only view of the message. With it, the array is a
    copy, but a view of ``memory`` where that may be written to. Raises WireError, whose message
    starts with the place ``at``, if the message is malformed or this process lacks the device.
    """
    checked = _check(message, at=at)
    array: Any
    if checked.data is None:
        array = _read_memory(message, checked, memory, at=at, writable=writable)
    else:
        array = np.ndarray(checked.shape, dtypes.WIRE_DTYPES[checked.dtype], buffer=checked.data)
    if message.device not in _CPU_DEVICES:
        array = _to_device(array, message.device, at=at)
    elif writable and checked.data is not None:
        array = array.copy()
    bits = message.dispatch_keys
    if message.requires_grad or bits not in (0, plain_key_bits(message.device)):
        keys = DispatchKeySet(bits) if bits else None
        return Tensor(array, keys=keys, requires_grad=message.requires_grad)
    return array  # type: ignore[no-any-return]  # any backend's


def _check(message: values_pb2.Tensor, *, at: str) -> _Checked:
    dtype = message.dtype
    size = item_size(dtype, at=f"{at}.dtype")
    shape = tuple(message.shape)
    if len(shape) > MAX_DIMENSIONS:
        raise WireError(
            f"{at}.shape has {len(shape)} dimensions; a tensor has at most {MAX_DIMENSIONS}"
        )
    if shape and min(shape) < 0:
        place, extent = next((i, extent) for i, extent in enumerate(shape) if extent < 0)
        raise WireError(f"{at}.shape[{place}] is {extent}; a dimension is never negative")
    data = message.data  # only once: each access copies the bytes
    needed = math.prod(shape) * size
    is_elsewhere = message.HasField("memory") or message.HasField("chunked")
    if is_elsewhere:
        _check_elsewhere(message, data, needed, at=at)
    elif len(data) != needed:
        raise WireError(
            f"{at}.data has {len(data)} bytes; shape {list(shape)} of {dtype} needs {needed}"
        )
    if message.requires_grad:
        check_differentiable(dtype, at=at)
    if not needed and math.prod(filter(None, shape)) * size > _MAX_BYTES:
        raise WireError(
            f"{at}.shape {list(shape)} exceeds the address space, although the tensor is empty"
        )
    if dtype == "bool":
        _check_bools(data, f"{at}.data")
    check_wire_device(message.device, at=f"{at}.device")
    return _Checked(dtype, shape, None if is_elsewhere else data)


def _check_elsewhere(message: values_pb2.Tensor, data: bytes, needed: int, *, at: str) -> None:
    where = "memory" if message.HasField("memory") else "chunked"
    if data or (where == "memory" and message.HasField("chunked")):
        other = "data" if data else "chunked"
        raise WireError(f"{at} has elements both in {other} and in {where}; expected one of them")
    length: int = getattr(message, where).length
    if length != needed:
        raise WireError(f"{at}.{where}.length is {length}; its shape and dtype need {needed}")
    if not needed:
        raise WireError(f"{at}.{where} names no bytes; an empty tensor has no elements anywhere")


def _read_memory(
    message: values_pb2.Tensor,
    checked: _Checked,
    memory: TensorMemory | None,
    *,
    at: str,
    writable: bool,
) -> Array:
    if memory is None:
        if message.HasField("chunked"):
            raise WireError(f"{at}.chunked: no chunks were received; expected inline data")
        raise WireError(f"{at}.memory: no memory is shared with the peer; expected inline data")
    dtype = dtypes.WIRE_DTYPES[checked.dtype]
    if message.HasField("chunked"):
        array = memory.read(message, checked.shape, dtype, writable=writable, at=at)
        if checked.dtype == "bool":
            _check_bools(array, f"{at}.chunked")
        return array
    is_bool = checked.dtype == "bool"
    in_place = writable and not is_bool and not message.memory.read_only
    array = memory.read(message, checked.shape, dtype, writable=in_place, at=at)
    if is_bool or writable > in_place:
        # Bools are copied before the check: the peer could change them afterwards, and NumPy
        # relies on their being 0 or 1 when it allocates the result of a mask.
        array = array.copy()
        array.flags.writeable = writable
    if is_bool:
        _check_bools(array, f"{at}.memory")
    return array


def _check_bools(data: bytes | Array, at: str) -> None:
    if _has_odd_bools(data):
        raise WireError(f"{at} has a byte that is not a bool; expected 0 or 1")


def _has_odd_bools(data: bytes | Array) -> bool:
    if isinstance(data, bytes):
        return bool(data.translate(None, b"\0\1"))
    return bool(np.frombuffer(data, np.uint8).max(initial=0) > 1)


def check_differentiable(dtype: str, *, at: str) -> None:
    """Raise WireError, whose message starts with ``at``, unless the dtype has gradients."""
    if dtype.startswith(_WITHOUT_GRADIENTS):
        raise WireError(
            f"{at}.requires_grad is set, but tensors of {dtype} have no gradients; expected a "
            "floating-point or complex dtype"
        )


def check_wire_device(device: str, *, at: str) -> None:
    """Raise WireError, whose message starts with ``at``, unless ``device`` is a valid name."""
    if device in _CPU_DEVICES:
        return
    try:
        kind, number = arrays.split_device(device)
    except DeviceError:
        kind, number = "", None
    if kind in ("", "cpu") or number is None or number > _HIGHEST_DEVICE:
        raise WireError(
            f"{at} is {reprlib.repr(device)}; expected 'cpu' or 'cuda:N', or another type of "
            "device with a number"
        )


def key_bits_elsewhere(tensor: Tensor) -> int:
    """Return a tensor's keys to send: other processes do not see it as made in inference mode."""
    return Tensor(tensor.array).key_bits if tensor.is_inference() else tensor.key_bits


def plain_key_bits(device: str) -> int:
    """Return the key bits of a plain array on ``device``."""
    return _PLAIN_KEY_BITS[device.partition(":")[0] or "cpu"]


def _default_key_bits(message: values_pb2.Tensor) -> int:
    """Return the key bits that ``tensor_from_proto`` gives a tensor whose message has none."""
    if not message.requires_grad:
        return plain_key_bits(message.device)
    component = arrays.COMPONENTS[message.device.partition(":")[0] or "cpu"]
    return key_set_of_backend(component).bits


def refuse_masked(array: Any, *, at: str) -> None:
    """Raise WireError for a NumPy masked array, whose mask cannot be sent."""
    # np.ma would import the module, which needs a file descriptor. If it is not imported, there
    # are no masked arrays.
    masked = sys.modules.get("numpy.ma")
    if masked is not None and isinstance(array, masked.MaskedArray):
        raise WireError(
            f"{at} is a masked array, which would lose its mask; "
            "pass value.filled(...), or value.data and value.mask"
        )


def _fetch(value: Any, *, at: str) -> tuple[Array, str]:
    """Return an array's elements in host memory, and the name of its device."""
    if type(value) is np.ndarray:
        return value, "cpu"
    refuse_masked(value, at=at)
    if isinstance(value, np.ndarray | np.generic):
        return np.asarray(value), "cpu"
    try:
        backend = arrays.find_backend(type(value))
        if backend is None and arrays.is_foreign(value):
            value = arrays.adopt(value)
            backend = arrays.find_backend(type(value))
        if backend is not None:
            device = backend.device_of(value)
            with arrays.device_errors(device):
                return backend.to_host(value), device
    except DeviceError as error:
        raise placed_error(error, at, f"pass a NumPy array of {ACCEPTED_DTYPES}") from error
    if isinstance(value, LevelArray):
        raise TransformError(
            f"{at}: a tensor inside a transform cannot be sent to another process, where the "
            "transform cannot follow it",
            hint="return the tensor from the function, or apply the transform in a kernel",
        )
    offers = "__dlpack__" if hasattr(type(value), "__dlpack__") else "__array__"
    try:
        array = np.from_dlpack(value) if offers == "__dlpack__" else np.asarray(value)
    except Exception as exc:  # code of another library, which may raise anything
        raise WireError(
            f"{at}: cannot read the elements of {describe_type(value)} with {offers} "
            f"({type(exc).__name__}: {exc}); pass a NumPy array of {ACCEPTED_DTYPES}"
        ) from exc
    return array, "cpu"


def _to_device(array: Array, device: str, *, at: str) -> Any:
    try:
        with arrays.device_errors(device):
            return arrays.backend_of_device(device).from_host(array, device)
    except DeviceError as error:
        raise placed_error(error, at) from error


def placed_error(error: DeviceError, at: str, hint: str = "") -> OpdispatchError:
    """Return a DeviceError with the place of the value added.

    A full or lost device keeps its class; any other error becomes a WireError.
    """
    is_devices = isinstance(error, DeviceMemoryError | DeviceLostError)
    cls = type(error) if is_devices else WireError
    return cls(f"{at}: {error.message}", hint=error.hint or hint, **error.facts)
