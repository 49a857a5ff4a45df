"""Calls as messages: arguments out, returns and changed arguments back."""

import numpy as np
import pytest
from numpy.lib.stride_tricks import as_strided

from opdispatch.arrays import register_backend
from opdispatch.errors import ArgumentError, DeviceError, NoKernelError, ReturnError
from opdispatch.keys.dispatch_key import DispatchKey
from opdispatch.keys.dispatch_key_set import (
    DEFAULT_EXCLUDED_SET,
    DEFAULT_INCLUDED_SET,
    DispatchKeySet,
)
from opdispatch.local_state.local_dispatch_key_set import (
    ExcludeDispatchKeyGuard,
    ForceDispatchKeyGuard,
    IncludeDispatchKeyGuard,
)
from opdispatch.local_state.trace_line import TraceLine
from opdispatch.schema.parser import parse_schema
from opdispatch.tensors.tensor import Tensor
from opdispatch_wire.calls import (
    call_request,
    decode_arguments,
    reply_of_returns,
    result_of_reply,
    returns_of_reply,
    trace_line_from_proto,
    trace_line_to_proto,
    undecoded_arguments,
)
from opdispatch_wire.errors import WireError
from opdispatch_wire.modes import local_keys_of
from opdispatch_wire.status import status_from_error
from opdispatch_wire.tensors import WireTensor, tensor_to_proto
from opdispatch_wire.v1 import execution_pb2 as pb
from tests.simulated_accelerator import Accelerator, AcceleratorArray


def bind(schema, args, kwargs):
    """The stack of a call, without conversions."""
    given = dict(zip((a.name for a in schema.arguments), args, strict=False)) | kwargs
    return [given.get(a.name, a.default) for a in schema.arguments]


def call(text, kernel, *args, **kwargs):
    """Call `kernel` through the wire as an operator of that schema would be."""
    schema = parse_schema(text)
    request = call_request(str(schema.name), args, kwargs, request_id=7)
    request = pb.CallRequest.FromString(request.SerializeToString())
    stack = bind(schema, *decode_arguments(request, schema))
    returns = kernel(*stack)
    reply = reply_of_returns(request, schema, stack, returns, interpreter="w1")
    reply = pb.CallReply.FromString(reply.SerializeToString())
    assert (reply.id, reply.interpreter) == (7, "w1")
    return result_of_reply(reply, args, kwargs)


def test_positional_and_keyword_arguments_arrive():
    schema = parse_schema("t::f(Tensor x, int n, *, float a=1.0, Tensor[] ys) -> Tensor")
    request = call_request("t::f", [np.ones(2), 3], {"a": 0.5, "ys": [np.zeros(1)]}, trace=True)
    assert (request.operator, request.trace, request.id) == ("t::f", True, 0)
    args, kwargs = decode_arguments(request, schema)
    assert (args[0].tolist(), args[1], kwargs["a"], kwargs["ys"][0].tolist()) == (
        [1, 1],
        3,
        0.5,
        [0],
    )
    args, kwargs = undecoded_arguments(request)
    assert isinstance(args[0], WireTensor)
    assert isinstance(kwargs["ys"][0], WireTensor)
    assert (args[1], kwargs["a"]) == (3, 0.5)


def test_faults_in_arguments_name_their_place():
    with pytest.raises(WireError, match=r"^\$\.args\[1\]\[0\]: object cannot be sent"):
        call_request("t::f", [1, [object()]], {})
    with pytest.raises(WireError, match=r"^\$\.kwargs\['a'\]: object cannot be sent"):
        call_request("t::f", [], {"a": object()})
    with pytest.raises(WireError, match=r"^\$\.operator: .*surrogate"):
        call_request("t::\ud800", [], {})
    with pytest.raises(WireError, match=r"^\$\.kwargs\[.*surrogate"):
        call_request("t::f", [], {"\ud800": 1})
    request = call_request("t::f", [1, [np.ones((2, 3))]], {"a": np.ones(2)})
    request.args[1].list.items[0].tensor.shape[0] = -2
    for decode in (
        undecoded_arguments,
        lambda r: decode_arguments(r, parse_schema("t::f() -> ()")),
    ):
        with pytest.raises(WireError, match=r"^\$\.args\[1\]\[0\]\.shape\[0\] is -2"):
            decode(request)
    request.args[1].list.items[0].tensor.shape[0] = 2
    request.kwargs["a"].tensor.dtype = "float13"
    with pytest.raises(WireError, match=r"^\$\.kwargs\['a'\]\.dtype: unknown"):
        undecoded_arguments(request)


