"""Arrays <-> ``v1.Tensor``. What a peer sends is checked whole before anything is allocated.

A plain array (of any backend) has no dispatch keys on the wire and comes back as a plain array.
An ``opdispatch.Tensor`` whose keys are others, or that requires gradients, comes back as one.
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
# NumPy counts bytes in a signed word, and leaves empty dimensions out of that count.
_MAX_BYTES = 2**63 - 1
_CPU_DEVICES = ("", "cpu")
_PLAIN_KEY_BITS = {
    kind: bits_of_key(to_runtime_key(DispatchKey.Dense, component))
    for kind, component in arrays.COMPONENTS.items()
}
# No machine has more devices of a type.
_HIGHEST_DEVICE = 9999
# The names of integers and booleans: see ``autograd.variable.DIFFERENTIABLE_KINDS``.
_WITHOUT_GRADIENTS = ("bool", "int", "uint")
# What need not be asked whether it is an array.
_NO_TENSORS = frozenset({bool, int, float, complex, str, list, tuple, dict, type(None)})


class _Checked(NamedTuple):
    """The parts of a tensor message, each of which is known to be right."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes | None  # None: they lie in shared memory, or came in chunks


class TensorMemory(Protocol):
    """Where the elements of large tensors are that are not in the messages of a call.

    In memory that both ends of a lane share, or in chunks of a stream; as one side sees it.
    """

    def place(
        self, message: values_pb2.Tensor, array: Array, dtype: np.dtype[Any], value: object
    ) -> bool:
        """Put the elements there, as ``dtype``, and into ``message`` where.

        ``value`` is what ``array`` was got from. False if they are to be sent inline.
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
        """Return an array in place over the elements. Raises WireError if they are not there."""


class CalleeTensorMemory(TensorMemory, Protocol):
    """A ``TensorMemory`` of the side that serves the call."""

    def is_in_place(self, sent: values_pb2.Value, value: object) -> bool:
        """Return whether an argument's contents after the call are where the caller sees them."""

    def expect_writes(self) -> None:
        """Prepare for an operator that writes to an argument; called before any is read."""

    def drop_results(self) -> None:
        """Free placed results of a failed call: an error names none, and its caller frees none."""


class CallerTensorMemory(TensorMemory, Protocol):
    """A ``TensorMemory`` of the side that makes the call."""

    def contents_of(self, value: object) -> Array | None:
        """Return the contents of an argument after a call that wrote to it where it was put."""


class WireTensor:
    """A tensor as it came, checked but not decoded; counts as a tensor for the dispatcher.

    To choose a kernel by: ``message`` can be passed on as it is.
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
        """Whether it has the keys of its device alone, and so is decoded as a plain array."""
        return not self.requires_grad and self.key_bits == plain_key_bits(self.device)

    def __repr__(self) -> str:
        return f"WireTensor({self.message.dtype}, shape={list(self.shape)}, device={self.device!r})"


register_tensor_type(WireTensor, described_as="a tensor")


def is_tensor(value: object) -> bool:
    """Return whether ``value`` is encoded as a tensor: an array, or an object that offers one."""
    if isinstance(value, np.ndarray | np.generic | Tensor | WireTensor):
        return True
    cls = type(value)
    if cls in _NO_TENSORS:
        return False
    # Asked of the type: classes of arrays have the methods too, but are no arrays.
    is_offered = hasattr(cls, "__dlpack__") or hasattr(cls, "__array__")
    return is_offered or arrays.find_backend(cls) is not None or find_layout(cls) is not None


def tensor_to_proto(value: Any, *, at: str = "$") -> values_pb2.Tensor:
    """Encode an array. Raises WireError, which starts with the place ``at``."""
    message = values_pb2.Tensor()
    fill_tensor(message, value, at=at)
    return message


def fill_tensor(
    message: values_pb2.Tensor, value: Any, *, at: str, memory: TensorMemory | None = None
) -> None:
    """Encode a tensor into an empty message that is in place already: one copy less."""
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
            raise WireError(f"{at}: a tensor without dispatch keys has no representation")
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
    """Decode a tensor, into an array of the backend that its device has here.

    A NumPy array is a read-only view of the bytes received, unless ``writable``; of those in
    ``memory``, also then. Raises WireError, which starts with the place ``at``, if the message is
    malformed or its device is not here.
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
    data = message.data  # once: each access copies
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
        raise WireError(f"{at}.shape {list(shape)} is beyond the address space, though empty")
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
            raise WireError(f"{at}.chunked: no chunks have come before it; expected data")
        raise WireError(f"{at}.memory: no memory is shared with the peer; expected data")
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
        # Bools too: their peer could change them after they were checked, and NumPy counts on
        # them being 0 or 1 when it sizes the result of a mask.
        array = array.copy()
        array.flags.writeable = writable
    if is_bool:
        _check_bools(array, f"{at}.memory")
    return array


