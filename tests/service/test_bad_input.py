"""Bad calls of every kind: the right status, a sentence, and no harm done."""

from __future__ import annotations

import grpc
import numpy as np
import pytest
from google.rpc import error_details_pb2, status_pb2
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import opdispatch_client as oc
from opdispatch_wire.v1 import (
    execution_pb2,
    execution_pb2_grpc,
    values_pb2,
)
from opdispatch_wire.values import value_to_proto
from tests.service.conftest import StartDaemon, WriteLibrary
from tests.service.libraries import IMAGE, constant
from tests.waits import LONGEST_WAIT

SHARED_WORKERS = 1
X = np.arange(3.0)
C = grpc.StatusCode


def call(channel: grpc.Channel, request: execution_pb2.CallRequest):
    return execution_pb2_grpc.ExecutionServiceStub(channel).Call(request, timeout=LONGEST_WAIT)


def code_of(channel: grpc.Channel, request: execution_pb2.CallRequest) -> C:
    """With what code a call ends."""
    try:
        call(channel, request)
    except grpc.RpcError as error:
        return error.code()
    return C.OK


def refusal(channel: grpc.Channel, request: execution_pb2.CallRequest) -> tuple[C, str, str]:
    """Code, reason and message of a call that must fail."""
    with pytest.raises(grpc.RpcError) as caught:
        call(channel, request)
    error = caught.value
    details = dict(error.trailing_metadata()).get("grpc-status-details-bin")
    info = error_details_pb2.ErrorInfo()
    if details:
        status = status_pb2.Status.FromString(details)
        assert status.code == error.code().value[0]
        assert status.details[0].Unpack(info)
        assert info.domain == "opdispatch"
    return error.code(), info.reason, error.details()


def request(*args: object, operator: str = "image::invert", **tensor: object):
    """A request whose first argument is X, with some fields of the tensor changed."""
    message = execution_pb2.CallRequest(operator=operator)
    message.args.extend(value_to_proto(value) for value in args or (X,))
    for field, value in tensor.items():
        if field == "shape":
            del message.args[0].tensor.shape[:]
            message.args[0].tensor.shape.extend(value)
        else:
            setattr(message.args[0].tensor, field, value)
    return message


@pytest.mark.parametrize(
    ("message", "code", "reason", "words"),
    [
        (request(operator="image::nothing"), C.NOT_FOUND, "OPERATOR_NOT_FOUND", "image::nothing"),
        (request(operator=""), C.NOT_FOUND, "OPERATOR_NOT_FOUND", ""),
        (request(operator="no colons"), C.NOT_FOUND, "OPERATOR_NOT_FOUND", "no colons"),
        (request(operator="image::invert.x"), C.NOT_FOUND, "OPERATOR_NOT_FOUND", "invert.x"),
        (request(X, X), C.INVALID_ARGUMENT, "ARGUMENT", "takes 1 positional argument but 2"),
        (request(3), C.INVALID_ARGUMENT, "ARGUMENT", "expected Tensor"),
        (request("text"), C.INVALID_ARGUMENT, "ARGUMENT", "expected Tensor"),
        (request(None), C.INVALID_ARGUMENT, "ARGUMENT", "expected Tensor"),
        (request(shape=[4]), C.INVALID_ARGUMENT, "WIRE", "$.args[0].data has 24 bytes; shape [4]"),
        (request(shape=[-3]), C.INVALID_ARGUMENT, "WIRE", "$.args[0].shape[0] is -3"),
        (request(shape=[2**62, 2**62]), C.INVALID_ARGUMENT, "WIRE", "$.args[0].data has 24"),
        (request(shape=[0, 2**62, 2**62]), C.INVALID_ARGUMENT, "WIRE", "$.args[0]"),
        (request(shape=[1] * 65 + [3]), C.INVALID_ARGUMENT, "WIRE", "at most 64"),
        (request(dtype="float31"), C.INVALID_ARGUMENT, "WIRE", "float31"),
        (request(dtype="object"), C.INVALID_ARGUMENT, "WIRE", "object"),
        (request(dtype=""), C.INVALID_ARGUMENT, "WIRE", "$.args[0].dtype"),
        (request(device="tpu"), C.INVALID_ARGUMENT, "WIRE", "expected 'cpu' or 'cuda:N'"),
        (request(device="cuda:0"), C.UNIMPLEMENTED, "NO_KERNEL", "kernels serve CPU"),
        (request(dispatch_keys=0x20001), C.UNIMPLEMENTED, "NO_KERNEL", ""),
        (
            execution_pb2.CallRequest(operator="image::invert", args=[values_pb2.Value()]),
            C.INVALID_ARGUMENT,
            "WIRE",
            "$.args[0] is empty",
        ),
        (
            execution_pb2.CallRequest(operator="image::invert", kwargs={"y": value_to_proto(X)}),
            C.INVALID_ARGUMENT,
            "ARGUMENT",
            "'y'",
        ),
        (request(operator="image::boom"), C.UNKNOWN, "KERNEL_RAISED", "ValueError: no picture"),
    ],
)
def test_a_bad_call_is_answered_with_its_status_and_reason(
    unharmed: oc.Session, channel: grpc.Channel, message, code: C, reason: str, words: str
):
    answer = refusal(channel, message)
    assert answer[:2] == (code, reason), answer
    assert words in answer[2]
    assert "\n" not in answer[2]