def test_local_keys_are_sent_when_they_are_not_the_default():
    request = call_request("t::f", [], {})
    assert not request.HasField("local_keys")
    assert local_keys_of(request) == (DEFAULT_INCLUDED_SET, DEFAULT_EXCLUDED_SET)
    tracer = DispatchKeySet.of(DispatchKey.Tracer)
    autograd = DispatchKeySet.of(DispatchKey.AutogradCPU)
    with IncludeDispatchKeyGuard(tracer), ExcludeDispatchKeyGuard(autograd):
        request = call_request("t::f", [], {})
    assert local_keys_of(request) == (
        DEFAULT_INCLUDED_SET | tracer,
        DEFAULT_EXCLUDED_SET | autograd,
    )
    with ForceDispatchKeyGuard(DispatchKeySet(), DispatchKeySet()):
        request = call_request("t::f", [], {})
    request = pb.CallRequest.FromString(request.SerializeToString())
    assert local_keys_of(request) == (DispatchKeySet(), DispatchKeySet())


def test_redispatch_keys_are_present_even_when_empty():
    assert not call_request("t::f", [], {}).HasField("redispatch_keys")
    request = call_request("t::f", [], {}, redispatch_keys=DispatchKeySet())
    assert request.HasField("redispatch_keys")
    keys = DispatchKeySet.of(DispatchKey.CPU)
    assert call_request("t::f", [], {}, redispatch_keys=keys).redispatch_keys == keys.bits


def test_no_one_or_several_returns():
    assert call("t::f(int x) -> ()", lambda x: [], 1) is None
    assert call("t::f(int x) -> int", lambda x: [x], 1) == 1
    assert call("t::f(int x) -> (int, int[])", lambda x: [x, [x]], 1) == (1, [1])
    assert call("t::f(int x) -> Tensor[]", lambda x: [[]], 1) == []


def test_returned_arrays_can_be_written_to():
    result = call("t::f(Tensor x) -> Tensor", lambda x: [x + 1], np.zeros(2))
    result += 1
    assert result.tolist() == [2, 2]


def test_only_arguments_that_the_schema_writes_to_are_writable():
    seen = []

    def kernel(x, y, zs, out):
        seen.extend([x, y, *zs, out])
        return []

    arrays = [np.zeros(1) for _ in range(4)]
    call(
        "t::f(Tensor x, Tensor(a!) y, Tensor(b!)[] zs, *, Tensor(c!) out) -> ()",
        kernel,
        arrays[0],
        arrays[1],
        [arrays[2]],
        out=arrays[3],
    )
    assert [array.flags.writeable for array in seen] == [False, True, True, True]


def test_a_written_argument_by_keyword_is_writable_too():
    def kernel(x):
        x += 1
        return [x]

    array = np.zeros(2)
    assert call("t::f(Tensor(a!) x) -> Tensor(a!)", kernel, x=array) is array
    assert array.tolist() == [1, 1]


def test_an_operator_in_place_changes_the_callers_array_and_returns_it():
    def add_(x, y):
        x += y
        return [x]

    x = np.arange(3.0)
    result = call("t::add_(Tensor(a!) x, Tensor y) -> Tensor(a!)", add_, x, np.ones(3))
    assert result is x
    assert x.tolist() == [1, 2, 3]


def test_an_array_of_any_layout_takes_its_new_contents():
    def fill(x, out):
        out[...] = x
        return [out]

    schema = "t::fill.out(Tensor x, *, Tensor(a!) out) -> Tensor(a!)"
    for out in (
        np.zeros((2, 4), dtype=">f4")[:, ::2],
        np.asfortranarray(np.zeros((2, 2), np.float32)),
        Tensor(np.zeros((2, 2), np.float32)),
    ):
        x = np.arange(4, dtype=np.float32).reshape(2, 2)

        def kernel(x, out):
            return [fill(x, out.array)[0]] if isinstance(out, Tensor) else fill(x, out)

        result = call(schema, kernel, x, out=out)
        np.testing.assert_array_equal(np.asarray(out), x)
        assert result is out or isinstance(out, Tensor)


