"""Reassemble the chunks of large tensors received on a gRPC stream of calls.

A tensor's memory is allocated at once, when its first chunk declares the length. It comes out of a
budget, because declaring a large length costs the peer nothing.
"""

from __future__ import annotations

import time
import weakref
from collections import deque
from typing import Any, TypeAlias

import numpy as np

from opdispatch_wire.chunks import Buffer
from opdispatch_wire.errors import MessageTooLargeError, QueueFullError, WireError
from opdispatch_wire.message_size import RAISE_CALL_LIMIT_HINT
from opdispatch_wire.v1 import execution_pb2

Bytes: TypeAlias = "np.ndarray[Any, np.dtype[np.uint8]]"

CALLS_AT_ONCE = 1024
"""Most calls of one stream whose tensors are incomplete."""
# A smaller tensor counts as so many bytes, because each has a fixed cost.
_LEAST_BYTES = 4096
_RETRY_AFTER = "1.000"


class TensorBudget:
    """A limit on the bytes of received tensors, for one stream or the whole process.

    An allocation counts until its last reference is gone, which may happen in any thread; therefore
    returned bytes go through a queue. Everything else is for one thread only.
    """

    def __init__(self, limit: int, whose: str, whole: TensorBudget | None = None) -> None:
        """Allow ``limit`` bytes, which also count towards the budget ``whole``.

        ``whose`` names the tensors in errors.
        """
        self.limit = limit
        self._whose = whose
        self._whole = whole
        self._held = 0
        self._given_back: deque[int] = deque()

    @property
    def held(self) -> int:
        """The number of bytes allocated now."""
        while self._given_back:
            self._held -= self._given_back.popleft()
        return self._held

    def allocate(self, length: int) -> Bytes:
        """Allocate memory for a tensor. Raises QueueFullError if there is not enough now."""
        count = max(length, _LEAST_BYTES)
        self._check(count)
        try:
            tensor = np.empty(length, np.uint8)
        except (MemoryError, ValueError) as error:
            raise self._full(f"cannot allocate another {length} bytes") from error
        self._hold(tensor, count)
        return tensor

    def _check(self, count: int) -> None:
        if self.held + count > self.limit:
            raise self._full(
                f"{self._whose} hold {self._held} bytes, and the limit is {self.limit} bytes"
            )
        if self._whole is not None:
            self._whole._check(count)

    def _hold(self, tensor: Bytes, count: int) -> None:
        self._held += count
        weakref.finalize(tensor, self._given_back.append, count).atexit = False
        if self._whole is not None:
            self._whole._hold(tensor, count)

    def _full(self, why: str) -> QueueFullError:
        return QueueFullError(
            f"a large tensor of the call was refused: {why}",
            hint="try again when other calls have ended, or raise the limit: "
            "`opdispatch serve --max-call-bytes N`",
            started="no",
            limit=str(self.limit),
            retry_after=_RETRY_AFTER,
        )


class _Assembly:
    """The tensors of one message so far; only the last of them may be incomplete."""

    __slots__ = ("declared", "have", "heard_at", "received", "tensors", "total")

    def __init__(self, total: int) -> None:
        self.total = total
        self.tensors: list[Bytes] = []
        self.declared = 0  # the bytes of ``tensors``
        self.received = 0
        self.have = 0  # of the last tensor
        self.heard_at = 0.0

    @property
    def last_length(self) -> int:
        return len(self.tensors[-1]) if self.tensors else 0


