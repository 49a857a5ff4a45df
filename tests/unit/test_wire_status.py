"""Errors as statuses and back, small enough for a trailer; and what failed calls become."""

import asyncio
import os
import socket
import subprocess
import sys
from contextlib import contextmanager

import grpc
import pytest
from google.rpc import code_pb2, error_details_pb2, status_pb2
from hypothesis import given, settings
from hypothesis import strategies as st

from opdispatch.errors import InternalError, NoKernelError, OpdispatchError, OperatorNotFoundError
from opdispatch_wire.addresses import AddressError
from opdispatch_wire.channel import channel_options, server_options
from opdispatch_wire.errors import (
    DaemonUnavailableError,
    DeadlineExceededError,
    KernelError,
    MessageTooLargeError,
    QueueFullError,
)
from opdispatch_wire.status import (
    DETAILS_KEY,
    MAX_STATUS_BYTES,
    STATUS_OF_CODE,
    cut_lines,
    end_with,
    error_from_rpc,
    error_from_status,
    find_status_code,
    status_from_error,
)
from opdispatch_wire.v1 import execution_pb2, execution_pb2_grpc
from tests.waits import LONGEST_WAIT

OUR_CLASSES = [
    cls
    for cls in OpdispatchError.by_code.values()
    if cls.__module__.startswith(("opdispatch.", "opdispatch_wire."))
]


@pytest.mark.parametrize("cls", OUR_CLASSES, ids=lambda cls: cls.__name__)
def test_every_error_class_has_a_status_and_comes_back_as_itself(cls):
    assert cls.code in STATUS_OF_CODE
    error = cls("it broke", hint="mend it", operator="a::b", traceback="Traceback: ...")
    status = status_pb2.Status.FromString(status_from_error(error).SerializeToString())
    assert status.code == STATUS_OF_CODE[cls.code].value[0]
    back = error_from_status(status)
    assert type(back) is cls
    assert (back.message, back.hint, back.facts) == (error.message, error.hint, error.facts)
    assert str(back) == str(error)


@pytest.mark.parametrize(
    ("told", "milliseconds"),
    [("0.250", 250), (2, 2000), ("soon", None), ("nan", None), ("inf", None), (-1, None)],
)
def test_a_full_queue_says_when_to_come_back_in_grpcs_own_way(told, milliseconds):
    """Leave a value that is no delay a fact: kernels raise such errors, too."""
    status = status_from_error(QueueFullError("full", retry_after=told))
    retry, found = error_details_pb2.RetryInfo(), None
    for detail in status.details:
        if detail.Unpack(retry):
            found = retry.retry_delay.ToMilliseconds()
    assert found == milliseconds
    assert error_from_status(status).facts["retry_after"] == str(told)


def test_no_status_is_kept_for_a_class_that_is_gone():
    assert AddressError in OUR_CLASSES  # it is defined apart from the others
    assert set(STATUS_OF_CODE) == {cls.code for cls in OUR_CLASSES}


def test_the_details_are_those_that_other_clients_know():
    error = KernelError("it broke", hint="mend it", operator="a::b", traceback="Traceback: x")
    status = status_from_error(error)
    info, debug = error_details_pb2.ErrorInfo(), error_details_pb2.DebugInfo()
    assert status.details[0].Unpack(info)
    assert status.details[1].Unpack(debug)
    assert (info.reason, info.domain) == ("KERNEL_RAISED", "opdispatch")
    assert dict(info.metadata) == {"operator": "a::b", "hint": "mend it"}
    assert debug.detail == "Traceback: x"


def test_an_error_that_is_not_ours_tells_only_its_type():
    for error in (InternalError("the secret"), KeyError("the secret")):
        status = status_from_error(error)
        assert status.code == code_pb2.INTERNAL
        assert "secret" not in str(status)
        back = error_from_status(status)
        assert type(back) is OpdispatchError
        assert type(error).__name__ in back.message
        assert back.facts == {"status": "INTERNAL"}
    assert find_status_code(asyncio.CancelledError()) is grpc.StatusCode.CANCELLED


def test_a_class_unknown_here_comes_back_as_the_root_with_its_status():
    status = status_from_error(NoKernelError("none", key="CPU"))
    info = error_details_pb2.ErrorInfo(
        reason="INVENTED_LATER", domain="opdispatch", metadata={"message": "x", "self": "y"}
    )
    status.details[0].Pack(info)
    back = error_from_status(status)
    assert type(back) is OpdispatchError
    assert back.facts == {"message": "x", "self": "y", "status": "UNIMPLEMENTED"}
    assert status_from_error(back).code == code_pb2.UNIMPLEMENTED  # passed on by a daemon


