"""``ops.namespace.name.overload``: operators by attribute, always the ones of now."""

import copy
import sys
from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from opdispatch import (
    ArgumentError,
    Dispatcher,
    DispatchKey,
    KernelFunction,
    OperatorName,
    OperatorNotFoundError,
    Tensor,
    compiled_call,
    parse_schema,
    read_only_arguments,
)
from opdispatch.ops import Ops

K = DispatchKey
X = np.ones(2)
pytestmark = pytest.mark.usefixtures("caller")


@pytest.fixture
def ops(dispatcher):
    return Ops(dispatcher)


@pytest.fixture
def add(dispatcher):
    """``add(schema, result)``: an operator that returns the result; the handles to undo it."""

    def add(schema, result=None):
        parsed = parse_schema(schema)
        kernel = KernelFunction.from_unboxed(lambda *args, **kwargs: result)
        return [
            dispatcher.register_def(parsed),
            dispatcher.register_impl(parsed.name, None, kernel),
        ]

    return add


@pytest.fixture
def looked(monkeypatch):
    """The calls for which overloads were tried."""
    looked = []
    resolve = Dispatcher.resolve_overload
    monkeypatch.setattr(
        Dispatcher, "resolve_overload", lambda *call: looked.append(call) or resolve(*call)
    )
    return looked


def close(handles):
    for handle in handles:
        handle.close()


def test_an_operator_is_called_by_its_attributes(ops, add):
    add("t::f(Tensor x, int n=1) -> str", "f")
    assert ops.t.f(X) == ops.t.f(x=X, n=2) == "f"
    assert ops.t.f.default(X) == "f"


def test_an_overload_is_chosen_by_the_arguments_or_by_its_name(ops, add):
    add("t::f(Tensor x) -> str", "plain")
    add("t::f.scaled(Tensor x, float a) -> str", "scaled")
    assert [ops.t.f(X), ops.t.f(X, 2.0), ops.t.f(X, a=1)] == ["plain", "scaled", "scaled"]
    assert ops.t.f.scaled(X, 2.0) == "scaled"
    assert str(ops.t.f.scaled.name) == "t::f.scaled"
    assert ops.t.f.overloads() == ["default", "scaled"]
    with pytest.raises(ArgumentError, match="no overload of t::f takes these arguments"):
        ops.t.f("a")


def test_a_single_overload_need_not_be_named(ops, add):
    add("t::f.only(Tensor x) -> str", "only")
    assert ops.t.f(X) == ops.t.f.only(X) == "only"
    with pytest.raises(
        OperatorNotFoundError, match=r"t::f has no overload 'default' \(it has only"
    ):
        _ = ops.t.f.default


@pytest.mark.parametrize("word", ["self", "type", "args", "name", "op"])
def test_arguments_may_have_any_name(ops, add, word):
    add(f"t::f(Tensor {word}, *, int kwargs=1) -> str", "f")
    assert ops.t.f(**{word: X}, kwargs=2) == "f"


@pytest.mark.parametrize("word", ["forget", "overloads", "name", "default", "call"])
def test_operators_may_have_any_name(ops, add, word):
    add(f"t::{word}(Tensor x) -> str", "f")
    assert getattr(ops.t, word)(X) == "f"


def test_what_is_not_there_is_not_found(ops, add):
    add("t::sobel() -> ()")
    with pytest.raises(
        OperatorNotFoundError, match=r"no operator t::soble \(did you mean t::sobel"
    ):
        _ = ops.t.soble
    with pytest.raises(OperatorNotFoundError, match="no operator u::f"):
        _ = ops.u.f
    with pytest.raises(OperatorNotFoundError, match="t::sobel has no overload 'wide'"):
        _ = ops.t.sobel.wide
    assert not hasattr(ops.t, "soble"), "the error is an AttributeError as well"


def test_names_of_python_itself_are_no_operators(ops, add):
    add("t::f() -> ()")
    for place in (ops, ops.t, ops.t.f):
        with pytest.raises(AttributeError):
            _ = place.__wrapped__


def test_kernels_alone_are_no_operator(ops, dispatcher):
    kernel = KernelFunction.from_unboxed(lambda: None)
    dispatcher.register_impl(parse_schema("t::f() -> ()").name, None, kernel)
    with pytest.raises(OperatorNotFoundError):
        _ = ops.t.f


# -- Note [What attributes remember] -------------------------------------------------------------