def _check_bools(data: bytes | Array, at: str) -> None:
    if _has_odd_bools(data):
        raise WireError(f"{at} has a byte that is no bool; expected 0 or 1")


def _has_odd_bools(data: bytes | Array) -> bool:
    if isinstance(data, bytes):
        return bool(data.translate(None, b"\0\1"))
    return bool(np.frombuffer(data, np.uint8).max(initial=0) > 1)


def check_differentiable(dtype: str, *, at: str) -> None:
    """Raise WireError, which starts with ``at``, unless elements can require gradients."""
    if dtype.startswith(_WITHOUT_GRADIENTS):
        raise WireError(f"{at}.requires_grad is set of a tensor of {dtype}, which has no gradients")


def check_wire_device(device: str, *, at: str) -> None:
    """Raise WireError, which starts with ``at``, unless tensors can be on ``device``."""
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
    """Return the keys of a tensor in another process: there, inference mode has not made it."""
    return Tensor(tensor.array).key_bits if tensor.is_inference() else tensor.key_bits


def plain_key_bits(device: str) -> int:
    """Return the keys of a plain array of ``device``."""
    return _PLAIN_KEY_BITS[device.partition(":")[0] or "cpu"]


def _default_key_bits(message: values_pb2.Tensor) -> int:
    """Return the key bits of a tensor whose message names none, as ``tensor_from_proto`` decodes
    it.
    """
    if not message.requires_grad:
        return plain_key_bits(message.device)
    component = arrays.COMPONENTS[message.device.partition(":")[0] or "cpu"]
    return key_set_of_backend(component).bits


def refuse_masked(array: Any, *, at: str) -> None:
    """Raise WireError for a masked array of NumPy's: masks are not sent to other processes."""
    # NumPy imports it when it is first asked for, which needs a descriptor: there is no such array
    # before that.
    masked = sys.modules.get("numpy.ma")
    if masked is not None and isinstance(array, masked.MaskedArray):
        raise WireError(
            f"{at}: a masked array would lose its mask; "
            "pass value.filled(...), or value.data and value.mask"
        )


def _fetch(value: Any, *, at: str) -> tuple[Array, str]:
    """Return the elements of an array in host memory, and the device where it lives."""
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
            f"{at}: a tensor of a function that is transformed cannot be sent: what became of it "
            "elsewhere would be lost to the transform",
            hint="have it return the tensor, or transform in a kernel",
        )
    offers = "__dlpack__" if hasattr(type(value), "__dlpack__") else "__array__"
    try:
        array = np.from_dlpack(value) if offers == "__dlpack__" else np.asarray(value)
    except Exception as exc:  # foreign code: it raises what it likes
        raise WireError(
            f"{at}: {describe_type(value)} does not give its elements by {offers} "
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
    """Return a device's error as that of a value: malformed, unless the device is to blame."""
    is_devices = isinstance(error, DeviceMemoryError | DeviceLostError)
    cls = type(error) if is_devices else WireError
    return cls(f"{at}: {error.message}", hint=error.hint or hint, **error.facts)
