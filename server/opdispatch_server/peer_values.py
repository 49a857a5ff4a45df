"""Values that this interpreter asks other interpreters for, without the daemon."""

from __future__ import annotations

import threading
from typing import Any

import grpc

from opdispatch_server.fork_guard import GUARD
from opdispatch_wire.addresses import grpc_target
from opdispatch_wire.blocking_lane import BlockingLane
from opdispatch_wire.blocking_stream import BlockingStream
from opdispatch_wire.caller_tensors import CallerTensors
from opdispatch_wire.channel import MAX_MESSAGE_BYTES_HIGHEST, channel_options
from opdispatch_wire.chunks import BESIDE_BYTES
from opdispatch_wire.errors import RemoteValueGoneError
from opdispatch_wire.lane_messages import LaneClosedError
from opdispatch_wire.status import error_from_status
from opdispatch_wire.v1 import execution_pb2, remote_pb2, values_pb2
from opdispatch_wire.values import value_from_proto


def transfer_program() -> bytes:
    """A program without steps that returns its one input."""
    program = remote_pb2.Program()
    program.outputs.add().what.input = 0
    data: bytes = program.SerializeToString()
    return data


TRANSFER = transfer_program()


class PeerValues:
    """Connections to other interpreters, made when they are needed. Any thread may use it.

    ``_lock`` protects ``_lanes`` and ``_streams``: at most one connection for each place, which
    threads share.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        self._lanes: dict[str, BlockingLane] = {}
        self._streams: dict[str, tuple[grpc.Channel, BlockingStream]] = {}

    def fetch(self, message: values_pb2.RemoteTensor, timeout: float | None, at: str) -> Any:
        """The value, as its interpreter has it. Raises that one's error, and RemoteValueGoneError
        if it cannot be reached.
        """
        request = execution_pb2.CallRequest(
            operator="a transfer of a value", program=TRANSFER, retry=False, chunks_reply=True
        )
        remote = request.args.add().remote
        remote.id, remote.session = message.id, message.session
        remote.place = message.source.place
        tensors = CallerTensors(BESIDE_BYTES)
        try:
            way = (
                self._lane_to(message.source.lane)
                if message.source.lane
                else self._stream_to(message.source.address)
            )
            reply = way.call(request, timeout, "the request for a value", tensors=tensors)
        except (OSError, LaneClosedError, TimeoutError) as error:
            why = str(error) or "it does not answer"
            raise RemoteValueGoneError(
                f"{at}: the remote tensor {message.id.hex()} cannot be had from interpreter "
                f"{message.interpreter}: {why}",
                value=message.id.hex(),
                interpreter=message.interpreter,
                reason=why,
            ) from None
        if reply.HasField("error"):
            raise error_from_status(reply.error)
        return value_from_proto(reply.returns[0], at=at, writable=True, memory=tensors)

    def close(self) -> None:
        """Closes every connection."""
        with self._lock:
            lanes, self._lanes = self._lanes, {}
            streams, self._streams = self._streams, {}
        for lane in lanes.values():
            lane.close()
        for channel, stream in streams.values():
            stream.close()
            channel.close()

    def _lane_to(self, path: str) -> BlockingLane:
        with self._lock:
            lane = self._lanes.get(path)
            if lane is None or lane.is_closed:
                GUARD.own_peer(f"unix:{path}")
                lane = self._lanes[path] = BlockingLane.connect(
                    path, self._limit, call_limit=MAX_MESSAGE_BYTES_HIGHEST
                )
            return lane

    def _stream_to(self, address: str) -> BlockingStream:
        with self._lock:
            channel, stream = self._streams.get(address, (None, None))
            if stream is None or stream.is_closed:
                if channel is not None:
                    channel.close()
                GUARD.own_peer(address)
                channel = grpc.insecure_channel(
                    grpc_target(address), options=channel_options(self._limit, address=address)
                )
                stream = BlockingStream.open(channel, self._limit)
                self._streams[address] = channel, stream
            return stream