def test_an_operator_that_goes_is_gone_from_its_attributes(ops, add):
    handles = add("t::f(Tensor x) -> str", "f")
    packet, overload = ops.t.f, ops.t.f.default
    assert (packet(X), overload(X)) == ("f", "f")
    close(handles)
    with pytest.raises(OperatorNotFoundError):
        _ = ops.t.f
    for held in (packet, overload):
        with pytest.raises(OperatorNotFoundError):
            held(X)


def test_what_is_held_follows_to_the_next_registration(ops, add):
    handles = add("t::f(Tensor x) -> int", 1)
    packet, overload = ops.t.f, ops.t.f.default
    assert (packet(X), overload(X)) == (1, 1)
    close(handles)
    add("t::f(Tensor x, int n=0) -> int", 2)
    assert [ops.t.f(X), packet(X, n=1), overload(X, 3)] == [2, 2, 2]


def test_a_packet_that_knew_one_overload_learns_of_the_second(ops, add):
    add("t::f(Tensor x) -> int", 1)
    packet = ops.t.f
    assert (packet(X), packet(X)) == (1, 1)
    second = add("t::f.two(Tensor x, Tensor y) -> int", 2)
    assert [packet(X), packet(X, X), ops.t.f(X, X)] == [1, 2, 2]
    close(second)
    with pytest.raises(ArgumentError, match="takes 1 positional argument but 2 were given"):
        packet(X, X)


def test_a_packet_that_is_held_learns_of_everything(ops, add):
    add("t::f(Tensor x) -> int", 1)
    packet = ops.t.f
    for _ in range(3):
        second = add("t::f.two(Tensor x, Tensor y) -> int", 2)
        assert [packet(X), packet(X, X)] == [1, 2]
        close(second)
        assert packet(X) == 1


def test_an_overload_that_was_asked_for_is_an_attribute_until_one_comes_or_goes(ops, add):
    add("t::f(Tensor x) -> int", 1)
    second = add("t::f.two(Tensor x, Tensor y) -> int", 2)
    packet = ops.t.f
    assert packet.two is packet.two
    assert {"two", "default"} & set(vars(packet)) == {"two"}
    assert (packet.default(X), packet.two(X, X)) == (1, 2)
    close(second)
    assert not {"two", "default"} & set(vars(packet))
    with pytest.raises(OperatorNotFoundError, match="t::f has no overload 'two'"):
        _ = packet.two
    add("t::f.two(Tensor x, int n) -> int", 3)
    assert (packet.default(X), packet.two(X, 1)) == (1, 3)


@pytest.mark.parametrize("word", ["forget", "kept", "_kept", "_name", "_only", "_dispatcher"])
def test_overloads_may_have_the_names_of_what_packets_keep(ops, add, word):
    close(add(f"t::f.{word}(Tensor x) -> str", "f"))
    add(f"t::f.{word}(Tensor x) -> str", "f")
    packet = ops.t.f
    assert packet(X) == "f"
    assert getattr(packet, word) is not None
    add("t::f.other(Tensor x, Tensor y) -> str", "g")
    assert (packet(X), packet(X, X)) == ("f", "g")


def test_an_operator_that_comes_later_is_found_where_there_was_none(ops, add):
    namespace = ops.t
    with pytest.raises(OperatorNotFoundError):
        _ = namespace.f
    add("t::f() -> str", "f")
    assert namespace.f() == "f"


def test_what_only_a_transaction_sees_is_not_remembered(ops, add, dispatcher):
    with suppress(KeyError), dispatcher.transaction():
        add("t::f() -> str", "f")
        assert ops.t.f() == "f"
        assert ops.t.f.default() == "f"
        raise KeyError
    with pytest.raises(OperatorNotFoundError):
        _ = ops.t.f


# -- looking around --------------------------------------------------------------------------------


def test_attributes_are_listed(ops, add):
    add("t::f() -> ()")
    add("t::f.other() -> ()")
    add("u::g() -> ()")
    assert {"t", "u"} <= set(dir(ops))
    assert "f" in dir(ops.t)
    assert "g" not in dir(ops.t)
    assert {"default", "other"} <= set(dir(ops.t.f))
    assert all(hasattr(ops.t, name) for name in dir(ops.t))
    assert list(ops.t) == dir(ops.t)
    assert {"default", "other"} <= set(ops.t.f)
    assert (str(ops.t.f), ops.t.f.__name__, ops.t.f._qualified_op_name) == ("t.f", "f", "t::f")
    assert copy.deepcopy([ops.t, ops.t.f]) == [ops.t, ops.t.f]