def test_lists_of_written_tensors_are_changed_one_by_one():
    def kernel(xs, skip):
        for x in xs:
            if x is not None:
                x *= 2
        return []

    xs = [np.ones(1), np.ones((2, 2))]
    call("t::double_(Tensor(a!)[] xs, Tensor(b!)? skip=None) -> ()", kernel, xs)
    assert [x.tolist() for x in xs] == [[2], [[2, 2], [2, 2]]]


def test_a_return_is_the_argument_only_if_the_kernel_did_as_the_schema_says():
    x = np.ones(2)
    schema = "t::f(Tensor(a!) x) -> Tensor(a!)"
    assert call(schema, lambda x: [x + 1], x) is not x
    assert call(schema, lambda x: [x[:]], x) is x
    assert call(schema, lambda x: [x[:1]], x) is not x
    assert call("t::f(Tensor(a) x) -> Tensor(a)", lambda x: [x], x) is x
    assert call("t::f(Tensor x) -> Tensor", lambda x: [x], x) is not x
    assert call("t::f(Tensor(a) x) -> Tensor(b)", lambda x: [x], x) is not x


def test_an_argument_of_another_array_library_takes_its_new_contents():
    class Foreign:
        def __init__(self):
            self.array = np.zeros(2)

        def __dlpack__(self, **options):
            return self.array.__dlpack__(**options)

        def __dlpack_device__(self):
            return self.array.__dlpack_device__()

        def __array__(self, dtype=None, copy=None):
            return self.array

    foreign = Foreign()

    def kernel(x):
        x += 1
        return [x]

    assert call("t::f(Tensor(a!) x) -> Tensor(a!)", kernel, foreign) is foreign
    assert foreign.array.tolist() == [1, 1]


def frozen(array):
    array.flags.writeable = False
    return array


@pytest.mark.parametrize(
    ("argument", "words"),
    [
        (frozen(np.zeros(2)), "the operator writes to argument 0, but it is a read-only array"),
        (np.float64(1), "the operator writes to argument 0, but numpy.float64 cannot be"),
        (as_strided(np.zeros(3), (4, 3), (0, 8)), "argument 0, .* more than one element .* single"),
        (as_strided(np.zeros(5), (3, 3), (8, 8)), "argument 0, .* more than one element .* single"),
    ],
    ids=["read-only", "scalar", "repeated", "sliding"],
)
def test_an_argument_that_cannot_be_written_to_is_an_error(argument, words):
    with pytest.raises(ArgumentError, match=words):
        call("t::f(Tensor(a!) x) -> ()", lambda x: [], argument)


@pytest.mark.parametrize(
    "argument",
    [
        np.zeros((3, 4)).T[1:, ::-2],
        as_strided(np.zeros(9), (3, 3), (24, 8)),
        as_strided(np.zeros(9), (1, 3), (0, 8)),
        np.zeros((2, 3, 3)).diagonal(axis1=1, axis2=2).copy().T,
        np.zeros(25, np.uint8)[1:].view(np.float64),
    ],
    ids=["backwards", "tiles", "one row", "turned", "unaligned"],
)
def test_an_argument_of_any_layout_is_written_to(argument):
    def kernel(x):
        x[...] = np.arange(x.size).reshape(x.shape)
        return []

    call("t::f(Tensor(a!) x) -> ()", kernel, argument)
    assert argument.ravel().tolist() == list(range(argument.size))


def test_backend_error_on_write_becomes_device_error(monkeypatch):
    def fail(*_):
        raise ValueError("no such queue")

    registration = register_backend(accelerator := Accelerator())
    monkeypatch.setattr(accelerator, "assign", fail)
    reply = pb.CallReply()
    mutation = reply.mutations.add(value=tensor_to_proto(np.ones(2)))
    mutation.argument.position = 0
    try:
        with pytest.raises(
            DeviceError, match=r"backend for .*:0' raised ValueError: no such queue"
        ):
            result_of_reply(reply, [AcceleratorArray(np.zeros(2))], {})
    finally:
        registration.close()


