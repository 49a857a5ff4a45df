"""Graphs in files: a zip archive with ``graph.json``, and the bytes of each constant.

    save_graph(graph, "mlp.graph")
    graph = load_graph("mlp.graph")

Nothing in a file is code, nor pickled: a file can say which operators are to be called, and with
what, and nothing else. Members are stored uncompressed, so that none is larger than the file.
"""

from __future__ import annotations

import json
import math
import os
import struct
import zipfile
from typing import Any, BinaryIO

import numpy as np

from opdispatch.arrays import find_layout, on_device, on_host
from opdispatch.errors import GraphError, OpdispatchError
from opdispatch.schema.scalar_type import find_dtype_of_name
from opdispatch.tensors.tensor import Tensor
from opdispatch.tracing.graph import Graph
from opdispatch.tracing.graph_json import graph_from_json, graph_to_json
from opdispatch.tracing.node import Constant, TensorFacts

MAX_JSON_BYTES = 32 << 20
"""How large ``graph.json`` may be."""

_GRAPH = "graph.json"
_MOST_DIMENSIONS = 64  # which NumPy's arrays have
_WHEN = (1980, 1, 1, 0, 0, 0)  # the same graph makes the same file

# What zipfile raises for archives that are none, or not whole: more than it says.
_DAMAGES = (zipfile.BadZipFile, struct.error, EOFError, ValueError, RuntimeError, OverflowError)

File = str | os.PathLike[str] | BinaryIO


def save_graph(graph: Graph, file: File) -> None:
    """Write a graph to a file, or to a path; constants with what is in them now.

    Raises GraphError for an argument or a constant that no file can have, before anything is
    written: a generator, a remote tensor, a tensor of another layout than the dense one.
    """
    arrays = [_array_of(graph, each) for each in graph.constants]
    told = [
        {
            "name": each.name,
            "dtype": str(array.dtype),
            "shape": list(array.shape),
            "device": each.facts.device,
            "is_tensor": isinstance(each.tensor, Tensor),
            "requires_grad": isinstance(each.tensor, Tensor) and each.tensor.requires_grad,
        }
        for each, array in zip(graph.constants, arrays, strict=True)
    ]
    text = json.dumps(graph_to_json(graph, told), allow_nan=False).encode()
    if len(text) > MAX_JSON_BYTES:
        raise GraphError(
            f"{graph.name} takes {len(text)} bytes without its constants; the limit is "
            f"{MAX_JSON_BYTES}"
        )
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr(zipfile.ZipInfo(_GRAPH, _WHEN), text)
        for number, array in enumerate(arrays):
            member = zipfile.ZipInfo(f"constants/{number}", _WHEN)
            with archive.open(member, "w", force_zip64=True) as stream:
                stream.write(array.reshape(-1).view(np.uint8).data)


def load_graph(file: File) -> Graph:
    """Read a graph that was saved. Constants are put where they were.

    Its operators are looked up when it is called. Raises GraphError if the file is none, is damaged
    or says what cannot be, OSError, and DeviceError if a constant's device is not there.
    """
    try:
        with zipfile.ZipFile(file) as archive:
            members = _members_of(archive)
            text = _read(archive, members, _GRAPH, MAX_JSON_BYTES)
            try:
                document = json.loads(text)
            except (ValueError, RecursionError) as error:
                raise GraphError(f"{_GRAPH} is not JSON: {error}") from None
            return graph_from_json(
                document, lambda number, told: _constant(archive, members, number, told)
            )
    except OpdispatchError:
        raise
    except _DAMAGES as error:
        raise GraphError(f"the file is not a graph, or is damaged: {error}") from None


def _array_of(graph: Graph, constant: Constant) -> np.ndarray[Any, Any]:
    """Return the elements of a constant, in host memory and in this machine's order of bytes."""
    tensor = constant.tensor
    array = tensor.array if isinstance(tensor, Tensor) else tensor
    try:
        if find_layout(type(array)) is not None:
            raise TypeError(f"its layout is {constant.facts.layout}, and not dense")
        array = on_host(array)
        if not isinstance(array, np.ndarray | np.generic):
            raise TypeError(f"it is a {type(array).__name__}, whose elements are elsewhere")
        array = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("=")).reshape(
            array.shape
        )
        if find_dtype_of_name(array.dtype.name) != array.dtype:
            raise TypeError(f"its dtype is {array.dtype}")
        return array
    except (TypeError, OpdispatchError) as error:
        raise GraphError(
            f"the constant {constant.name!r} of {graph.name} cannot be kept in a file: {error}",
            hint="make it an input of the graph",
        ) from None


def _constant(
    archive: zipfile.ZipFile, members: dict[str, zipfile.ZipInfo], number: int, told: dict[str, Any]
) -> Constant:
    """Read a constant, whose size in bytes must fit its description."""
    at = f"the graph's $.constants[{number}]"
    match told:
        case {
            "name": str(name),
            "dtype": str(named),
            "shape": list(shape),
            "device": str(device),
            "is_tensor": bool(is_tensor),
            "requires_grad": bool(requires_grad),
        } if all(type(each) is int and each >= 0 for each in shape):
            pass
        case _:
            raise GraphError(f"{at} does not say name, dtype, shape, device and what it is")
    dtype = find_dtype_of_name(named)
    if dtype is None:
        raise GraphError(f"{at} has the dtype {named[:60]!r}, which there is none of")
    size = math.prod(shape) * dtype.itemsize
    member = f"constants/{number}"
    data = _read(archive, members, member, size)
    if len(data) != size or len(shape) > _MOST_DIMENSIONS:
        raise GraphError(
            f"{member} has {len(data)} bytes; expected {size}, of a {dtype} tensor of at most "
            f"{_MOST_DIMENSIONS} dimensions"
        )
    array: Any = np.frombuffer(bytearray(data), dtype=dtype).reshape(shape)
    if device != "cpu":
        array = on_device(array, device)
    tensor = Tensor(array, requires_grad=requires_grad) if is_tensor else array
    return Constant(name, tensor, TensorFacts.of(tensor))


def _members_of(archive: zipfile.ZipFile) -> dict[str, zipfile.ZipInfo]:
    """Return the members by their names.

    Raises GraphError if they are larger than the file together.

    That is, if one is compressed, or if they lie upon each other.
    """
    assert archive.fp is not None, "it is open"
    members = archive.infolist()
    for each in members:
        if each.compress_type != zipfile.ZIP_STORED or each.flag_bits & 0x1:
            raise GraphError(
                f"{each.filename[:60]} is compressed or encrypted, which nothing of a graph is"
            )
    size, total = archive.fp.seek(0, os.SEEK_END), sum(each.file_size for each in members)
    if total > size:
        raise GraphError(f"the file has {size} bytes, and its members claim {total}")
    return {each.filename: each for each in members}


def _read(
    archive: zipfile.ZipFile, members: dict[str, zipfile.ZipInfo], name: str, most: int
) -> bytes:
    member = members.get(name)
    if member is None:
        raise GraphError(f"the file has no {name}")
    if member.file_size > most:
        raise GraphError(f"{name} has {member.file_size} bytes; the limit is {most}")
    return archive.read(member)