def test_each_prints_as_what_it_is(ops, add):
    add("t::f() -> ()")
    assert [repr(ops), repr(ops.t), repr(ops.t.f), repr(ops.t.f.default)] == [
        "<opdispatch.ops>",
        "<OpNamespace t>",
        "<OpOverloadPacket t::f>",
        "<OperatorHandle t::f>",
    ]


def test_a_packet_that_knew_what_takes_tensors_learns_of_a_better_one(ops, add):
    add("t::f.tensors(Tensor x, Tensor y) -> str", "tensors")
    add("t::f.scalar(Tensor x, Scalar y) -> str", "scalar")
    packet = ops.t.f
    for _ in range(3):
        assert (packet(X, X), packet(X, 2), packet(x=X, y=X)) == ("tensors", "scalar", "tensors")
    default = add("t::f(Tensor x, Tensor y) -> str", "default")
    for _ in range(3):
        assert (packet(X, X), packet(X, 2)) == ("default", "scalar")
    for handle in reversed(default):
        handle.close()
    assert packet(X, X) == "tensors"


def test_the_only_overload_that_could_take_a_number_is_remembered(ops, add):
    add("t::f.tensors(Tensor x, Tensor y) -> str", "tensors")
    add("t::f.scalar(Tensor x, Scalar y) -> str", "scalar")
    add("t::f.longer(Tensor x, Scalar y, Scalar z) -> str", "longer")
    for _ in range(3):
        assert [ops.t.f(X, 2.0), ops.t.f(X, X), ops.t.f(X, 2.0, 1)] == [
            "scalar",
            "tensors",
            "longer",
        ]


TEXTS = (
    "(Tensor x, Tensor y) -> str",
    "(Tensor x, Scalar y) -> str",
    "(Scalar x, Tensor y) -> str",
    "(Tensor y, Tensor x) -> str",
    "(Tensor x) -> str",
    "(Tensor[] x) -> str",
    "(Tensor x, Tensor y, int n=1) -> str",
    "(Tensor x, *, Tensor y) -> str",
    "() -> str",
    "(Tensor x, Tensor? y=None, Tensor? n=None) -> str",
    "(Tensor x, Scalar? y=None, Scalar? n=None) -> str",
    "(Tensor x, Scalar y, Tensor n) -> str",
    "(Tensor x, int y, *, int? n=None) -> str",
    "(Tensor x, *, bool n=False) -> str",
    "(Tensor x, *, str n='a') -> str",
    "(Tensor x, float y) -> str",
    "(Tensor x, int[1] y) -> str",
    "(Tensor x, int[] y, bool? n=None) -> str",
)
VALUES = (
    X,
    Tensor(X),
    Tensor(np.array(3)),
    np.array(2.0),
    np.array(2),
    np.array([2]),
    np.float32(1.5),
    2,
    2**70,
    2.5,
    1j,
    True,
    None,
    "a",
    [X, X],
    [1, 2],
    (3,),
    X.view(np.matrix),
)
values = st.sampled_from(VALUES)


@given(
    st.lists(st.sampled_from(TEXTS), min_size=1, max_size=4),
    st.booleans(),
    st.lists(
        st.tuples(st.lists(values, max_size=3), st.dictionaries(st.sampled_from("xyn"), values)),
        min_size=1,
        max_size=6,
    ),
)
def test_a_packet_calls_the_overload_that_is_meant(texts, has_default, calls):
    dispatcher = Dispatcher()
    for place, text in enumerate(texts):
        name = "" if has_default and place == len(texts) // 2 else f".o{place}"
        schema = parse_schema(f"t::f{name}{text}")
        dispatcher.register_def(schema)
        kernel = KernelFunction.from_unboxed(lambda *args, _name=name, **kwargs: _name)
        dispatcher.register_impl(schema.name, K.CompositeImplicitAutograd, kernel)
    packet = Ops(dispatcher).t.f

    def outcome(call):
        try:
            return call()
        except (ArgumentError, TypeError) as error:  # of an argument that is given twice
            return type(error)

    for args, kwargs in [*calls, *calls]:  # what the first one teaches, the second one uses
        expected = outcome(
            lambda a=args, k=kwargs: dispatcher.resolve_overload("t::f", a, k)(*a, **k)
        )
        assert outcome(lambda a=args, k=kwargs: packet(*a, **k)) == expected


def test_a_known_call_of_the_overload_for_tensors_takes_one_step(ops, add, monkeypatch):
    monkeypatch.setattr(compiled_call, "COMPILE", True)
    monkeypatch.setattr(read_only_arguments, "STRICT", False)  # which takes a step more
    add("t::f.tensors(Tensor x, Tensor y) -> str", "tensors")
    add("t::f.scalar(Tensor x, Scalar y) -> str", "scalar")
    taken = []
    packet = ops.t.f
    assert packet(X, X) == "tensors"
    sys.setprofile(
        lambda frame, event, _: taken.append(frame.f_code.co_name) if event == "call" else None
    )
    try:
        packet(X, X)
    finally:
        sys.setprofile(None)
    assert taken[:2] == ["__call__", "<lambda>"]


