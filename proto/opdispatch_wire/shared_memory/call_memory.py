"""Shared memory of one call: each side places tensors, and reads those of the other.

    caller    CallerMemory      places arguments in its arena; reads results from the callee's
    callee    CalleeMemory      reads arguments from the caller's arena; places results in its own

    call_request(memory=...)            the caller holds the blocks of the arguments
    decode_arguments(memory=...)        arrays over them
        ... the kernel runs ...
    reply_of_returns(memory=...)        the results' blocks are held until the caller is done
    release_arguments()                 from the reply on, the caller may reuse its blocks
    result_of_reply(memory=...)         arrays over the results
    CallerMemory.release()              ... when a result's last view is gone, on_release is called
    ResultBlocks.release()              ... so that the callee can reuse the block

Note [Who may use a block]
    The callee may use the caller's blocks from the request until the reply, even if the caller has
    given the call up, because it is still running. If the lane breaks in between, nothing tells
    when the callee is done, so those regions are abandoned.
"""

from __future__ import annotations

import functools
import math
import threading
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from opdispatch.tensors.tensor import Tensor
from opdispatch_wire.errors import WireError
from opdispatch_wire.shared_leaves import SharedPlace
from opdispatch_wire.shared_memory.arena_block import Block
from opdispatch_wire.shared_memory.peer_memory import LentMemory, OnRelease, PeerMemory
from opdispatch_wire.shared_memory.shared_mapping import PAGE
from opdispatch_wire.shared_memory.shared_tensors import shared_memory_of, shared_tensors_of
from opdispatch_wire.shared_memory.tensor_arena import TensorArena
from opdispatch_wire.v1 import execution_pb2, values_pb2

Array: TypeAlias = "np.ndarray[Any, Any]"

THRESHOLD = 64 * 1024
"""Size in bytes from which tensors are put into shared memory; smaller ones are sent inline.

Measured with two arguments and one result: 32 KiB each take 0.21 ms inline and 0.30 ms in memory,
64 KiB take 0.56 and 0.28 ms, 1 MiB 8.3 and 0.45 ms.
"""

_ALIASED = 64


