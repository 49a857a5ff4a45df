"""Which overload a call of a packet means, and what it remembers of that."""

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
    Library,
    Tensor,
    parse_schema,
)
from opdispatch.boxing import read_only_arguments
from opdispatch.dispatch import compiled_call
from opdispatch.library.ops import Ops

X = np.ones(2)
pytestmark = pytest.mark.usefixtures("caller")


@pytest.fixture
def looked(monkeypatch):
    """The calls for which overloads were tried."""
    looked = []
    resolve = Dispatcher.resolve_overload
    monkeypatch.setattr(
        Dispatcher, "resolve_overload", lambda *call: looked.append(call) or resolve(*call)
    )
    return looked


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
        dispatcher.register_impl(schema.name, DispatchKey.CompositeImplicitAutograd, kernel)
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


@pytest.mark.parametrize("error", [KeyError, TypeError])
def test_a_kernel_that_raises_is_called_once(ops, dispatcher, monkeypatch, error):
    monkeypatch.setattr(compiled_call, "COMPILE", True)
    called = []

    def kernel(*args):
        called.append(args)
        raise error("of the kernel")

    library = Library("t", "FRAGMENT", dispatcher=dispatcher)
    for overload in ("tensors(Tensor x, Tensor y)", "scalar(Tensor x, Scalar y)"):
        library.define(f"f.{overload} -> str")
        library.impl(f"f.{overload.partition('(')[0]}", kernel, "CPU")
    packet = ops.t.f
    for y in (X, 2.0):
        for _ in range(3):
            called.clear()
            with pytest.raises(error, match="of the kernel"):
                packet(X, y)
            assert len(called) == 1


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


def test_overload_with_a_missing_argument_is_not_chosen(ops, add, looked):
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


def test_omitted_defaults_do_not_affect_the_choice(ops, add):
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
        for handle in first:
            handle.close()
        add(schema, "new a")
    assert [packet(1.5), packet(1.5), ops.t.f(1.5)] == ["b", "b", "b"]