def test_a_number_is_for_no_overload_that_takes_a_tensor_or_nothing(ops, add, looked):
    add("t::f(Tensor x, Scalar? y=None) -> str", "scalar")
    add("t::f.tensors(Tensor x, Tensor? y=None) -> str", "tensors")
    assert [ops.t.f(X, 2.0), ops.t.f(X, X), ops.t.f(X)] == ["scalar", "tensors", "scalar"]
    assert ops.t.f(X, None) == "scalar"  # both take it: the one that is tried first
    del looked[:]
    assert ops.t.f(X, 2.0) == ops.t.f(X, None) == "scalar"
    assert looked == []  # remembered


def test_arguments_given_by_name_are_remembered_by_their_names_and_types(ops, add, looked):
    add("t::f(Tensor x, int n, *, int? axis=None) -> str", "number")
    add("t::f.tensor(Tensor x, Tensor n, *, int? axis=None) -> str", "tensor")
    calls = [
        (lambda: ops.t.f(X, 2, axis=0), "number"),
        (lambda: ops.t.f(X, n=2), "number"),
        (lambda: ops.t.f(Tensor(X), Tensor(X), axis=0), "tensor"),
        (lambda: ops.t.f(x=Tensor(X), n=X, axis=None), "tensor"),
    ]
    assert [call() for call, _ in calls] == [wanted for _, wanted in calls]
    del looked[:]
    assert [call() for call, _ in calls] == [wanted for _, wanted in calls]
    assert looked == []
    for _ in range(2):
        with pytest.raises(ArgumentError, match="no overload of t::f takes these"):
            ops.t.f(X, 2, axes=0)


def test_what_lacks_an_argument_is_no_overload_for_a_call(ops, add, looked):
    add("t::f(Tensor x, Scalar? low=None, Scalar? high=None) -> str", "scalars")
    add("t::f.mixed(Tensor x, Scalar low, Tensor high) -> str", "mixed")
    for _ in range(3):
        del looked[:]
        assert ops.t.f(X, 2.0) == ops.t.f(X) == ops.t.f(X, high=2.5) == "scalars"
        assert ops.t.f(X, 2.0, Tensor(X)) == "mixed"
    assert looked == []


def test_the_overload_that_is_tried_first_is_called_at_once_where_it_takes_the_arguments(
    ops, add, looked, caller
):
    add("t::f(Tensor x, int n=1, *, Scalar? by=None, str? at=None) -> str", "first")
    add("t::f.all(Tensor x, *, Tensor by) -> str", "all")
    add("t::f.float(Tensor x, float n) -> str", "float")
    calls = [lambda: ops.t.f(X), lambda: ops.t.f(X, 2, by=0.5), lambda: ops.t.f(X, at="a", by=3)]
    assert {call() for call in calls} == {"first"}
    assert len(looked) == (1 if caller == "compiled" else 3)  # before its kernel is known
    assert [ops.t.f(X, by=Tensor(X)), ops.t.f(X, 2.5), ops.t.f(X, n=2.5)] == ["all", *["float"] * 2]
    assert [ops.t.f(x=X), ops.t.f(X, n=2), ops.t.f(X, True)] == ["first"] * 3
    for wrong in (lambda: ops.t.f(), lambda: ops.t.f(X, at=2), lambda: ops.t.f(X, 2, 3, 4)):
        with pytest.raises(ArgumentError, match="no overload of t::f takes these"):
            wrong()


def test_an_array_without_dimensions_counts_as_a_number_and_others_do_not(ops, add, looked):
    add("t::f(Tensor x, Scalar low) -> str", "scalar")
    add("t::f.tensor(Tensor x, Tensor low) -> str", "tensor")
    zero = np.array(0.0)
    assert [ops.t.f(X, X), ops.t.f(X, zero), ops.t.f(X, low=X)] == ["tensor", "scalar", "tensor"]
    del looked[:]
    assert [ops.t.f(X, X), ops.t.f(X, low=X)] == ["tensor", "tensor"]
    assert looked == []
    assert [ops.t.f(X, zero), ops.t.f(X, X), ops.t.f(X, low=zero)] == ["scalar", "tensor", "scalar"]


