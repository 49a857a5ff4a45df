"""Handles that outlive their library: Note [A handle follows its name]."""

import gc
import weakref

import numpy as np
import pytest

from opdispatch import (
    ArgumentError,
    Dispatcher,
    DispatchKey,
    DispatchKeySet,
    KernelFunction,
    OperatorNotFoundError,
    parse_schema,
)
from opdispatch.dispatch import dispatcher as dispatcher_module
from tests.unit.plain_kernels import returning

K = DispatchKey
X = np.ones(2)
pytestmark = pytest.mark.usefixtures("caller")


def test_kernels_without_a_definition_cannot_be_called(dispatcher):
    name = parse_schema("t::f() -> ()").name
    dispatcher.register_impl(name, None, returning(None))
    op = dispatcher.find_op(name)
    text = r"operator t::f has kernels but no definition \(did you forget to define it\?\)"
    for call in (op, lambda: op.call_boxed([]), lambda: op.redispatch(DispatchKeySet())):
        with pytest.raises(OperatorNotFoundError, match=text):
            call()
    assert not op.has_schema
    dispatcher.register_def(parse_schema("t::f() -> ()"))
    assert op.has_schema
    assert op() is None


@pytest.fixture
def held(dispatcher):
    """A handle that has been called, and the registrations behind it."""
    schema = parse_schema("t::f(Tensor x) -> int")
    registrations = [
        dispatcher.register_def(schema, site="one.py:1", tags=["first"]),
        dispatcher.register_impl(schema.name, K.CPU, returning(1)),
    ]
    op = dispatcher.get_schema(schema.name)
    assert (op(X), op(X), op.redispatch(DispatchKeySet.of(K.CPU), X)) == (1, 1, 1)
    return op, registrations


def test_a_handle_of_an_operator_that_is_gone_says_so(held):
    op, registrations = held
    for handle in registrations:
        handle.close()
    text = "operator t::f is gone: the library that defined it was unloaded"
    for use in (
        lambda: op(X),
        lambda: op.redispatch(DispatchKeySet.of(K.CPU), X),
        lambda: op.call_boxed([X]),
        lambda: op.bind([X], {}),
        lambda: op.schema,
        lambda: op.dump_table(),
        lambda: op.tags,
    ):
        with pytest.raises(OperatorNotFoundError, match=text):
            use()
    assert str(op.name) == "t::f"


@pytest.mark.parametrize("order", [slice(None), slice(None, None, -1)])
def test_a_handle_serves_the_next_registration_of_its_name(dispatcher, held, order):
    op, registrations = held
    for handle in registrations[order]:
        handle.close()
    schema = parse_schema("t::f(Tensor x) -> int")
    dispatcher.register_impl(schema.name, K.CPU, returning(2))
    dispatcher.register_def(schema, site="two.py:2")
    assert (op(X), op(X)) == (2, 2)
    assert (op.defined_at, op.tags) == ("two.py:2", [])


def test_a_handle_follows_to_another_schema(dispatcher, held):
    op, registrations = held
    for handle in registrations:
        handle.close()
    schema = parse_schema("t::f(Tensor x, *, str mode='a') -> (str, int)")
    dispatcher.register_def(schema)
    kernel = KernelFunction.from_unboxed(lambda x, *, mode: (mode, 3))
    dispatcher.register_impl(schema.name, K.CPU, kernel)
    for _ in range(2):
        assert op(X) == ("a", 3)
        assert op(x=X, mode="b") == ("b", 3)
        assert op.redispatch(DispatchKeySet.of(K.CPU), X, mode="c") == ("c", 3)
        stack = op.bind([X], {})
        op.call_boxed(stack)
        assert stack == ["a", 3]
    assert op.schema == schema
    with pytest.raises(ArgumentError, match="t::f has no argument 'n'"):
        op(X, n=1)