A = np.zeros(4)


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ((A, A), "argument 0 and argument 1 share memory"),
        ((A[:3], A[1:]), "argument 0 and argument 1 share memory"),
        (([A, A], np.zeros(4)), "two items of argument 0 share memory"),
        ((np.zeros(4), Tensor(A), [A, A[::-1]]), None),
    ],
    ids=["one array", "parts", "items", "read"],
)
def test_arrays_that_share_memory_are_not_both_written_to(args, words):
    def kernel(x, y, z=()):
        for n, each in enumerate([*(x if isinstance(x, list) else [x]), y]):
            each[0] = n + 1
        return []

    kind = "Tensor(a!)[]" if isinstance(args[0], list) else "Tensor(a!)"
    A[:] = 0
    if words is None:
        call(f"t::f({kind} x, Tensor(b!) y, Tensor[] z) -> ()", kernel, *args)
        assert A.tolist() == [2, 0, 0, 0]
        return
    with pytest.raises(ArgumentError, match=f"{words}, and the operator writes to both"):
        call(f"t::f({kind} x, Tensor(b!) y) -> ()", kernel, *args)
    assert not A.any()


def test_parts_of_one_array_that_share_no_memory_are():
    def kernel(x, y):
        x += 1
        y += 2
        return []

    array = np.zeros(6)
    call("t::f(Tensor(a!) x, Tensor(b!) y) -> ()", kernel, array[::2], array[1::2])
    assert array.tolist() == [1, 2] * 3


def test_a_resized_argument_is_an_error_and_changes_nothing():
    x, y = np.zeros(2), np.zeros(2)
    reply = pb.CallReply()
    for position, contents in enumerate((np.ones(2), np.ones(3))):
        mutation = reply.mutations.add()
        mutation.argument.position = position
        mutation.value.CopyFrom(call_request("t::f", [contents], {}).args[0].tensor)
    with pytest.raises(ArgumentError, match=r"resized argument 1 from \[2\] to \[3\]"):
        result_of_reply(reply, [x, y], {})
    assert x.tolist() == [0, 0]


def test_malformed_replies_are_wire_errors():
    ones = call_request("t::f", [np.ones(2)], {}).args[0].tensor
    reply = pb.CallReply()
    mutation = reply.mutations.add(value=ones)
    mutation.argument.name = "out"
    with pytest.raises(WireError, match=r"mutations\[0\] refers to argument 'out', which the call"):
        result_of_reply(reply, [np.ones(2)], {})
    mutation.argument.position = 0
    mutation.item = 1
    for argument in (np.ones(2), [np.ones(2)]):
        with pytest.raises(WireError, match="refers to item 1 of argument 0"):
            result_of_reply(reply, [argument], {})
    mutation.ClearField("item")
    with pytest.raises(WireError, match="has dtype float64, and argument 0 has float32"):
        result_of_reply(reply, [np.ones(2, np.float32)], {})
    reply = pb.CallReply()
    reply.returns.add().argument.position = 1
    with pytest.raises(WireError, match=r"returns\[0\] refers to argument 1"):
        result_of_reply(reply, [1], {})
    reply = pb.CallReply()
    reply.returns.add()
    with pytest.raises(WireError, match=r"returns\[0\] is empty"):
        result_of_reply(reply, [], {})


def test_a_reply_with_an_error_raises_it():
    error = NoKernelError("no kernel of t::f for CUDA", available="CPU")
    reply = pb.CallReply(error=status_from_error(error))
    with pytest.raises(NoKernelError, match="no kernel of t::f for CUDA") as caught:
        returns_of_reply(reply, [], {})
    assert caught.value.facts == {"available": "CPU"}


def test_a_return_that_cannot_be_sent_is_the_kernels_fault():
    with pytest.raises(
        ReturnError, match=r"t::f produced a value .*\$\.returns\[1\]: dtype 'object'"
    ):
        call("t::f(int x) -> (int, Tensor)", lambda x: [x, np.array([None])], 1)


def test_trace_lines_carry_their_interpreter():
    line = TraceLine(2, "redispatch", "t::f.out", "CPU", "ops.py:3", "math kernel")
    message = trace_line_to_proto(line, interpreter="w1")
    assert message.interpreter == "w1"
    assert trace_line_from_proto(message) == line
    schema = parse_schema("t::f() -> ()")
    reply = reply_of_returns(pb.CallRequest(), schema, [], [], interpreter="w2", trace=[line])
    assert [(t.depth, t.interpreter) for t in reply.trace] == [(2, "w2")]
