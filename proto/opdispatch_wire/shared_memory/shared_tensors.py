"""Find the tensors of a message that are in shared memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from opdispatch.arrays import LAYOUTS
from opdispatch_wire.v1 import execution_pb2, values_pb2


def shared_memory_of(
    message: execution_pb2.CallRequest | execution_pb2.CallReply,
) -> Iterator[values_pb2.SharedMemory]:
    """Yield the place of every tensor of the message that is in shared memory."""
    for tensor in shared_tensors_of(message):
        yield tensor.memory


def shared_tensors_of(
    message: execution_pb2.CallRequest | execution_pb2.CallReply,
) -> Iterator[values_pb2.Tensor]:
    """Yield every tensor of the message that is in shared memory; changes affect the message."""
    if isinstance(message, execution_pb2.CallRequest):
        yield from _tensors_in(message.args)
        if message.kwargs:
            yield from _tensors_in(message.kwargs.values())
        return
    yield from _tensors_in(message.returns)
    for mutation in message.mutations:
        if mutation.HasField("value") and mutation.value.HasField("memory"):
            yield mutation.value


def _tensors_in(values: Iterable[values_pb2.Value]) -> Iterator[values_pb2.Tensor]:
    for value in values:
        kind = value.WhichOneof("kind")
        if kind == "tensor":
            if value.tensor.HasField("memory"):
                yield value.tensor
        elif kind == "packed":
            if value.packed.HasField("memory"):
                yield value.packed
        elif kind == "list":
            yield from _tensors_in(value.list.items)
        elif kind == "dict":
            yield from _tensors_in(entry.value for entry in value.dict.entries)
        elif layout := LAYOUTS.get(kind):
            parts = (getattr(getattr(value, kind), name) for name in layout.part_names)
            yield from (part for part in parts if part.HasField("memory"))