def test_a_number_that_two_overloads_could_take_is_looked_at_each_time(ops, add):
    add("t::f.small(int x) -> str", "small")
    add("t::f.any(float x) -> str", "any")
    for _ in range(3):
        assert [ops.t.f(1), ops.t.f(2**70)] == ["small", "any"]


def test_a_tensor_of_one_element_counts_as_a_number_whatever_was_called_before(ops, add):
    add("t::f.int(int x) -> str", "int")
    add("t::f.float(float x) -> str", "float")
    add("t::f.tensor(Tensor x) -> str", "tensor")
    one, whole = Tensor(np.array([[1.5]])), Tensor(np.array(3))
    for _ in range(3):
        assert [ops.t.f(Tensor(X)), ops.t.f(one), ops.t.f(whole)] == ["tensor", "float", "int"]


def test_a_tensor_without_elements_is_no_number_and_may_be_a_tensor(ops, add):
    add("t::f.int(int x) -> str", "int")
    add("t::f.tensor(Tensor x) -> str", "tensor")
    assert ops.t.f(Tensor(np.array(3)).to("meta")) == "tensor"


def test_a_tensor_that_stands_for_a_scalar_is_looked_at_each_time(ops, add):
    """An array with one element is taken for a Scalar, and none with more."""
    add("t::f.scalar(Scalar x) -> str", "scalar")
    add("t::f.tensor(Tensor x) -> str", "tensor")
    one = np.array(1.0)
    expected = {"scalar" if _takes(ops.t.f.scalar, one) else "tensor"}
    for _ in range(3):
        assert {ops.t.f(one)} == expected
        assert ops.t.f(X) == "tensor"


def _takes(overload, argument):
    with suppress(ArgumentError):
        overload(argument)
        return True
    return False


def test_what_may_be_left_out_is_no_matter_for_the_choice(ops, add):
    add("t::f(Tensor x, int n, int m=0, *, int? axis=None) -> str", "number")
    add("t::f.each(Tensor x, Tensor n, int m=0, *, int? axis=None) -> str", "each")
    add("t::f.text(Tensor x, str n, *, str more) -> str", "text")
    for _ in range(3):
        assert [ops.t.f(X, 2), ops.t.f(X, 2, 1), ops.t.f(X, 2, axis=1)] == ["number"] * 3
        assert [ops.t.f(X, X), ops.t.f(X, X, 1), ops.t.f(X, X, axis=1)] == ["each"] * 3
        assert [ops.t.f(X, n=X), ops.t.f(X, np.asarray(2))] == ["each", "number"]
        assert ops.t.f(X, "n", more="m") == "text"
        for args in [(X, "n"), (X,), (X, None)]:
            with pytest.raises(ArgumentError, match="no overload of t::f takes these arguments"):
                ops.t.f(*args)


@pytest.mark.parametrize("schema", ["t::f.a(float s) -> str", "t::f.a(Scalar s) -> str"])
def test_an_overload_that_is_defined_anew_is_the_last_to_be_tried(ops, dispatcher, add, schema):
    first = add("t::f.a(float s) -> str", "a")
    add("t::f.b(float s) -> str", "b")
    packet = ops.t.f
    assert [packet(1.5), packet(1.5), ops.t.f(1.5)] == ["a", "a", "a"]
    with dispatcher.transaction():
        close(first)
        add(schema, "new a")
    assert [packet(1.5), packet(1.5), ops.t.f(1.5)] == ["b", "b", "b"]


def test_an_operator_without_a_definition_is_not_suggested_for_itself(ops, dispatcher):
    dispatcher.register_impl(OperatorName("t::f"), K.CPU, KernelFunction.from_unboxed(len))
    for ask in (lambda: ops.t.f, lambda: ops.t.f.default):
        with pytest.raises(OperatorNotFoundError, match=r"operator t::f has kernels but no def"):
            ask()
    assert "f" not in dir(ops.t)


def test_kernels_are_asked_for_by_the_text_of_a_key(ops, add, dispatcher):
    add("t::f(Tensor x) -> str", "f")
    key = next(iter(ops.t.f.default.kernels())).key
    assert ops.t.f.default.has_kernel_for_dispatch_key(str(key))
    assert dispatcher.get_registrations_for_dispatch_key(str(key)) == [OperatorName("t::f")]
    assert dispatcher.has_backend_fallback_for_dispatch_key("Python")
    dispatcher.wait_for_impl("t::f", str(key), timeout=0)
    stack = [Tensor(X)]
    ops.t.f.default.call_boxed_for_dispatch_key(str(key), stack)
    assert stack == ["f"]
