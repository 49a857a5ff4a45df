"""The memory that both ends of one lane share: the regions passed, and the blocks in use.

    caller    CallerLaneMemory    passes regions of the session's arena; holds arguments
    callee    CalleeLaneMemory    has its own arena for results; holds results

Both put frames into their lane's outbox (``Put``), and get the frames of the other side. A region's
frame is put before that of the first message which names the region.
"""

from __future__ import annotations

import functools
import threading
from collections import deque
from collections.abc import Callable, Iterable

from opdispatch_wire.errors import WireError
from opdispatch_wire.lanes.descriptors import PassedDescriptor, ReceivedDescriptors
from opdispatch_wire.lanes.frame_kind import FrameKind
from opdispatch_wire.lanes.lane_messages import LaneClosedError
from opdispatch_wire.message_size import parse_message
from opdispatch_wire.shared_memory.arena_block import Block
from opdispatch_wire.shared_memory.call_memory import (
    CalleeMemory,
    CallerMemory,
    PlacedTensors,
    ResultBlocks,
)
from opdispatch_wire.shared_memory.memory_budget import MemoryBudget
from opdispatch_wire.shared_memory.peer_memory import LentMemory, PeerMemory
from opdispatch_wire.shared_memory.tensor_arena import TensorArena
from opdispatch_wire.v1 import execution_pb2, lane_pb2, values_pb2

Put = Callable[[FrameKind, bytes, PassedDescriptor | None], None]
"""Buffers a frame, with its descriptor if any, to be written next."""

MEMORY_FRAMES = frozenset({FrameKind.REGION, FrameKind.DROP, FrameKind.RELEASE, FrameKind.KEEP})

# Extents per frame, which keeps it far below the limit on its length.
_EXTENTS_AT_ONCE = 1000
# Messages up to this size in bytes are cached: they name few places, and recur.
_SHORT = 64

_Place = tuple[int, int]  # a region's number, and the offset in it


class _LaneMemory:
    """Base of both ends of a lane's shared memory.

    Guards      ``_lock`` guards ``_passed``, the regions of our own that were passed to the other
                side and not dropped. A region is added after its frame was put, so that a thread
                which finds it here may send messages that name it.
    """

    def __init__(self, put: Put) -> None:
        self.peer = PeerMemory()
        self.descriptors = ReceivedDescriptors()
        """The descriptors received with frames of the other side."""
        self._put = put
        self._lock = threading.Lock()
        self._passed: set[int] = set()
        self.released: deque[_Place] = deque()
        """Extents of the other side's to release; the garbage collector may append at any time."""

    def drop(self, region: int) -> None:
        """Tell the peer that a region of our own has been returned to the system."""
        with self._lock:
            if region in self._passed:
                self._passed.discard(region)
                self._put(FrameKind.DROP, _region_payload(region), None)

    def tell_releases(self) -> bool:
        """Put the frames that release unused extents; return whether there were any."""
        is_any = bool(self.released)
        while self.released:
            extents: list[bytes] = []
            while self.released and len(extents) < _EXTENTS_AT_ONCE:
                try:
                    extents.append(_encode_extent(self.released.popleft()))
                except IndexError:  # another thread has taken the last one
                    break
            if extents:
                self._put(FrameKind.RELEASE, b"".join(extents), None)
        return is_any

    def _on_release(self, region: int, offset: int) -> None:
        self.released.append((region, offset))

    def _pass_regions(self, arena: TensorArena, regions: set[int]) -> bool:
        """Put frames for regions that were not passed yet; return whether all are passed now."""
        if regions <= self._passed:
            return True
        with self._lock:
            for region in regions - self._passed:
                try:
                    descriptor = PassedDescriptor(arena.descriptor(region))
                except OSError:
                    return False  # this process cannot have more descriptors
                self._put(FrameKind.REGION, _region_payload(region), descriptor)
                self._passed.add(region)
        return True

    def _take(self, kind: FrameKind, payload: bytes | memoryview) -> None:
        """Process a frame about a region of the other side.

        Raises WireError, and OSError if the region cannot be mapped here.
        """
        message = lane_pb2.LaneRegion()
        parse_message(message, payload)
        if kind is FrameKind.DROP:
            self.peer.drop_region(message.region)
            return
        try:
            self.peer.add_region(message.region, self.descriptors.take())
        except OSError:
            self.peer.refuse_region(message.region)
            raise