def test_a_foreign_domain_or_broken_details_are_no_error_of_ours():
    status = status_pb2.Status(code=code_pb2.NOT_FOUND, message="gone")
    info = error_details_pb2.ErrorInfo(reason="ARGUMENT", domain="example.com")
    status.details.add().Pack(info)
    assert type(error_from_status(status)) is OpdispatchError
    status.details[0].value = b"\xff\xff"
    back = error_from_status(status)
    assert (back.message, back.facts) == ("gone", {"status": "NOT_FOUND"})
    assert error_from_status(status_pb2.Status(code=99)).facts == {"status": "99"}


def test_the_remote_traceback_shows_where_the_error_is_printed():
    status = status_from_error(
        KernelError("it broke", interpreter="w1", traceback="line 1\nline 2")
    )
    assert error_from_status(status).__notes__ == ["In the interpreter w1:\nline 1\nline 2"]


def long_traceback(lines=2000):
    body = "\n".join(
        f'  File "ops.py", line {i}, in f{i}\n    return f{i + 1}(x)' for i in range(lines)
    )
    return f"Traceback (most recent call last):\n{body}\nValueError: the reason"


def test_a_long_traceback_keeps_its_ends_and_says_what_it_lost():
    status = status_from_error(KernelError("it broke", traceback=long_traceback()))
    assert MAX_STATUS_BYTES - 500 < status.ByteSize() <= MAX_STATUS_BYTES
    traceback = error_from_status(status).facts["traceback"]
    assert traceback.startswith("Traceback (most recent call last):\n")
    assert traceback.endswith("ValueError: the reason")
    assert "lines cut ..." in traceback


def test_a_status_that_passes_through_a_second_process_stays_as_it_is():
    first = status_from_error(
        KernelError("é" * 5000, hint="x" * 900, fact="y" * 9000, traceback=long_traceback())
    )
    second = status_from_error(error_from_status(first))
    assert error_from_status(second).facts == error_from_status(first).facts
    assert second.message == first.message


@settings(deadline=None)
@given(
    st.text(max_size=5000),
    st.text(max_size=2000),
    st.dictionaries(st.text(max_size=30), st.text(max_size=3000), max_size=40),
    st.one_of(st.text(max_size=20_000), st.just("x" * 50_000), st.just("é\n" * 9000)),
)
def test_no_error_is_too_long_for_a_trailer(message, hint, facts, traceback):
    error = KernelError(message, hint=hint, traceback=traceback)
    error.facts.update({name: fact for name, fact in facts.items() if name != "hint"})
    status = status_from_error(error)
    assert status.ByteSize() <= MAX_STATUS_BYTES
    assert type(error_from_status(status)) is KernelError


def test_halves_of_surrogate_pairs_do_not_break_a_status():
    error = KernelError("file \udcff", hint="\udcff", path="\udcff", traceback="\udcff")
    assert "udcff" in error_from_status(status_from_error(error)).message


def test_short_text_is_not_cut():
    assert cut_lines("a\nb\n", 4) == "a\nb\n"


class Failing(execution_pb2_grpc.ExecutionServiceServicer):
    """Fails each call with the error given."""

    def __init__(self, error):
        self.error = error

    async def Call(self, request, context):  # noqa: N802 - gRPC's name
        end_with(context, status_from_error(self.error), find_status_code(self.error))


@pytest.fixture
def address(tmp_path):
    return f"unix:{tmp_path / 'socket'}"


@contextmanager
def blocking_stub(address, **options):
    with grpc.insecure_channel(address, options=channel_options(**options)) as channel:
        yield execution_pb2_grpc.ExecutionServiceStub(channel)


@pytest.fixture
async def serve(address):
    """Start a server for a servicer at `address`."""
    servers = []

    async def start(servicer, **options):
        server = grpc.aio.server(options=server_options(**options))
        if servicer is not None:
            execution_pb2_grpc.add_ExecutionServiceServicer_to_server(servicer, server)
        server.add_insecure_port(address)
        await server.start()
        servers.append(server)

    yield start
    for server in servers:
        await server.stop(None)


async def call_both_ways(address, request=None, **options):
    """The error of a failed call, as grpc.aio and as grpc raise it."""
    request = request or execution_pb2.CallRequest()
    async with grpc.aio.insecure_channel(address, options=channel_options()) as channel:
        stub = execution_pb2_grpc.ExecutionServiceStub(channel)
        with pytest.raises(grpc.RpcError) as from_aio:
            await stub.Call(request, **options)

    def call():
        with blocking_stub(address) as stub, pytest.raises(grpc.RpcError) as caught:
            stub.Call(request, **options)
        return caught.value

    from_blocking = await asyncio.to_thread(call)
    return [error_from_rpc(e, address=address) for e in (from_aio.value, from_blocking)]


async def test_an_error_crosses_a_real_connection(address, serve):
    sent = OperatorNotFoundError("no operator a::b — “é”", hint="load it", closest="a::c")
    await serve(Failing(sent))
    for error in await call_both_ways(address):
        assert type(error) is OperatorNotFoundError
        assert (error.message, error.hint, error.facts) == (sent.message, sent.hint, sent.facts)


