"""The ports at which interpreters take calls of clients, and who may say what there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import grpc
import numpy as np
import pytest

import opdispatch_client as oc
from opdispatch_client.endpoint import resolve_endpoint
from opdispatch_client.lanes.direct_streams import BlockingDirectStreams
from opdispatch_client.lanes.direct_way import RelayedWay
from opdispatch_client.lanes.routes import Routes
from opdispatch_wire.calls import call_request
from opdispatch_wire.status import error_from_status
from opdispatch_wire.v1 import execution_pb2, execution_pb2_grpc, remote_pb2
from tests.service.openings import Openings
from tests.service.running_daemon import RunningDaemon
from tests.service.test_call_stream import RawStream

X = np.arange(3.0)


def test_client_verifies_the_interpreter_at_a_direct_port(
    loaded_tcp: RunningDaemon, openings: Openings
):
    """Else arrays would go to a process that has taken the port since."""
    port = int(loaded_tcp.address.rpartition(":")[2])
    routes = Routes()
    target = execution_pb2.RouteTarget(interpreter="worker-9", session=99, ports=[1, port])
    reply = execution_pb2.CallReply(route=execution_pb2.Route(targets=[target]))
    routes.learn("shape", reply)
    endpoint = resolve_endpoint(loaded_tcp.address, timeout=1, max_message_bytes=None)
    streams = BlockingDirectStreams(endpoint, routes)
    try:
        assert isinstance(streams.find("shape", 65536), RelayedWay)
        assert not routes.wants("shape")  # it is being tried
        assert openings.next() == "calls cannot go to interpreter worker-9 directly"
        assert streams.find("shape", 65536) is None
        assert routes.find("shape") is None
        routes.learn("shape", reply)
        assert streams.find("shape", 65536) is None  # not tried again so soon
        assert not routes.wants("shape")
    finally:
        streams.close()


@contextmanager
def at_port(daemon: RunningDaemon) -> Iterator[tuple[grpc.Channel, execution_pb2.CallRequest]]:
    """A plain channel to the interpreter itself, and a request that it takes."""
    request = call_request("image::scale", [X, 2.0], {}, request_id=1)
    with grpc.insecure_channel(daemon.address) as channel:
        request.wants_route = True
        route = execution_pb2_grpc.ExecutionServiceStub(channel).Call(request).route
    request.wants_route = False
    request.operator, request.route_epoch = route.operator, route.epoch
    request.kernel.CopyFrom(route.kernel)
    host = daemon.address.rpartition(":")[0]
    with grpc.insecure_channel(f"{host}:{route.targets[0].ports[0]}") as channel:
        yield channel, request


def forge(request: execution_pb2.CallRequest, number: int, **fields: Any) -> bytes:
    forged = execution_pb2.CallRequest()
    forged.CopyFrom(request)
    forged.MergeFrom(execution_pb2.CallRequest(id=number, **fields))
    return forged.SerializeToString()


def test_direct_port_refuses_calls_without_a_valid_route(loaded_tcp: RunningDaemon):
    with at_port(loaded_tcp) as (channel, request):
        stream = RawStream(channel)
        stream.say(request.SerializeToString())
        assert stream.hear().interpreter == "worker-1"
        without_kernel = call_request("image::scale", [X, 2.0], {}, request_id=2)
        stream.say(without_kernel.SerializeToString())
        stream.say(forge(request, 3, route_epoch=request.route_epoch + 1))
        stream.say(forge(request, 4, keep=remote_pb2.Keep()))
        stream.say(forge(request, 5, program=b"x"))
        stream.say(forge(request, 6, adopt=True))
        stream.say(forge(request, 7, kernel=execution_pb2.KernelRef(load_id=999)))
        stream.say(forge(request, 8, path=execution_pb2.CallPath(depth=7, lane=5, limit=999)))
        replies = {reply.id: reply for reply in (stream.hear() for _ in range(7))}
        assert isinstance(error_from_status(replies[2].error), oc.WireError)
        for number in range(3, 8):
            assert isinstance(error_from_status(replies[number].error), oc.RefusedError)
        assert not replies[8].HasField("error")  # its path is not believed, and no matter
        stream.close()
        with pytest.raises(grpc.RpcError) as caught:
            execution_pb2_grpc.ExecutionServiceStub(channel).Call(request)
        assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


@pytest.mark.parametrize(
    "message",
    [
        b"\xff\xff",
        execution_pb2.CallRequest(
            id=1, chunk=execution_pb2.Chunk(data=b"x", offset=5, length=9, total=9)
        ).SerializeToString(),
        execution_pb2.CallRequest(
            id=1, chunk=execution_pb2.Chunk(data=b"x", length=4, total=2)
        ).SerializeToString(),
    ],
    ids=["garbage", "out of order", "too long"],
)
def test_nonsense_ends_its_own_stream(loaded_tcp: RunningDaemon, message: bytes):
    with at_port(loaded_tcp) as (channel, request):
        other, stream = RawStream(channel), RawStream(channel)
        stream.say(message)
        assert stream.error().code() is grpc.StatusCode.INVALID_ARGUMENT
        other.say(request.SerializeToString())
        assert other.hear().interpreter == "worker-1"
        other.close()


def test_a_huge_length_allocates_nothing(loaded_tcp: RunningDaemon):
    with at_port(loaded_tcp) as (channel, request):
        stream = RawStream(channel)
        chunk = execution_pb2.Chunk(data=b"x", length=2**40, total=2**40)
        stream.say(execution_pb2.CallRequest(id=5, chunk=chunk).SerializeToString())
        assert isinstance(error_from_status(stream.hear().error), oc.MessageTooLargeError)
        stream.say(request.SerializeToString())
        assert stream.hear().interpreter == "worker-1"
        stream.close()
