"""An asyncio session's gRPC streams to interpreters."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine

import grpc.aio

from opdispatch_client.endpoint import Endpoint
from opdispatch_client.grpc_forks import GRPC_FORKS
from opdispatch_client.lanes.direct_streams import DirectStreams
from opdispatch_client.lanes.routes import Routes
from opdispatch_wire.credentials import shown_ticket
from opdispatch_wire.lanes.async_stream import AsyncStream
from opdispatch_wire.lanes.lane_messages import LaneClosedError, NotAdmittedError
from opdispatch_wire.v1 import execution_pb2


class AsyncDirectStreams(DirectStreams[AsyncStream]):
    """Streams for the tasks of one event loop. Each is opened in a separate task."""

    def __init__(self, endpoint: Endpoint, routes: Routes) -> None:
        super().__init__(endpoint, routes)
        self._channels: dict[AsyncStream, grpc.aio.Channel] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def _begin_opening(self, target: execution_pb2.RouteTarget, limit: int) -> None:
        self._start(self._open(target, limit))

    async def _open(self, target: execution_pb2.RouteTarget, limit: int) -> None:
        found, is_refused = None, False
        try:
            found = await self._find_open(target, limit)
        except NotAdmittedError:
            is_refused = True
        finally:  # also if cancelled: otherwise the interpreter would never be tried again
            self._opened(target, found, is_refused=is_refused)

    async def _find_open(self, target: execution_pb2.RouteTarget, limit: int) -> AsyncStream | None:
        """Open a stream to the interpreter; return None if it cannot be reached."""
        refusal: NotAdmittedError | None = None
        for port in target.ports:
            channel = self._endpoint.asyncio_interpreter_channel(port)
            GRPC_FORKS.note_channel(channel)
            try:
                stream = await AsyncStream.open(channel, limit, shown_ticket(target.ticket))
            except LaneClosedError as error:
                await channel.close()
                refusal = error if isinstance(error, NotAdmittedError) else refusal
                continue
            except BaseException:
                await channel.close()
                raise
            self._channels[stream] = channel
            if stream.peer.session == target.session:
                return stream
            self._end(stream)  # an interpreter of another daemon listens at this port
        if refusal is not None:
            raise refusal
        return None

    def _end(self, stream: AsyncStream) -> None:
        stream.close()
        self._start(self._channels.pop(stream).close())

    def _start(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