class CallerLaneMemory(_LaneMemory):
    """The calling end. Thread-safe, but ``take`` is only for the reader of the lane.

    Guards      ``_lock`` also guards ``_held`` and ``_has_ended``. A call's memory is held from
                before the call is sent until its reply has come, awaited or not, or until the lane
                has ended and the memory was abandoned. ``_ending`` is held while memory is
                abandoned, so that every ``end`` returns only after that.
    """

    def __init__(
        self,
        arena: TensorArena,
        put: Put,
        on_no_room: Callable[[str], None] = lambda why: None,
        on_use: Callable[[], None] = lambda: None,
    ) -> None:
        """Take the session's ``arena``, and ``put`` of the lane.

        ``on_no_room`` is called with the reason if a region of the callee cannot be mapped here.
        ``on_use`` is called whenever memory is used that can be released later.
        """
        super().__init__(put)
        self._on_use = on_use
        self._arena = arena
        self._sends_inline = False
        self._on_no_room = on_no_room
        self._held: dict[int, CallerMemory] = {}
        self._kept: dict[_Place, Block] = {}
        self._has_ended = False
        self._ending = threading.Lock()

    @property
    def is_in_use(self) -> bool:
        """Whether the other side may wait for a release."""
        return not self._has_ended and bool(len(self.peer) or self.released)

    def new_call(self, peer: PeerMemory | None = None) -> CallerMemory:
        """Return the memory for the tensors of one call; ``peer`` as of the call's beginning."""
        arena = None if self._sends_inline else self._arena
        return CallerMemory(arena, self.peer if peer is None else peer, on_release=self._on_release)

    def send_inline(self) -> None:
        """Place no more arguments in shared memory, because the callee cannot map it."""
        self._sends_inline = True

    def begin(self, request: execution_pb2.CallRequest, memory: CallerMemory) -> None:
        """Hold the memory of a call that is about to be sent, or move its tensors inline.

        Raises LaneClosedError.
        """
        if memory.placed.held:
            if not self.pass_regions(memory):
                memory.placed.move_inline(request)
                memory.release()
            else:
                self.hold(request.id, memory)
        if self.released:
            self.tell_releases()

    def pass_regions(self, memory: CallerMemory) -> bool:
        """Pass the regions of a call's tensors; return whether the callee has all of them now."""
        self._on_use()
        regions = memory.placed.regions
        return regions <= self._passed or self._pass_regions(self._arena, regions)

    def hold(self, number: int, memory: CallerMemory) -> None:
        """Hold the memory of a call with that id, which is about to be sent.

        Raises LaneClosedError.
        """
        with self._lock:
            if self._has_ended:
                raise LaneClosedError("the lane is closed", was_sent=False)
            self._held[number] = memory

    def never_sent(self, number: int) -> None:
        """Release the memory of a call that was not sent after all."""
        memory = self._held.pop(number, None)
        if memory is not None:
            memory.release()

    def replied(self, number: int) -> CallerMemory | None:
        """Stop holding the memory of a call whose reply has come, and return it."""
        return self._held.pop(number, None)

    def discard(self, reply: execution_pb2.CallReply, memory: CallerMemory | None) -> None:
        """Release the memory of a reply that will not be read."""
        (memory or self.new_call()).finish(reply)

    def take(self, kind: FrameKind, payload: bytes | memoryview) -> None:
        """Process one of MEMORY_FRAMES.

        Raises WireError, and LaneClosedError if a region of results cannot be mapped, which has to
        end the lane.
        """
        if kind is FrameKind.KEEP:
            self._keep(_places_in(payload))
        elif kind is FrameKind.RELEASE:
            for region, offset in _places_in(payload):
                if self._kept.pop((region, offset), None) is None:
                    raise WireError(
                        f"released offset {offset} of region {region}; expected a kept extent"
                    )
        else:
            try:
                self._take(kind, payload)
                self._on_use()
            except OSError as error:
                self._on_no_room(str(error))
                why = f"cannot map a region of results ({error})"
                raise LaneClosedError(why) from error

    def end(self) -> None:
        """End the lane: see Note [Who may use a block]. Idempotent."""
        with self._ending:
            with self._lock:
                self._has_ended = True
                held, self._held = self._held, {}
                kept, self._kept = self._kept, {}
            if kept:
                self._arena.abandon({region for region, _ in kept})
            for memory in held.values():
                memory.abandon()
        # Replaced, not closed: calls whose replies have come may still read from the old one.
        self.peer = PeerMemory()

    def _keep(self, places: Iterable[_Place]) -> None:
        for place in places:
            blocks = [memory.placed.keep(place) for memory in list(self._held.values())]
            block = next((block for block in blocks if block is not None), None)
            if block is None:
                raise WireError(
                    f"kept offset {place[1]} of region {place[0]}; expected an argument of a call"
                )
            self._kept[place] = block