@pytest.mark.parametrize(
    ("old", "new", "args", "received"),
    [
        ("Tensor x, int n=1", "Tensor x", [X], [X]),
        ("Tensor x, *, str mode='a'", "Tensor x", [X], [X]),
        ("Tensor x, int n=1", "Tensor x, int n=2", [X], [X, 2]),
        ("Tensor x, float n", "Tensor x, int n", [X, 3], [X, 3]),
        ("Tensor x, int[2] n", "Tensor x, int n", [X, 3], [X, 3]),
        ("Tensor x, int n", "Tensor x, Any n", [X, True], [X, True]),
    ],
)
def test_the_next_schema_gets_what_the_caller_gave(dispatcher, old, new, args, received):
    """Neither the old schema's defaults nor its conversions."""
    handles, seen = [], []
    for arguments in (old, new):
        for handle in handles:
            handle.close()
        schema = parse_schema(f"t::f({arguments}) -> ()")
        kernel = KernelFunction.from_unboxed(lambda *args, **kwargs: seen.append(list(args)))
        handles = [
            dispatcher.register_def(schema),
            dispatcher.register_impl(schema.name, K.CPU, kernel),
        ]
        if arguments == old:
            op = dispatcher.get_schema(schema.name)
            op(*args)
    op(*args)
    assert [(type(value), value is X or value) for value in seen[-1]] == [
        (type(value), value is X or value) for value in received
    ]


def test_a_handle_follows_through_many_lives(dispatcher, held):
    op, registrations = held
    for life in range(2, 6):
        for handle in registrations:
            handle.close()
        extra = "" if life % 2 else ", int n=0"
        schema = parse_schema(f"t::f(Tensor x{extra}) -> int")
        registrations = [
            dispatcher.register_def(schema),
            dispatcher.register_impl(schema.name, K.CPU, returning(life)),
        ]
        assert (op(X), op(X)) == (life, life)
        assert op.schema == schema


def test_newer_kernels_are_in_force_until_they_are_undone(dispatcher, held):
    op, _ = held
    two = dispatcher.register_impl(op.name, K.CPU, returning(2))
    three = dispatcher.register_impl(op.name, K.CPU, returning(3))
    assert (op(X), op.redispatch(DispatchKeySet.of(K.CPU), X)) == (3, 3)
    two.close()
    assert op(X) == 3
    three.close()
    assert (op(X), op.redispatch(DispatchKeySet.of(K.CPU), X)) == (1, 1)


RESULTS = {"Tensor": (X, [X]), "int": (1, [1]), "(Tensor, int)": ((X, 1), [X, 1]), "()": (None, [])}


@pytest.mark.parametrize("returns", RESULTS)
@pytest.mark.parametrize("boxed", [False, True], ids=["unboxed", "boxed"])
def test_a_call_that_is_under_way_ends_well_though_its_operator_goes(dispatcher, returns, boxed):
    """The kernel undoes its own library, in the second call: the first one is remembered."""
    result, boxed_result = RESULTS[returns]
    schema = parse_schema(f"t::f(Tensor x) -> {returns}")
    doomed = []

    def kernel(x):
        for handle in doomed:
            handle.close()
        return result

    handles = [
        dispatcher.register_def(schema),
        dispatcher.register_impl(schema.name, K.CPU, KernelFunction.from_unboxed(kernel)),
    ]
    op = dispatcher.get_schema(schema.name)
    for doomed[:] in ([], handles):
        if boxed:
            stack = [X]
            op.call_boxed(stack)
            assert stack == boxed_result
        else:
            assert op(X) in (result,)
    assert dispatcher.operators() == []


def test_a_handle_keeps_its_dispatcher_alive():
    dispatcher = Dispatcher()
    schema = parse_schema("t::f(Tensor x) -> int")
    dispatcher.register_def(schema)
    dispatcher.register_impl(schema.name, K.CPU, returning(1))
    op = dispatcher.get_schema(schema.name)
    gone = weakref.ref(dispatcher)
    del dispatcher
    gc.collect()
    assert op(X) == 1
    del op
    gc.collect()
    assert gone() is None


def test_a_handle_that_is_made_while_its_operator_goes_calls_what_has_the_name_then(
    dispatcher, monkeypatch
):
    """It is for the schema that it has found, and no other handle knows it yet."""

    def define(schema, kernel):
        parsed = parse_schema(schema)
        return [
            dispatcher.register_def(parsed),
            dispatcher.register_impl(parsed.name, K.CPU, KernelFunction.from_unboxed(kernel)),
        ]

    first = define("t::f(Tensor one) -> int", lambda one: 1)
    make = dispatcher_module.handle_class_for

    def replace_first(schema):
        monkeypatch.setattr(dispatcher_module, "handle_class_for", make)
        for handle in first:
            handle.close()
        define("t::f(Tensor two, int n=2) -> int", lambda two, n: n)
        return make(schema)

    monkeypatch.setattr(dispatcher_module, "handle_class_for", replace_first)
    op = dispatcher.get_schema("t::f")
    assert (op(X), op(X, 3), op(two=X, n=4)) == (2, 3, 4)
    with pytest.raises(ArgumentError, match=r"'one'.*Tensor two"):
        op(one=X)
