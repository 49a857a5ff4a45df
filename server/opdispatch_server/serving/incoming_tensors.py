"""The large tensors of calls over one gRPC stream, which arrive before the calls themselves."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from opdispatch.errors import OpdispatchError
from opdispatch_server.serving.calls_in_flight import ignore_event
from opdispatch_wire.chunks import Buffer
from opdispatch_wire.errors import DeadlineExceededError, WireError
from opdispatch_wire.lanes.chunk_assembler import CALLS_AT_ONCE, ChunkAssembler, TensorBudget
from opdispatch_wire.status import status_from_error
from opdispatch_wire.v1 import execution_pb2

PATIENCE = 30.0
"""Seconds within which the next chunk of a call must arrive, while the stream is read."""


class IncomingTensors:
    """Assembles chunks, and hands the complete tensors to their call. For the event loop only.

    A call whose tensors are refused is answered with its error at once; the rest of it is ignored,
    until the call itself arrives or is cancelled. ``send`` receives the serialized CallReply.
    """

    def __init__(
        self,
        budget: TensorBudget,
        send: Callable[[bytes], None],
        patience: float = PATIENCE,
    ) -> None:
        self._assembler = ChunkAssembler(budget)
        self._send = send
        self._patience = patience
        self._refused: set[int] = set()
        self._timer: asyncio.TimerHandle | None = None

    @property
    def is_empty(self) -> bool:
        """Whether no chunks have arrived for calls that have not arrived themselves."""
        return not self._refused and not self._assembler.incomplete

    def take(self, number: int, chunk: execution_pb2.Chunk) -> None:
        """Take a chunk for the call with that id. Raises WireError for an invalid one."""
        if number in self._refused:
            return
        try:
            self._assembler.take(number, chunk)
        except WireError:
            raise
        except OpdispatchError as error:
            self._refuse(number, error)
        if self._timer is None and self._assembler.incomplete:
            self._watch()

    def finish(self, number: int) -> Sequence[Buffer] | None:
        """Return the tensors of a call that has arrived; None if it was refused and answered."""
        if number in self._refused:
            self._refused.discard(number)
            return None
        try:
            return self._assembler.finish(number)
        except WireError as error:
            self._reply(number, error)
            return None

    def drop(self, number: int) -> None:
        """Drop the tensors of a cancelled call."""
        self._assembler.drop(number)
        self._refused.discard(number)

    def note_pause(self) -> None:
        """Record a pause in reading, which does not count against the chunk timeout."""
        self._assembler.touch()

    def close(self) -> None:
        """Drop all incomplete tensors, and call no callback afterwards. Idempotent."""
        self._assembler.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._send = ignore_event

    def _refuse(self, number: int, error: OpdispatchError) -> None:
        if len(self._refused) >= CALLS_AT_ONCE:
            raise WireError(
                f"$.chunk: the tensors of {CALLS_AT_ONCE} calls were refused, and none of these "
                "calls was cancelled"
            )
        self._refused.add(number)
        self._reply(number, error)

    def _reply(self, number: int, error: OpdispatchError) -> None:
        reply = execution_pb2.CallReply(id=number, error=status_from_error(error))
        self._send(reply.SerializeToString())

    def _watch(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._patience / 4, self._check)

    def _check(self) -> None:
        self._timer = None
        for number in self._assembler.drop_idle(self._patience):
            error = DeadlineExceededError(
                f"nothing more of the call's large tensors came for {self._patience:g} s; it "
                "never started",
                started="no",
            )
            self._reply(number, error)
            if len(self._refused) < CALLS_AT_ONCE:
                self._refused.add(number)
        if self._assembler.incomplete:
            self._watch()