def test_a_request_nested_too_deep_is_refused(unharmed: oc.Session, channel: grpc.Channel):
    value = values_pb2.Value(integer=1)
    for _ in range(33):
        value = values_pb2.Value(list=values_pb2.ListValue(items=[value]))
    message = execution_pb2.CallRequest(operator="image::stack", args=[value])
    assert refusal(channel, message)[:2] == (C.INVALID_ARGUMENT, "WIRE")


def test_bytes_that_are_no_message_are_refused(unharmed: oc.Session, channel: grpc.Channel):
    method = channel.unary_unary("/opdispatch.v1.ExecutionService/Call")
    for junk in (b"\xff" * 100, b"\x0a\xff\xff\xff\xff\x0f", bytes(1000)):
        with pytest.raises(grpc.RpcError) as caught:
            method(junk, timeout=LONGEST_WAIT)
        assert caught.value.code() is C.INVALID_ARGUMENT
        assert caught.value.details().startswith("$ is not the message that this method takes")


def test_a_client_cannot_name_the_kernel_itself(unharmed: oc.Session, channel: grpc.Channel):
    message = request(operator="image::invert")
    message.kernel.load_id, message.kernel.registration = 999, 999
    reply = call(channel, message)
    assert len(reply.returns) == 1


words = st.integers(0, 2**64 - 1)


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(words, words, words, st.one_of(st.none(), words))
def test_any_dispatch_keys_are_answered(
    channel: grpc.Channel, keys: int, included: int, excluded: int, redispatch: int | None
):
    message = request(dispatch_keys=keys)
    message.local_keys.included, message.local_keys.excluded = included, excluded
    if redispatch is not None:
        message.redispatch_keys = redispatch
    assert code_of(channel, message) in (C.OK, C.UNIMPLEMENTED, C.INVALID_ARGUMENT, C.UNKNOWN)


scalars = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**63), 2**63 - 1), st.floats(), st.text(max_size=5)
)
anything = st.recursive(
    st.one_of(scalars, st.just(X), st.just(np.float32(1))),
    lambda inner: st.lists(inner, max_size=3),
    max_leaves=5,
)


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    st.sampled_from(["invert", "scale", "stack", "add_", "boom", "pipeline"]),
    st.lists(anything, max_size=3),
    st.dictionaries(st.sampled_from(["x", "by", "negate", "mask", "self", "z"]), anything),
)
def test_any_arguments_are_answered(channel: grpc.Channel, name: str, args, kwargs):
    message = execution_pb2.CallRequest(operator=f"image::{name}")
    message.args.extend(value_to_proto(value) for value in args)
    for key, value in kwargs.items():
        message.kwargs[key].CopyFrom(value_to_proto(value))
    assert code_of(channel, message) in (C.OK, C.INVALID_ARGUMENT, C.UNKNOWN, C.UNIMPLEMENTED)


def test_a_return_that_the_schema_does_not_promise(
    unharmed: oc.Session, write_library: WriteLibrary
):
    text = "from opdispatch import Library\nlib = Library('liar', 'DEF')\n"
    cases = {
        "text": ("Tensor", "'text'", "expected Tensor"),
        "none": ("Tensor", "None", "expected Tensor"),
        "pair": ("(Tensor, Tensor)", "x", "a tuple of 2"),
        "more": ("(Tensor, Tensor)", "(x, x, x)", "a tuple of 2"),
        "some": ("()", "x", "expected None"),
        "huge": ("int", "2**70", ""),
        "objects": ("Tensor", "__import__('numpy').array([object()])", ""),
    }
    for name, (returns, value, _) in cases.items():
        text += f"lib.define('{name}(Tensor x) -> {returns}')\n"
        text += f"lib.impl('{name}', lambda x: {value}, 'CPU')\n"
    unharmed.load(write_library("liar", text))
    for name, (_, _, words) in cases.items():
        with pytest.raises(oc.ReturnError) as caught:
            unharmed.call(f"liar::{name}", X)
        assert words in str(caught.value)
        assert f"liar::{name}" in str(caught.value)
    unharmed.unload("liar")


