"""Shared memory as the two sides of one call use it: what they place, and what they read.

    caller    CallerMemory      arguments into its arena; results out of the callee's
    callee    CalleeMemory      arguments out of the caller's; results into its arena

    call_request(memory=...)            the caller holds the blocks of the arguments
    decode_arguments(memory=...)        arrays over them
        ... the kernel runs ...
    reply_of_returns(memory=...)        the results' blocks are held until the caller is done
    release_arguments()                 the reply says that the caller may reuse its blocks
    result_of_reply(memory=...)         arrays over the results
    CallerMemory.release()              ... when the last view of a result is gone, on_release
    ResultBlocks.release()              ... is called, and the callee may reuse its block

Note [Who may use a block]
    The caller's blocks are the callee's from the request until the reply, and no shorter: a
    call that its caller gave up on is still running. If the lane breaks in between, no message says
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
"""Tensors of at least so many bytes are put into shared memory; smaller ones are sent inline.

Measured, two in and one out: 32 KiB take 0.21 ms inline and 0.30 ms in memory, 64 KiB take 0.56
and 0.28 ms, 1 MiB 8.3 and 0.45 ms.
"""

_ALIASED = 64


class PlacedTensors:
    """The tensors of one message that are in its sender's arena. Not thread-safe."""

    __slots__ = ("_arena", "_by_value", "_contents", "_copies", "_threshold", "held", "regions")

    def __init__(self, arena: TensorArena | None, *, threshold: int = THRESHOLD) -> None:
        """Place tensors in ``arena``; without one, all are sent inline."""
        self._arena = arena
        self._threshold = threshold
        self._copies: list[Block] = []
        self.held: dict[tuple[int, int], Block] = {}
        """The blocks, by the region and offset that the message names ..."""
        self.regions: set[int] = set()
        """The regions whose descriptors the receiver must have been passed."""
        # ... and what was put there.
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

        With ``in_place``, an array of the arena is sent as it is, and one that is sent twice is
        one array for the receiver as well; otherwise all are copied, each time.
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
        """Place a tensor like ``place``, however small it is; None: there is no room."""
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
            self._by_value[id(value)] = (value, placed, place)  # `value` keeps its id taken
        return place

    def put_together(
        self, leaves: Sequence[Any], shared: Sequence[tuple[int, np.dtype[Any]]]
    ) -> list[Any] | None:
        """Place some leaves like ``put`` with ``in_place``, in one block: allocated and freed once.

        ``shared`` has their numbers and dtypes. Return the leaves with the places of these; None if
        there is no room. For a call that writes to none of them.
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
        """Return the array now in the place where ``value`` was put; None if it was sent inline."""
        known = self._by_value.get(id(value))
        return known[1] if known else None

    def move_inline(self, message: execution_pb2.CallRequest | execution_pb2.CallReply) -> None:
        """Put what was placed into the message itself, which then needs no memory.

        Before ``release``; after ``abandon``, too.
        """
        for tensor in shared_tensors_of(message):
            place = tensor.memory.region, tensor.memory.offset
            tensor.data = self._contents[place].tobytes()
            tensor.ClearField("memory")

    def keep(self, place: tuple[int, int]) -> Block | None:
        """Return the block there, which ``release`` then leaves to the caller.

        None if there is none.
        """
        block = self.held.get(place)
        if block is not None and block in self._copies:
            self._copies.remove(block)
        return block

    def release(self) -> None:
        """Free the blocks of the copies; arrays of the arena are their holders' again."""
        self._by_value.clear()
        self._contents.clear()
        self.held.clear()
        self.regions.clear()
        copies, self._copies = self._copies, []
        for block in copies:
            block.release()

    def abandon(self) -> None:
        """Free the blocks, but do not reuse their pages. See Note [Who may use a block]."""
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
        """Put an argument into the arena, unless it is there already, is small, or it is full."""
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
        """Return a result, where the callee put it.

        Raises WireError if that is not the callee's.
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
        """Return a result like ``read``."""
        array = self._peer.received(memory, shape, dtype, on_release=self._on_release, at=at)
        self._read.add((memory.region, memory.offset))
        return array

    def contents_of(self, value: object) -> Array | None:
        """Return the contents of an argument after a call that wrote to it in shared memory."""
        return self.placed.contents_of(value)

    def finish(self, reply: execution_pb2.CallReply) -> None:
        """Free the results that were not read: the reply will not be read any further."""
        for memory in shared_memory_of(reply):
            if (memory.region, memory.offset) not in self._read:
                self._on_release(memory.region, memory.offset)
        self.release()

    def release(self) -> None:
        """Release the blocks: the reply was processed, or the call was never sent."""
        self.placed.release()

    def abandon(self) -> None:
        """Abandon the blocks: no reply will come. See Note [Who may use a block]."""
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
        """Return an argument like ``read``, which nothing is written to."""
        self.release_arguments = lent.release
        """Release the arguments once they are given up, before the reply is sent."""
        self._written: dict[tuple[int, int], tuple[int, tuple[int, ...], np.dtype[Any]]] = {}

    def place(
        self, message: values_pb2.Tensor, array: Array, dtype: np.dtype[Any], value: object
    ) -> bool:
        """Put a copy of a result into the arena, unless it is small or the arena is full.

        A copy, also if it is in the arena: the kernel may have kept it and write to it later.
        """
        return self.placed.place(message.memory, array, dtype, value, in_place=False)

    def place_copy(self, value: Array | Tensor, dtype: np.dtype[Any]) -> SharedPlace | None:
        """Put a copy of a result into the arena like ``place``; None if it is full."""
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
        """Return an argument, where the caller put it.

        Raises WireError if that is not the caller's.
        """
        memory = _memory_of(message, at)
        array = self.read_at(memory, shape, dtype, writable=writable, at=at)
        if writable:
            address = array.__array_interface__["data"][0]
            self._written[memory.region, memory.offset] = (address, shape, array.dtype)
        return array

    def is_in_place(self, sent: values_pb2.Value, value: object) -> bool:
        """Return whether an argument's contents after the call are where the caller put it."""
        array = value.array if isinstance(value, Tensor) else value
        if not self._written or not isinstance(array, np.ndarray):
            return False
        message = sent.tensor.memory
        address = array.__array_interface__["data"][0]
        given = self._written.get((message.region, message.offset))
        return given == (address, array.shape, array.dtype) and array.flags.c_contiguous

    def expect_writes(self) -> None:
        """Prepare for an operator that writes to an argument; called before any is read."""
        self._lent.writes = True

    def drop_results(self) -> None:
        """Drop the results: the reply is an error, which names no blocks, so that the caller frees
        none.
        """
        self.placed.release()


