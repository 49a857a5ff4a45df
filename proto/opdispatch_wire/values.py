"""Python values <-> ``v1.Value``, by pairs of pure functions; nothing is ever pickled.

    None            none            numpy.dtype, numpy.float32, ...    dtype
    bool            boolean         numpy arrays and scalars           tensor
    int             integer         cupy arrays, DLPack, __array__     tensor
    float           floating        opdispatch.Tensor                  tensor
    complex         complex         list, tuple                        list, packed
    str             text            dict                               dict
    scipy's coo and csr arrays      sparse_coo, sparse_csr
    quantized and nested arrays     quantized, nested
    a class with FILL_VALUE         its own encoding: remote, reference

Decoding returns the same types, with these exceptions: a tuple becomes a list, a NumPy scalar a
0-d array, and any other tensor an array of its device. Messages of WireError start with the place
of the fault, such as ``$.args[2].shape[0]``.
"""

from __future__ import annotations

import math
import operator
import reprlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from opdispatch.arrays import LAYOUTS, describe_type, way_to_tensor
from opdispatch.errors import ArgumentError
from opdispatch.schema.default import check_device
from opdispatch.tensors.generator import Generator
from opdispatch.tensors.tensor import Tensor
from opdispatch_wire.dtypes import dtype_from_name, dtype_to_name
from opdispatch_wire.errors import WireError
from opdispatch_wire.layouts import (
    WireLayoutTensor,
    fill_layout,
    layout_from_parts,
    layout_of,
)
from opdispatch_wire.nesting_limits import ValueCount, check_depth
from opdispatch_wire.packed_numbers import fill_packed, packed_from_proto, undecoded_packed
from opdispatch_wire.tensors import (
    TensorMemory,
    WireTensor,
    fill_tensor,
    is_tensor,
    tensor_from_proto,
    tensor_to_proto,
)
from opdispatch_wire.v1 import values_pb2

__all__ = [
    "FILL_VALUE",
    "CountValues",
    "DecodeReference",
    "DecodeRemote",
    "WireTensor",
    "check_text",
    "fill_value",
    "step_value_from_proto",
    "tensor_from_proto",
    "tensor_to_proto",
    "undecoded_from_proto",
    "value_from_proto",
    "value_to_proto",
]

FILL_VALUE = "__opdispatch_fill_value__"
"""A method ``(message: Value, at: str) -> None`` of objects that encode themselves."""

# reprlib truncates longer texts.
_SHORT_KEY = reprlib.aRepr.maxstring
_ACCEPTED = (
    "accepted are None, bool, int, float, complex, str, NumPy arrays and scalars, SciPy's coo and "
    "csr arrays, dtypes, and lists, tuples and dicts of these"
)


# The dispatcher accepts these as dtypes, too.
_PYTHON_DTYPES = (bool, int, float, complex)

_DecodeTensor = Callable[[values_pb2.Tensor, str], Any]
DecodeRemote = Callable[[values_pb2.RemoteTensor, str, bool], Any]
"""Decodes a remote tensor, given its message, its place, and whether it must be writable."""
DecodeReference = Callable[[values_pb2.Reference, str], Any]
"""Decodes a reference of a program, given its message and its place."""
CountValues = Callable[[int], None]
"""Called with a number of further values; raises if there are too many in all."""


def value_to_proto(value: Any, *, at: str = "$") -> values_pb2.Value:
    """Encode one value.

    Raises WireError if it cannot be represented on the wire, and ArgumentError if it nests more
    than ``MAX_NESTING`` deep or has more than ``MAX_VALUES`` values in its lists and dicts.
    """
    message = values_pb2.Value()
    fill_value(message, value, at=at)
    return message


def fill_value(
    message: values_pb2.Value,
    value: Any,
    *,
    at: str,
    memory: TensorMemory | None = None,
    count: ValueCount | None = None,
) -> None:
    """Encode a value into an empty submessage, which saves a copy of the whole message.

    Large tensors are placed in ``memory`` if it is given. ``count`` is the count of the whole call.
    Raises as ``value_to_proto`` does.
    """
    _fill(message, value, at, 0, memory, count or ValueCount())


def value_from_proto(
    message: values_pb2.Value,
    *,
    at: str = "$",
    writable: bool = False,
    memory: TensorMemory | None = None,
    remote: DecodeRemote | None = None,
) -> Any:
    """Decode one value. Raises WireError if it is malformed.

    Arrays are read-only views of the message, unless ``writable``. Tensors in shared memory are
    refused without ``memory``, and remote tensors without ``remote``.
    """

    def decode(tensor: values_pb2.Tensor, at: str) -> Any:
        return tensor_from_proto(tensor, at=at, writable=writable, memory=memory)

    def decode_packed(numbers: values_pb2.Tensor, at: str) -> Any:
        return packed_from_proto(numbers, at, memory)

    decoders = _Decoders(decode, remote, packed=decode_packed, writable=writable)
    return _decode(message, at, 0, decoders)