def test_kernels_that_end_the_process_or_raise_strange_things(
    unharmed: oc.Session, write_library: WriteLibrary
):
    text = (
        "import sys\nfrom opdispatch import Library\nlib = Library('odd', 'DEF')\n"
        "class Unprintable(Exception):\n"
        "    def __str__(self):\n        raise RuntimeError('no')\n"
        "def recurse(x):\n    return recurse(x)\n"
        "def throw(error):\n    raise error\n"
    )
    cases = {
        "exit": ("sys.exit(3)", "SystemExit"),
        "interrupt": ("throw(KeyboardInterrupt)", "KeyboardInterrupt"),
        "stop": ("throw(StopIteration('x'))", "StopIteration"),
        "unprintable": ("throw(Unprintable())", "Unprintable"),
        "recursion": ("recurse(x)", "RecursionError"),
        "long": ("throw(ValueError('y' * 100_000))", "ValueError"),
        "unicode": ("throw(ValueError('\\ud800 \\0 \\n'))", "ValueError"),
        "cancelled": ("throw(__import__('asyncio').CancelledError())", "CancelledError"),
        "group": ("throw(ExceptionGroup('g', [ValueError('a')]))", "ExceptionGroup"),
    }
    for name, (code, _) in cases.items():
        text += f"lib.define('{name}(Tensor x) -> Tensor')\n"
        text += f"lib.impl('{name}', lambda x: {code}, 'CPU')\n"
    unharmed.load(write_library("odd", text))
    for name, (_, exception_type) in cases.items():
        with pytest.raises(oc.KernelError) as caught:
            unharmed.call(f"odd::{name}", X)
        assert caught.value.facts["exception_type"] == exception_type
        assert caught.value.facts["interpreter"]
    unharmed.unload("odd")


LIMIT = 64 * 1024
HINT = "OPDISPATCH_MAX_MESSAGE_BYTES"


def test_messages_over_the_limit_are_refused_both_ways(
    start_daemon: StartDaemon, write_library: WriteLibrary
):
    daemon = start_daemon(workers=1, environment={"OPDISPATCH_MAX_MESSAGE_BYTES": str(LIMIT)})
    with daemon.connect(lane="grpc") as session:
        session.load(write_library("image", IMAGE))
        assert session.server_info.max_message_bytes == LIMIT
        fits = np.zeros(LIMIT - 1024, np.uint8)
        assert session.ops.image.invert(fits).nbytes == fits.nbytes
        with pytest.raises(oc.MessageTooLargeError, match=str(LIMIT)) as caught:
            session.ops.image.invert(np.zeros(LIMIT, np.uint8))
        assert HINT in str(caught.value)
        with pytest.raises(oc.MessageTooLargeError, match=str(LIMIT)) as caught:
            session.ops.image.stack([fits[: LIMIT // 4]] * 3, np.zeros(1))  # eight times as large
        assert HINT in str(caught.value)
        target = daemon.address.replace("unix://", "unix:")
        with grpc.insecure_channel(target) as channel:  # which does not check first
            answer = refusal(channel, request(np.zeros(4 * LIMIT, np.uint8)))
            assert answer[0] is C.RESOURCE_EXHAUSTED
        large = session.load(write_library("large", f"{constant(1)}#{'#' * LIMIT}"))
        assert large.operators == ("const::get",)  # uploads come in messages that fit
        np.testing.assert_array_equal(session.ops.image.invert(X), 1 - X)
    for direct in (False, True):  # elsewhere, large tensors are part of no message
        with daemon.connect(direct=direct) as session:
            session.ops.image.invert(X)
            assert session.ops.image.invert(np.zeros(4 * LIMIT, np.uint8)).nbytes == 4 * LIMIT
            with pytest.raises(oc.MessageTooLargeError, match=str(LIMIT)) as caught:
                session.call("image::invert", "x" * LIMIT)
            assert HINT in str(caught.value)