def _memory_of(message: values_pb2.Tensor, at: str) -> values_pb2.SharedMemory:
    if message.HasField("chunked"):
        raise WireError(f"{at}.chunked: no chunks come on a lane of one machine")
    return message.memory


class ResultBlocks:
    """The blocks of results that the caller still looks at.

    Guards      ``_lock`` guards ``_blocks``: one entry for each time that a block was sent.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._blocks: dict[tuple[int, int], Block] = {}

    def hold(self, placed: PlacedTensors) -> None:
        """Keep what was placed in a reply, from before it is sent."""
        with self._lock:
            self._blocks.update(placed.held)

    def release(self, region: int, offset: int) -> None:
        """Release a result that the caller has finished with.

        Raises WireError if it holds none there.
        """
        with self._lock:
            block = self._blocks.pop((region, offset), None)
        if block is None:
            raise WireError(f"no result is held at {offset} of region {region}")
        block.release()

    def close(self) -> None:
        """Free all blocks: the caller is gone."""
        with self._lock:
            blocks, self._blocks = self._blocks, {}
        for block in blocks.values():
            block.release()

    def __len__(self) -> int:
        return len(self._blocks)


@functools.lru_cache(PAGE)
def skip_for(address: int) -> int:
    """Return the offset into a block that makes a copy from that address fast.

    On some processors a copy is up to 20 times slower where source and target differ by
    less than a cache line or so modulo 4096; and NumPy's large arrays begin 16 bytes into a page.
    """
    distance = address % PAGE
    return 0 if distance == 0 or _ALIASED <= distance <= PAGE - _ALIASED else 2 * _ALIASED


def copy_elements(target: Array, source: Array, dtype: np.dtype[Any]) -> None:
    """Copy any layout and byte order into as many bytes, as that dtype; other threads may run."""
    is_bool = dtype.kind == "b"
    if source.dtype == dtype and not is_bool and source.flags.c_contiguous:
        # As bytes: NumPy copies other libraries' dtypes one by one, holding the GIL.
        target[...] = source.reshape(-1).view(np.uint8)
        return
    elements = target.view(dtype).reshape(source.shape)
    if is_bool:
        # A view of bytes may have odd ones.
        np.not_equal(source.view(np.uint8), 0, out=elements)
    else:
        elements[...] = source
