"""The daemon's end of local lanes: calls by clients, and by kernels in interpreters."""

from __future__ import annotations

import asyncio
import functools
import logging
import socket
from collections.abc import Callable

from opdispatch_server.daemon.calls.byte_budget import ByteBudget
from opdispatch_server.daemon.calls.router import CallRouter
from opdispatch_server.log_fields import Event, fields
from opdispatch_server.metrics.client_calls import (
    ClientConnection,
    local_client,
    process_client_calls,
)
from opdispatch_server.serving.calls_in_flight import CallsInFlight
from opdispatch_server.serving.lane_listener import LaneListener
from opdispatch_wire.errors import WireError
from opdispatch_wire.lanes import lane_messages
from opdispatch_wire.lanes.frame_kind import FrameKind
from opdispatch_wire.lanes.frame_outbox import FramePayload
from opdispatch_wire.lanes.frame_stream import FrameStream
from opdispatch_wire.message_size import MAX_MESSAGE_BYTES_HIGHEST, parse_message
from opdispatch_wire.planned_requests import constant_bytes_of
from opdispatch_wire.received_call import read_call
from opdispatch_wire.v1 import lane_pb2

LOG = logging.getLogger("opdispatch.lane")

STALL_SECONDS = 1.0
"""Seconds without progress after which a large call no longer keeps others waiting."""


class CallLanes:
    """All local lanes. For use in the event loop only."""

    def __init__(
        self, router: CallRouter, budget: ByteBudget, find_schemas: Callable[[str], list[str]]
    ) -> None:
        """Store the parts; ``find_schemas`` returns the schemas that an operator name may mean."""
        self._router = router
        self._budget = budget
        self._find_schemas = find_schemas
        self._listeners: list[LaneListener] = []
        self._lanes: set[CallLane] = set()

    def listen(
        self, path: str, limit: int, call_limit: int, *, is_for_kernels: bool = False
    ) -> None:
        """Accept calls at ``path``.

        ``limit`` bounds a message, ``call_limit`` one with large tensors.

        Raises OSError. Calls by kernels are never kept waiting: other calls wait for them.
        """
        budget = None if is_for_kernels else self._budget

        def add(connection: socket.socket) -> None:
            forget = self._lanes.discard
            # Calls by kernels are parts of other calls.
            known = "" if is_for_kernels else local_client(connection)
            lane = CallLane(
                connection,
                self._router,
                self._find_schemas,
                limit,
                call_limit,
                budget,
                forget,
                known,
            )
            self._lanes.add(lane)

        self._listeners.append(LaneListener(path, add))

    def close(self) -> None:
        """End every lane. Idempotent."""
        for listener in self._listeners:
            listener.close()
        for lane in list(self._lanes):
            lane.close()