def step_value_from_proto(message: values_pb2.Value, *, at: str, reference: DecodeReference) -> Any:
    """Decode an argument of a program's step. Raises WireError if it is malformed or a tensor."""
    return _decode(message, at, 0, _Decoders(_refuse_tensor, _refuse_tensor, reference))


def _refuse_tensor(tensor: object, at: str, writable: bool = False) -> Any:
    raise WireError(f"{at} is a tensor; expected a reference to an input of the program")


def undecoded_from_proto(
    message: values_pb2.Value,
    *,
    at: str = "$",
    remote: DecodeRemote | None = None,
    count: CountValues | None = None,
) -> Any:
    """Decode a value as ``value_from_proto`` does, but with a checked WireTensor for each tensor.

    ``count`` is called with the number of values in each list and dict before they are decoded.
    Whether a tensor's shared memory exists is not checked.

    A CPU tensor of one element that could stand for a number is decoded nevertheless: a NumPy
    scalar arrives as a 0-d tensor, and overloads depend on it. A packed list is decoded to one zero
    of its type.
    """
    decoders = _Decoders(
        _undecoded_tensor,
        remote,
        packed=undecoded_packed,
        layout=WireLayoutTensor,
        count_values=count,
    )
    return _decode(message, at, 0, decoders)


class _Decoders(NamedTuple):
    """Decoders for the kinds of values that receivers treat differently."""

    tensor: _DecodeTensor
    remote: DecodeRemote | None = None
    reference: DecodeReference | None = None
    packed: _DecodeTensor = packed_from_proto
    writable: bool = False
    count_values: CountValues | None = None
    layout: Callable[[values_pb2.Value, str, Sequence[Any], str], Any] = layout_from_parts


def _undecoded_tensor(message: values_pb2.Tensor, at: str) -> Any:
    tensor = WireTensor(message, at=at)
    # A plain array with dimensions never stands for a number.
    is_array = bool(tensor.shape) and tensor.is_plain
    if tensor.device != "cpu" or is_array or math.prod(tensor.shape) != 1:
        return tensor
    if message.HasField("memory") or message.HasField("chunked"):
        return tensor  # its elements cannot be read here
    return tensor_from_proto(message, at=at)


def _fill(
    message: values_pb2.Value,
    value: Any,
    at: str,
    depth: int,
    memory: TensorMemory | None,
    count: ValueCount,
) -> None:
    if value is None:
        message.none.SetInParent()
    elif isinstance(value, str):  # before the NumPy scalars: numpy.str_ is one
        if depth:
            count.take_bytes(len(value))
        message.text = check_text(value, at)
    elif is_tensor(value):  # before the numbers: numpy.float64 is a float
        if isinstance(value, np.ndarray | np.generic) or (
            type(value) is Tensor and type(value.array) is np.ndarray
        ):
            fill_tensor(message.tensor, value, at=at, memory=memory)
        elif fill := getattr(type(value), FILL_VALUE, None):
            fill(value, message, at)
        elif layout := layout_of(value):
            fill_layout(message, value, layout, at=at, memory=memory)
        else:
            fill_tensor(message.tensor, value, at=at, memory=memory)
    elif isinstance(value, bool):  # before int: True is an int
        message.boolean = value
    elif isinstance(value, int):
        message.integer = _check_integer(value, at)
    elif isinstance(value, float):
        message.floating = value
    elif isinstance(value, complex):
        message.complex.real, message.complex.imaginary = value.real, value.imag
        message.complex.SetInParent()  # setting zeros does not make the field present
    elif isinstance(value, list | tuple):
        check_depth(at, depth)
        if fill_packed(message, value, at=at, memory=memory, take_bytes=count.take_bytes):
            return
        count.take(len(value))
        message.list.SetInParent()
        for i, item in enumerate(value):
            _fill(message.list.items.add(), item, f"{at}[{i}]", depth + 1, memory, count)
    elif isinstance(value, dict) and not way_to_tensor(value):  # SciPy's dok_array is a dict
        check_depth(at, depth)
        count.take(len(value))
        message.dict.SetInParent()
        for key, item in value.items():
            entry = message.dict.entries.add()
            shown = _show_key(key)
            _fill_key(entry.key, key, at, shown, count)
            _fill(entry.value, item, f"{at}[{shown}]", depth + 1, memory, count)
    elif isinstance(value, np.dtype):
        message.dtype = dtype_to_name(value, at=at)
    elif isinstance(value, type) and (issubclass(value, np.generic) or value in _PYTHON_DTYPES):
        message.dtype = dtype_to_name(np.dtype(value), at=at)
    elif fill := getattr(type(value), FILL_VALUE, None):
        fill(value, message, at)
    elif type(value) is Generator:
        raise WireError(
            f"{at} is a generator inside another value; pass it as an argument of the call"
        )
    elif hasattr(type(value), "__index__"):
        message.integer = _check_integer(operator.index(value), at)
    else:
        raise WireError(
            f"{at}: {describe_type(value)} cannot be sent{way_to_tensor(value) or f'; {_ACCEPTED}'}"
        )