class ChunkAssembler:
    """The incomplete messages of one stream. Only for the thread or task that reads the stream."""

    def __init__(self, budget: TensorBudget) -> None:
        self._budget = budget
        self.incomplete: dict[int, _Assembly] = {}
        """The messages whose tensors are incomplete, by id; changed only here."""

    def take(self, number: int, chunk: execution_pb2.Chunk) -> None:
        """Add a chunk to the message with that id, which is dropped after an error.

        Raises WireError for a chunk that does not follow the previous one, MessageTooLargeError for
        tensors beyond the limit, and QueueFullError if there is not enough memory now.
        """
        assembly = self.incomplete.pop(number, None)
        if assembly is None:
            assembly = self._begin(chunk)
        self._add(assembly, chunk)
        assembly.heard_at = time.monotonic()
        self.incomplete[number] = assembly

    def finish(self, number: int) -> list[Buffer]:
        """Return the tensors of a message that has arrived itself; empty if it has none.

        Raises WireError if they are incomplete.
        """
        assembly = self.incomplete.pop(number, None)
        if assembly is None:
            return []
        if assembly.received != assembly.total:
            raise WireError(
                f"$.chunk: only {assembly.received} of {assembly.total} bytes of the tensors were "
                "received before their message"
            )
        return [tensor.data for tensor in assembly.tensors]

    def drop(self, number: int) -> None:
        """Drop a message that is no longer awaited."""
        self.incomplete.pop(number, None)

    def drop_idle(self, patience: float) -> list[int]:
        """Drop the messages without a chunk for ``patience`` seconds; return their ids."""
        before = time.monotonic() - patience
        idle = [number for number, each in self.incomplete.items() if each.heard_at < before]
        for number in idle:
            del self.incomplete[number]
        return idle

    def touch(self) -> None:
        """Restart the idle time of all messages."""
        now = time.monotonic()
        for assembly in self.incomplete.values():
            assembly.heard_at = now

    def clear(self) -> None:
        """Drop all messages."""
        self.incomplete.clear()

    def _begin(self, chunk: execution_pb2.Chunk) -> _Assembly:
        if len(self.incomplete) >= CALLS_AT_ONCE:
            raise WireError(
                f"$.chunk begins the tensors of another call; the limit is {CALLS_AT_ONCE} calls "
                "with incomplete tensors"
            )
        if chunk.total > self._budget.limit:
            raise MessageTooLargeError(
                f"the large tensors of the call have {chunk.total} bytes; the limit is "
                f"{self._budget.limit} bytes",
                hint=RAISE_CALL_LIMIT_HINT,
                size=str(chunk.total),
                limit=str(self._budget.limit),
            )
        return _Assembly(chunk.total)

    def _add(self, assembly: _Assembly, chunk: execution_pb2.Chunk) -> None:
        data = chunk.data
        if not data:
            raise WireError("$.chunk.data is empty; expected at least one byte")
        is_complete = assembly.have == assembly.last_length
        tensor = len(assembly.tensors) - (not is_complete)
        offset = 0 if is_complete else assembly.have
        if (chunk.tensor, chunk.offset) != (tensor, offset):
            raise WireError(
                f"$.chunk is of byte {chunk.offset} of tensor {chunk.tensor}; expected byte "
                f"{offset} of tensor {tensor}"
            )
        if chunk.total != assembly.total:
            raise WireError(f"$.chunk.total is {chunk.total}; expected {assembly.total} as before")
        if not is_complete and chunk.length != assembly.last_length:
            raise WireError(
                f"$.chunk.length is {chunk.length}; expected {assembly.last_length} as before"
            )
        if offset + len(data) > chunk.length:
            raise WireError(
                f"$.chunk.data ends at byte {offset + len(data)}, beyond the tensor's length of "
                f"{chunk.length}"
            )
        if is_complete:
            if assembly.declared + chunk.length > assembly.total:
                raise WireError(
                    f"$.chunk.length adds up to {assembly.declared + chunk.length} bytes; "
                    f"$.chunk.total is {assembly.total}"
                )
            assembly.tensors.append(self._budget.allocate(chunk.length))
            assembly.declared += chunk.length
        end = offset + len(data)
        assembly.tensors[-1][offset:end] = np.frombuffer(data, np.uint8)
        assembly.have = end
        assembly.received += len(data)
