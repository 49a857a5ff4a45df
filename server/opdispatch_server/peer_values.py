"""Values that this interpreter asks other interpreters for, without the daemon."""

from __future__ import annotations

import threading
from typing import Any

import grpc

from opdispatch_server.fork_guard import GUARD
from opdispatch_wire.addresses import grpc_target
from opdispatch_wire.blocking_lane import BlockingLane
from opdispatch_wire.channel import channel_options
from opdispatch_wire.errors import RemoteValueGoneError
from opdispatch_wire.lane_messages import LaneClosedError
from opdispatch_wire.status import error_from_rpc, error_from_status
from opdispatch_wire.v1 import execution_pb2, execution_pb2_grpc, remote_pb2, values_pb2
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

    ``_lock`` protects ``_lanes`` and ``_channels``: at most one connection for each place, which
    threads share.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        self._lanes: dict[str, BlockingLane] = {}
        self._channels: dict[str, grpc.Channel] = {}

    def fetch(self, message: values_pb2.RemoteTensor, timeout: float | None, at: str) -> Any:
        """The value, as its interpreter has it. Raises that one's error, and RemoteValueGoneError
        if it cannot be reached.
        """
        request = execution_pb2.CallRequest(
            operator="a transfer of a value", program=TRANSFER, retry=False
        )
        remote = request.args.add().remote
        remote.id, remote.session = message.id, message.session
        remote.place = message.source.place
        try:
            if message.source.lane:
                reply = self._call_on_lane(message.source.lane, request, timeout)
            else:
                reply = self._call_over_grpc(message.source.address, request, timeout)
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
        return value_from_proto(reply.returns[0], at=at, writable=True)

    def close(self) -> None:
        """Closes every connection."""
        with self._lock:
            lanes, self._lanes = self._lanes, {}
            channels, self._channels = self._channels, {}
        for lane in lanes.values():
            lane.close()
        for channel in channels.values():
            channel.close()

    def _call_on_lane(
        self, path: str, request: execution_pb2.CallRequest, timeout: float | None
    ) -> execution_pb2.CallReply:
        with self._lock:
            lane = self._lanes.get(path)
            if lane is None or lane.is_closed:
                GUARD.own_peer(f"unix:{path}")
                lane = self._lanes[path] = BlockingLane.connect(path, self._limit)
        return lane.call(request, timeout, "the request for a value")

    def _call_over_grpc(
        self, address: str, request: execution_pb2.CallRequest, timeout: float | None
    ) -> execution_pb2.CallReply:
        with self._lock:
            channel = self._channels.get(address)
            if channel is None:
                GUARD.own_peer(address)
                channel = self._channels[address] = grpc.insecure_channel(
                    grpc_target(address), options=channel_options(self._limit, address=address)
                )
        stub = execution_pb2_grpc.ExecutionServiceStub(channel)  # type: ignore[no-untyped-call]
        try:
            reply: execution_pb2.CallReply = stub.Call(request, timeout=timeout)
        except grpc.RpcError as error:
            raise error_from_rpc(error, address=address) from None
        return reply