def _show_key(key: Any) -> str:
    """Return ``reprlib.repr(key)``, but much faster for short texts."""
    if type(key) is str and len(key) < _SHORT_KEY and len(text := repr(key)) <= _SHORT_KEY:
        return text
    return reprlib.repr(key)


def _fill_key(message: values_pb2.Value, key: Any, at: str, shown: str, count: ValueCount) -> None:
    if isinstance(key, np.generic) and not isinstance(key, str):
        key = key.item()
    if not isinstance(key, bool | int | float | str):
        raise WireError(
            f"{at} has a key of type {describe_type(key)}; a key is a bool, an int, a float or "
            "a str"
        )
    if type(key) is str:
        message.text = check_text(key, f"{at} key {shown}")
    else:
        _fill(message, key, f"{at} key {shown}", 0, None, count)


def _decode(message: values_pb2.Value, at: str, depth: int, decoders: _Decoders) -> Any:
    kind = message.WhichOneof("kind")
    match kind:
        case "tensor":
            return decoders.tensor(message.tensor, at)
        case "none":
            return None
        case "boolean" | "integer" | "floating" | "text":
            return getattr(message, kind)
        case "complex":
            return complex(message.complex.real, message.complex.imaginary)
        case "list":
            check_depth(at, depth, WireError)
            if decoders.count_values is not None:
                decoders.count_values(len(message.list.items))
            return [
                _decode(item, f"{at}[{i}]", depth + 1, decoders)
                for i, item in enumerate(message.list.items)
            ]
        case "packed":
            return decoders.packed(message.packed, at)
        case "dict":
            check_depth(at, depth, WireError)
            if decoders.count_values is not None:
                decoders.count_values(len(message.dict.entries))
            return _decode_dict(message.dict, at, depth, decoders)
        case "dtype":
            return dtype_from_name(message.dtype, at=at)
        case "device":
            try:
                check_device(message.device)
            except ValueError as error:
                raise WireError(
                    f"{at}: unknown device {reprlib.repr(message.device)}; expected {error}"
                ) from None
            return message.device
        case "argument":
            raise WireError(f"{at} is an argument reference, which only a call's returns may have")
        case "remote":
            if decoders.remote is None:
                raise WireError(f"{at} is a remote tensor, which is not allowed here")
            return decoders.remote(message.remote, at, decoders.writable)
        case "sparse_coo" | "sparse_csr" | "quantized" | "nested":
            whole = getattr(message, kind)
            parts = [
                decoders.tensor(getattr(whole, name), f"{at}.{name}")
                for name in LAYOUTS[kind].part_names
            ]
            return decoders.layout(message, kind, parts, at)
        case "generator":
            raise WireError(
                f"{at} is a generator inside another value; expected it as an argument of a call"
            )
        case "reference":
            if decoders.reference is None:
                raise WireError(f"{at} is a reference; expected one only in a program's steps")
            return decoders.reference(message.reference, at)
        case _:
            raise WireError(
                f"{at} is empty; expected one of the kinds of opdispatch.v1.Value",
                hint="the peer may be newer and use a kind that is unknown here",
            )


def _decode_dict(
    message: values_pb2.DictValue, at: str, depth: int, decoders: _Decoders
) -> dict[Any, Any]:
    result: dict[Any, Any] = {}
    for i, entry in enumerate(message.entries):
        kind = entry.key.WhichOneof("kind")
        if kind not in ("boolean", "integer", "floating", "text"):
            raise WireError(
                f"{at}.entries[{i}].key is {kind or 'empty'}; expected boolean, integer, "
                "floating or text"
            )
        key = getattr(entry.key, kind)
        if key in result:  # 1, 1.0 and True are one key
            raise WireError(f"{at} has the key {reprlib.repr(key)} twice")
        item_at = f"{at}[{reprlib.repr(key)}]"
        result[key] = _decode(entry.value, item_at, depth + 1, decoders)
    return result


def _check_integer(value: int, at: str) -> int:
    if not -(2**63) <= value < 2**63:
        size = math.ceil(math.log10(abs(value))) if abs(value) > 10**40 else 0
        shown = f"an integer of some {size} digits" if size else str(value)
        raise WireError(f"{at}: {shown} is outside the 64-bit range, -2**63 to 2**63 - 1")
    return int(value)


def check_text(value: str, at: str) -> str:
    """Return ``value``.

    Raises ArgumentError if it is not a str, and WireError if it cannot be encoded in UTF-8.
    """
    if not isinstance(value, str):
        raise ArgumentError(f"{at} is {reprlib.repr(value)}; expected a str")
    try:
        value.encode()
    except UnicodeEncodeError as exc:
        raise WireError(
            f"{at}: the text has a lone surrogate at index {exc.start}; expected valid Unicode"
        ) from exc
    return value