async def test_the_longest_error_crosses_a_real_connection(address, serve):
    sent = KernelError("é" * 9000, hint="h" * 9000, fact="f" * 9000, traceback=long_traceback())
    await serve(Failing(sent))
    # A peer that knows nothing of us allows 8 KiB of trailers.
    async with grpc.aio.insecure_channel(address) as channel:
        stub = execution_pb2_grpc.ExecutionServiceStub(channel)
        with pytest.raises(grpc.RpcError) as caught:
            await stub.Call(execution_pb2.CallRequest())
    error = error_from_rpc(caught.value, address=address)
    assert type(error) is KernelError
    assert "ValueError: the reason" in error.facts["traceback"]


async def test_error_without_a_listener_says_how_to_start_a_daemon(address):
    for error in await call_both_ways(address):
        assert type(error) is DaemonUnavailableError
        assert error.message == f"no daemon answers at {address}"
        assert "opdispatch serve" in error.hint
        assert error.facts["started"] == "no"


async def test_refused_port_means_no_listener():
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{unused.getsockname()[1]}"
        for error in await call_both_ways(address):
            assert error.message == f"no daemon answers at {address}"


DYING_SERVER = """
import os, sys
from concurrent.futures import ThreadPoolExecutor
import grpc
from opdispatch_wire.v1 import execution_pb2_grpc

class Dying(execution_pb2_grpc.ExecutionServiceServicer):
    def Call(self, request, context):
        os._exit(1)

server = grpc.server(ThreadPoolExecutor(1))
execution_pb2_grpc.add_ExecutionServiceServicer_to_server(Dying(), server)
server.add_insecure_port(sys.argv[1])
server.start()
print("ready", flush=True)
server.wait_for_termination()
"""


def test_a_connection_lost_during_a_call_leaves_its_outcome_open(address):
    command = [sys.executable, "-c", DYING_SERVER, address]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=os.environ) as server:
        assert server.stdout.readline() == b"ready\n"
        with blocking_stub(address) as stub, pytest.raises(grpc.RpcError) as caught:
            stub.Call(execution_pb2.CallRequest(), timeout=LONGEST_WAIT)
    error = error_from_rpc(caught.value, address=address)
    assert type(error) is DaemonUnavailableError
    assert "was lost before the reply; the call may or may not have run" in error.message
    assert error.facts["started"] == "unknown"


class Echoing(execution_pb2_grpc.ExecutionServiceServicer):
    async def Call(self, request, context):  # noqa: N802 - gRPC's name
        return execution_pb2.CallReply(id=request.id, interpreter=request.operator)


class Waiting(execution_pb2_grpc.ExecutionServiceServicer):
    async def Call(self, request, context):  # noqa: N802 - gRPC's name
        await asyncio.Event().wait()


async def test_grpcs_own_refusal_of_a_large_message_says_how_to_raise_the_limit(address, serve):
    await serve(Echoing(), max_message_bytes=1000)
    for error in await call_both_ways(address, execution_pb2.CallRequest(operator="x" * 2000)):
        assert type(error) is MessageTooLargeError
        assert "1000" in error.message
        for remedy in ("--max-message-bytes", "OPDISPATCH_MAX_MESSAGE_BYTES", "connect("):
            assert remedy in error.hint


async def test_passed_deadline_is_an_error_that_says_so(address, serve):
    await serve(Waiting())
    for error in await call_both_ways(address, timeout=0.05):
        assert type(error) is DeadlineExceededError


async def test_missing_method_of_the_peer_is_an_error_that_says_so(address, serve):
    await serve(None)
    for error in await call_both_ways(address):
        assert type(error) is OpdispatchError
        assert "does not know this request" in error.message
        assert error.facts == {"status": "UNIMPLEMENTED"}


class Foreign(execution_pb2_grpc.ExecutionServiceServicer):
    """Aborts as a server would that has never heard of us."""

    def __init__(self, *abort):
        self.abort = abort

    async def Call(self, request, context):  # noqa: N802 - gRPC's name
        await context.abort(*self.abort)


@pytest.mark.parametrize(
    ("abort", "status"),
    [
        ((grpc.StatusCode.DATA_LOSS, "no", ((DETAILS_KEY, b"\xff\xff"),)), "DATA_LOSS"),
        ((grpc.StatusCode.UNAUTHENTICATED, ""), "UNAUTHENTICATED"),
    ],
    ids=["broken-details", "no-details"],
)
async def test_other_statuses_are_named(address, serve, abort, status):
    await serve(Foreign(*abort))
    for error in await call_both_ways(address):
        assert type(error) is OpdispatchError
        assert error.facts == {"status": status}
        assert address in error.message


def test_an_rpc_error_that_says_nothing_is_still_one_of_ours():
    error = error_from_rpc(grpc.RpcError("odd"), address="unix:x")
    assert (type(error), error.facts) == (OpdispatchError, {"status": "UNKNOWN"})
    assert "odd" in error.message