class PlacedTensors:
    """The tensors of one message that its sender has placed in its arena. Not thread-safe."""

    __slots__ = ("_arena", "_by_value", "_contents", "_copies", "_threshold", "held", "regions")

    def __init__(self, arena: TensorArena | None, *, threshold: int = THRESHOLD) -> None:
        """Place tensors in ``arena``; without one, all are sent inline."""
        self._arena = arena
        self._threshold = threshold
        self._copies: list[Block] = []
        self.held: dict[tuple[int, int], Block] = {}
        """The blocks, by the region and offset in the message."""
        self.regions: set[int] = set()
        """The regions that must have been passed to the receiver before the message."""
        # The bytes of the placed tensors, by region and offset.
        self._contents: dict[tuple[int, int], Array] = {}
        self._by_value: dict[int, tuple[object, Array, SharedPlace]] = {}

    def place(
        self,
        message: values_pb2.SharedMemory,
        array: Array,
        dtype: np.dtype[Any],
        value: object,
        *,
        in_place: bool,
    ) -> bool:
        """Place a tensor in the arena: see ``TensorMemory.place``.

        With ``in_place``, an array in the arena is not copied, and an array that occurs twice is
        placed once. Otherwise each is copied each time.
        """
        if array.nbytes < self._threshold or not array.nbytes:
            return False
        place = self.put(array, dtype, value, in_place=in_place)
        if place is None:
            return False
        message.region, message.offset, message.length, message.read_only = place
        return True

    def put(
        self, array: Array, dtype: np.dtype[Any], value: object, *, in_place: bool
    ) -> SharedPlace | None:
        """Place a tensor of any size as ``place`` does; return None if there is no room."""
        arena, nbytes = self._arena, array.nbytes
        if arena is None:
            return None
        if in_place and (known := self._by_value.get(id(value))):
            return known[2]
        address: int = array.__array_interface__["data"][0]
        block, placed, read_only = None, array, False
        if in_place and arena.lent_out and dtype == array.dtype and dtype.kind != "b":
            block = arena.find(address, nbytes) if array.flags.c_contiguous else None
        if block is not None:
            offset = block.offset + address - block.address
            read_only = not array.flags.writeable
        else:
            skip = skip_for(address % PAGE)
            block = arena.allocate(nbytes + skip)
            if block is None:
                return None
            self._copies.append(block)
            offset = block.offset + skip
            placed = block.mapping.contents[offset : offset + nbytes]
            copy_elements(placed, array, dtype)
        place = block.region, offset, nbytes, read_only
        self.held[block.region, offset] = block
        self.regions.add(block.region)
        self._contents[block.region, offset] = placed
        if in_place:
            if placed is not array:
                placed = placed.view(dtype).reshape(array.shape)
            self._by_value[id(value)] = (value, placed, place)  # `value` stays, so its id is unique
        return place

    def put_together(
        self, leaves: Sequence[Any], shared: Sequence[tuple[int, np.dtype[Any]]]
    ) -> list[Any] | None:
        """Place several leaves together in one block, which is cheaper than ``put`` for each.

        ``shared`` has their numbers and dtypes. Return the leaves with places in place of these, or
        None if there is no room. Only for calls that do not write to them.
        """
        arena = self._arena
        if arena is None:
            return None
        placed, arrays, values = list(leaves), [], set()
        for number, _ in shared:
            value = leaves[number]
            values.add(id(value))
            arrays.append(value.array if isinstance(value, Tensor) else value)
        if arena.lent_out or len(values) < len(arrays):
            for (number, dtype), array in zip(shared, arrays, strict=True):
                place = self.put(array, dtype, leaves[number], in_place=True)
                if place is None:
                    return None
                placed[number] = place
            return placed
        starts, size = [], 0
        for array in arrays:
            skip = skip_for(array.__array_interface__["data"][0] % PAGE)
            starts.append(size + skip)
            # To the end of a page: see Note [A block owns its pages].
            size += -(-(skip + array.nbytes) // PAGE) * PAGE
        block = arena.allocate(size)
        if block is None:
            return None
        self._copies.append(block)
        self.regions.add(block.region)
        region, contents = block.region, block.mapping.contents
        for (number, dtype), array, start in zip(shared, arrays, starts, strict=True):
            offset, nbytes = block.offset + start, array.nbytes
            target = contents[offset : offset + nbytes]
            copy_elements(target, array, dtype)
            self.held[region, offset] = block
            self._contents[region, offset] = target
            placed[number] = (region, offset, nbytes, False)
        return placed

    def contents_of(self, value: object) -> Array | None:
        """Return an array over the place of ``value``; None if it was sent inline."""
        known = self._by_value.get(id(value))
        return known[1] if known else None

    def move_inline(self, message: execution_pb2.CallRequest | execution_pb2.CallReply) -> None:
        """Copy all placed tensors into the message, which then needs no shared memory.

        Must be called before ``release``, but may follow ``abandon``.
        """
        for tensor in shared_tensors_of(message):
            place = tensor.memory.region, tensor.memory.offset
            tensor.data = self._contents[place].tobytes()
            tensor.ClearField("memory")

    def keep(self, place: tuple[int, int]) -> Block | None:
        """Return the block at a place, if any, which ``release`` then does not free."""
        block = self.held.get(place)
        if block is not None and block in self._copies:
            self._copies.remove(block)
        return block

    def release(self) -> None:
        """Free the blocks of copies; arrays of the arena belong to their owners again."""
        self._by_value.clear()
        self._contents.clear()
        self.held.clear()
        self.regions.clear()
        copies, self._copies = self._copies, []
        for block in copies:
            block.release()

    def abandon(self) -> None:
        """Free the blocks without reusing their pages. See Note [Who may use a block]."""
        if self._arena is not None and self.regions:
            self._arena.abandon(self.regions)
            contents = self._contents.copy()
            self.release()
            self._contents.update(contents)  # for ``move_inline``
            self._arena.trim(idle_seconds=math.inf)


class CallerMemory:
    """A ``TensorMemory`` for one call that this process makes."""

    __slots__ = ("_on_release", "_peer", "_read", "placed")

    def __init__(
        self,
        arena: TensorArena | None,
        peer: PeerMemory,
        *,
        on_release: OnRelease,
        threshold: int = THRESHOLD,
    ) -> None:
        """Place arguments in ``arena``.

        ``on_release`` is called for each result when its last view is collected.
        """
        self.placed = PlacedTensors(arena, threshold=threshold)
        self._peer = peer
        self._on_release = on_release
        self._read: set[tuple[int, int]] = set()

    def place(
        self, message: values_pb2.Tensor, array: Array, dtype: np.dtype[Any], value: object
    ) -> bool:
        """Place an argument in the arena, unless it is small or the arena is full."""
        return self.placed.place(message.memory, array, dtype, value, in_place=True)

    def read(
        self,
        message: values_pb2.Tensor,
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
        *,
        writable: bool,
        at: str,
    ) -> Array:
        """Return an array over a result in the callee's memory.

        Raises WireError if the place is not in the callee's memory.
        """
        return self.read_at(_memory_of(message, at), shape, dtype, writable=writable, at=at)

    def read_at(
        self,
        memory: values_pb2.SharedMemory,
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
        *,
        writable: bool,
        at: str,
    ) -> Array:
        """Return an array over a result as ``read`` does, given its place."""
        array = self._peer.received(memory, shape, dtype, on_release=self._on_release, at=at)
        self._read.add((memory.region, memory.offset))
        return array

    def contents_of(self, value: object) -> Array | None:
        """Return the contents of an argument after a call that wrote to it in shared memory."""
        return self.placed.contents_of(value)

    def finish(self, reply: execution_pb2.CallReply) -> None:
        """Release the results that were not read, and the arguments, when the call is over."""
        for memory in shared_memory_of(reply):
            if (memory.region, memory.offset) not in self._read:
                self._on_release(memory.region, memory.offset)
        self.release()

    def release(self) -> None:
        """Release the arguments, after the reply has come, or if the call was never sent."""
        self.placed.release()

    def abandon(self) -> None:
        """Abandon the arguments, as no reply will come. See Note [Who may use a block]."""
        self.placed.abandon()


class CalleeMemory:
    """A ``TensorMemory`` for one call that this process serves."""

    __slots__ = ("_lent", "_written", "placed", "read_at", "release_arguments")

    def __init__(
        self, arena: TensorArena | None, lent: LentMemory, *, threshold: int = THRESHOLD
    ) -> None:
        self.placed = PlacedTensors(arena, threshold=threshold)
        self._lent = lent
        self.read_at = lent.array
        """Return an array over an argument as ``read`` does, if no operator writes to it."""
        self.release_arguments = lent.release
        """Release the arguments after the kernel, before the reply is sent."""
        self._written: dict[tuple[int, int], tuple[int, tuple[int, ...], np.dtype[Any]]] = {}

    def place(
        self, message: values_pb2.Tensor, array: Array, dtype: np.dtype[Any], value: object
    ) -> bool:
        """Place a copy of a result in the arena, unless it is small or the arena is full.

        Also copies a result that is in the arena already: the kernel may have kept it, and may
        write to it later.
        """
        return self.placed.place(message.memory, array, dtype, value, in_place=False)

    def place_copy(self, value: Array | Tensor, dtype: np.dtype[Any]) -> SharedPlace | None:
        """Place a copy of a result of any size; return None if the arena is full."""
        array: Array = value.array if isinstance(value, Tensor) else value
        return self.placed.put(array, dtype, value, in_place=False)

    def read(
        self,
        message: values_pb2.Tensor,
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
        *,
        writable: bool,
        at: str,
    ) -> Array:
        """Return an array over an argument in the caller's memory.

        Raises WireError if the place is not in the caller's memory.
        """
        memory = _memory_of(message, at)
        array = self.read_at(memory, shape, dtype, writable=writable, at=at)
        if writable:
            address = array.__array_interface__["data"][0]
            self._written[memory.region, memory.offset] = (address, shape, array.dtype)
        return array

    def is_in_place(self, sent: values_pb2.Value, value: object) -> bool:
        """Return whether ``value`` is the argument's own memory, where the caller sees writes."""
        array = value.array if isinstance(value, Tensor) else value
        if not self._written or not isinstance(array, np.ndarray):
            return False
        message = sent.tensor.memory
        address = array.__array_interface__["data"][0]
        given = self._written.get((message.region, message.offset))
        return given == (address, array.shape, array.dtype) and array.flags.c_contiguous

    def expect_writes(self) -> None:
        """Prepare for an operator that writes to arguments; called before any argument is read."""
        self._lent.writes = True

    def drop_results(self) -> None:
        """Free the results placed for a call that then failed.

        The error names no blocks, so the caller would never release them.
        """
        self.placed.release()


def _memory_of(message: values_pb2.Tensor, at: str) -> values_pb2.SharedMemory:
    if message.HasField("chunked"):
        raise WireError(f"{at}.chunked: local lanes have no chunks; expected shared memory")
    return message.memory


class ResultBlocks:
    """The blocks of results that the caller still uses. Thread-safe.

    Guards      ``_lock`` guards ``_blocks``, which has an entry for each place sent to the caller.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._blocks: dict[tuple[int, int], Block] = {}

    def hold(self, placed: PlacedTensors) -> None:
        """Hold the blocks of a reply; called before the reply is sent."""
        with self._lock:
            self._blocks.update(placed.held)

    def release(self, region: int, offset: int) -> None:
        """Free the block of a result that the caller has released.

        Raises WireError if no result is held there.
        """
        with self._lock:
            block = self._blocks.pop((region, offset), None)
        if block is None:
            raise WireError(
                f"released offset {offset} of region {region}; expected a result that is held"
            )
        block.release()

    def close(self) -> None:
        """Free all blocks, as the caller is gone."""
        with self._lock:
            blocks, self._blocks = self._blocks, {}
        for block in blocks.values():
            block.release()

    def __len__(self) -> int:
        return len(self._blocks)


@functools.lru_cache(PAGE)
def skip_for(address: int) -> int:
    """Return the offset into a block at which a copy from that address is fast.

    On some processors, copying is up to 20 times slower if source and target differ by less than
    about a cache line modulo 4096, and NumPy's large arrays begin 16 bytes into a page.
    """
    distance = address % PAGE
    return 0 if distance == 0 or _ALIASED <= distance <= PAGE - _ALIASED else 2 * _ALIASED


def copy_elements(target: Array, source: Array, dtype: np.dtype[Any]) -> None:
    """Copy an array of any layout and byte order into bytes, as ``dtype``. Releases the GIL."""
    is_bool = dtype.kind == "b"
    if source.dtype == dtype and not is_bool and source.flags.c_contiguous:
        # As bytes, because NumPy copies elements of custom dtypes one by one with the GIL held.
        target[...] = source.reshape(-1).view(np.uint8)
        return
    elements = target.view(dtype).reshape(source.shape)
    if is_bool:
        # Bools may have other bytes than 0 and 1, as a view of uint8 does.
        np.not_equal(source.view(np.uint8), 0, out=elements)
    else:
        elements[...] = source