class CallLane:
    """One connection that carries calls. For use in the event loop only.

    Large calls count in ``budget`` from before they are read until they are answered; one that does
    not fit is read later, and so is everything after it on this connection.
    """

    def __init__(
        self,
        connection: socket.socket,
        router: CallRouter,
        find_schemas: Callable[[str], list[str]],
        limit: int,
        call_limit: int,
        budget: ByteBudget | None,
        on_end: Callable[[CallLane], None],
        client: str,
    ) -> None:
        self._router = router
        self._find_schemas = find_schemas
        self._limit = limit
        self._call_limit = call_limit
        self._budget = budget
        # The bytes of the budget taken by the call that is being read.
        self._reserved = 0
        # And by answered calls whose replies the peer has not read.
        self._owed = 0
        self._is_waiting = False
        self._on_end = on_end
        self._client = process_client_calls().begin(client) if client else ClientConnection("")
        self._calls = CallsInFlight(router, self._send_reply, self._set_full)
        self._stream = FrameStream(
            connection,
            max(limit, call_limit),
            self._take,
            self._ended,
            may_receive=self._may_receive,
            on_drained=self._settle,
        )
        loop = asyncio.get_running_loop()
        self._look: asyncio.TimerHandle | None = None
        # Until it has sent its hello.
        self._patience: asyncio.TimerHandle | None = loop.call_later(
            lane_messages.HANDSHAKE_TIMEOUT, self.close
        )

    def close(self) -> None:
        """Close the lane; its calls are no longer awaited. Idempotent."""
        self._stream.close()
        self._tidy_up()

    def _take(self, kind: FrameKind, payload: bytes | memoryview) -> None:
        try:
            self._take_frame(kind, payload)
        except WireError as error:
            LOG.warning("a lane is closed: %s", error, extra=fields(Event.LANE_CLOSED))
            self._stream.send(FrameKind.REFUSAL, lane_messages.refusal(error))
            raise

    def _take_frame(self, kind: FrameKind, payload: bytes | memoryview) -> None:
        if self._patience is not None:
            told = lane_messages.read_hello((kind, payload))
            highest = MAX_MESSAGE_BYTES_HIGHEST
            self._calls.reply_limit = min(told.max_message_bytes or highest, highest)
            self._calls.reply_limit_with_tensors = min(told.max_call_bytes, highest)
            self._patience.cancel()
            self._patience = None
            schemas = self._find_schemas(told.operator) if told.operator else ()
            welcome = lane_messages.welcome(
                self._limit, max_call_bytes=self._call_limit, schemas=schemas
            )
            self._stream.send(FrameKind.WELCOME, welcome)
        elif kind is FrameKind.CALL:
            self._client.calls += 1
            message = b""
            if isinstance(payload, bytes) and not self._reserved and constant_bytes_of(payload):
                message = payload
                call = self._router.find_planned(payload)
                if call is not None and self._calls.take_planned(call):
                    return
            on_end = functools.partial(self._answered, self._reserved)
            self._calls.take_received(read_call(payload), on_end, message)
            self._reserved = 0  # from now on they belong to the call
        elif kind is FrameKind.CANCEL:
            cancel = lane_pb2.LaneCancel()
            parse_message(cancel, payload)
            self._calls.cancel(cancel.id)
        else:
            raise WireError(f"received a {kind.name} frame; expected CALL or CANCEL")

    def _may_receive(self, size: int) -> bool:
        if self._budget is None or self._reserved:
            return True
        if not self._is_waiting:
            self._wanted = size
            if self._budget.take(size, self._let_in):
                self._reserve()
                return True
            self._is_waiting = True
            self._stream.pause()
        return False

    def _let_in(self) -> None:
        self._is_waiting = False
        self._reserve()
        self._stream.resume()

    def _reserve(self) -> None:
        self._reserved = self._wanted
        if self._look is not None:
            self._look.cancel()  # the timer of the previous call
        self._look_later(0)

    def _look_later(self, received: int) -> None:
        loop = asyncio.get_running_loop()
        self._look = loop.call_later(STALL_SECONDS, self._look_for_progress, received)

    def _look_for_progress(self, received: int) -> None:
        """Admit others if the peer does not send the rest of the call that it began."""
        if not self._reserved or self._budget is None:
            return
        if self._stream.received_of_long > received:
            self._look_later(self._stream.received_of_long)
        else:
            reserved, self._reserved = self._reserved, 0
            self._budget.give_back(reserved)

    def _answered(self, size: int) -> None:
        self._owed += size
        self._settle()

    def _settle(self) -> None:
        """Return the bytes of answered calls, once the peer has their replies."""
        is_taken = self._stream.is_closed or not self._stream.unsent_bytes
        if self._budget is not None and self._owed and is_taken:
            owed, self._owed = self._owed, 0
            self._budget.give_back(owed)

    def _send_reply(self, reply: FramePayload) -> None:
        self._stream.send(FrameKind.REPLY, reply)

    def _set_full(self, is_full: bool) -> None:
        if is_full:
            self._stream.pause()
        else:
            self._stream.resume()

    def _ended(self, error: Exception | None) -> None:
        self._tidy_up()

    def _tidy_up(self) -> None:
        process_client_calls().end(self._client)
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None
        self._calls.close()
        if self._look is not None:
            self._look.cancel()
            self._look = None
        if self._budget is not None and self._is_waiting:
            self._budget.leave(self._let_in)
        self._owed += self._reserved
        self._reserved = 0
        self._settle()
        self._on_end(self)
