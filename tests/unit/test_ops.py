"""``ops.namespace.name.overload``: operators by attribute, always the ones of now."""

import copy
import inspect
from contextlib import suppress

import numpy as np
import pytest

from opdispatch import (
    ArgumentError,
    Dispatcher,
    DispatchKey,
    KernelFunction,
    Library,
    OperatorName,
    OperatorNotFoundError,
    Tensor,
    parse_schema,
)
from opdispatch.library.ops import Ops

K = DispatchKey
X = np.ones(2)
pytestmark = pytest.mark.usefixtures("caller")


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


def test_unknown_operator_raises_not_found(ops, add):
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


def test_held_packet_follows_to_the_next_registration(ops, add):
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


def test_a_packet_has_the_signature_of_its_call(ops, add):
    add("t::f(Tensor x, int n=1) -> int", 1)
    assert inspect.signature(ops.t.f) == inspect.signature(ops.t.f.__call__)


def test_the_held_call_of_a_packet_learns_of_a_second_overload(ops, add):
    add("t::f(Tensor x) -> int", 1)
    call = ops.t.f.__call__
    assert (call(X), call(X)) == (1, 1)
    add("t::f.two(Tensor x, Tensor y) -> int", 2)
    assert [call(X), call(X, X)] == [1, 2]


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


def test_operator_of_a_failed_transaction_is_not_remembered(ops, add, dispatcher):
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


def test_a_packet_from_before_an_overload_was_defined_equals_its_successors():
    dispatcher = Dispatcher()
    ops = Ops(dispatcher)
    with Library("t", "DEF", dispatcher=dispatcher) as lib:
        lib.define("f(Tensor x) -> Tensor")
        lib.define("g(Tensor x) -> Tensor")
        handlers = {ops.t.f: "f", ops.t.g: "g"}
        [held, other] = handlers
        lib.define("f.two(Tensor x, int y) -> Tensor")
        lib.impl("f.two", lambda x, y: x + y, "CPU")
        assert handlers[ops.t.f.two.overloadpacket] == "f"
        assert held == ops.t.f != other
        assert held != "t::f"
        np.testing.assert_array_equal(held(np.ones(2), 3), [4.0, 4.0])
        lib.define("f.three(Tensor x, int y, int z) -> Tensor")
        assert held.overloads() == ops.t.f.overloads() == ["default", "two", "three"]