class CalleeLaneMemory(_LaneMemory):
    """The called end. Thread-safe, but ``take`` is only for the reader of the lane."""

    def __init__(self, put: Put, budget: MemoryBudget) -> None:
        """Take ``put`` of the lane, and the ``budget`` for results of all lanes of the process."""
        super().__init__(put)
        self._arena = TensorArena(budget=budget, on_drop=self.drop)
        self._results = ResultBlocks()

    def new_call(self) -> CalleeMemory:
        """Return the memory for the tensors of one call."""
        return CalleeMemory(self._arena, LentMemory(self.peer, self._on_release))

    def end_call(self, reply: execution_pb2.CallReply, memory: CalleeMemory) -> None:
        """Release a call's arguments after its kernel, before the reply is serialized.

        The caller must have dropped all references to the arguments. If the regions of the results
        cannot be passed, the results are moved inline.
        """
        still_used = memory.release_arguments()
        if still_used:
            self._put_kept(still_used)
        if self.released:
            self.tell_releases()
        placed = memory.placed
        if placed.held and not self._pass_regions(self._arena, placed.regions):
            placed.move_inline(reply)
            placed.release()

    def end_planned(self, memory: CalleeMemory) -> bool:
        """End a call as ``end_call`` does, with a serialized reply that names the placed results.

        Return False if their regions cannot be passed: ``end_call`` then has to change the reply.
        """
        still_used = memory.release_arguments()
        if still_used:
            self._put_kept(still_used)
        placed = memory.placed
        if placed.held:
            regions = placed.regions
            if not regions <= self._passed and not self._pass_regions(self._arena, regions):
                return False
            self._results.hold(placed)
        return True

    def _put_kept(self, extents: list[values_pb2.SharedMemory]) -> None:
        kept = lane_pb2.LaneExtents(extents=extents)
        self._put(FrameKind.KEEP, kept.SerializeToString(), None)

    def hold(self, placed: PlacedTensors) -> None:
        """Hold the results of a reply that is about to be put, until the caller releases them."""
        self._results.hold(placed)

    def take(self, kind: FrameKind, payload: bytes | memoryview) -> None:
        """Process one of MEMORY_FRAMES. Raises WireError."""
        if kind is FrameKind.RELEASE:
            for region, offset in _places_in(payload):
                self._results.release(region, offset)
        elif kind is FrameKind.KEEP:
            raise WireError("received a KEEP frame, which only the called side may send")
        else:
            try:
                self._take(kind, payload)
            except OSError:
                return  # calls that name the region are refused, and repeated inline

    def trim(self, idle_seconds: float) -> None:
        """Return memory that was not used for ``idle_seconds`` to the system."""
        self._arena.trim(idle_seconds=idle_seconds)

    def close(self) -> None:
        """Close the lane's memory. Idempotent."""
        self._results.close()
        self._arena.close()
        self.peer.close()


def _region_payload(region: int) -> bytes:
    return lane_pb2.LaneRegion(region=region).SerializeToString()


@functools.lru_cache(4096)  # blocks are reused, so that the same places recur
def _encode_extent(place: _Place) -> bytes:
    """Return a ``LaneExtents`` message of one place. Joining such messages merges them."""
    region, offset = place
    extent = values_pb2.SharedMemory(region=region, offset=offset)
    return lane_pb2.LaneExtents(extents=[extent]).SerializeToString()


def _places_in(payload: bytes | memoryview) -> tuple[_Place, ...]:
    """Return the places in a ``LaneExtents`` message. Raises WireError."""
    read = _read_places if len(payload) <= _SHORT else _read_places.__wrapped__
    return read(bytes(payload))


@functools.lru_cache(1024)
def _read_places(payload: bytes) -> tuple[_Place, ...]:
    message = lane_pb2.LaneExtents()
    parse_message(message, payload)
    return tuple((extent.region, extent.offset) for extent in message.extents)
