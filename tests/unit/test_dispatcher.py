"""The dispatcher: finding operators, choosing overloads, telling listeners."""

import numpy as np
import pytest

from opdispatch import (
    ArgumentError,
    Dispatcher,
    DispatchKey,
    KernelFunction,
    OperatorName,
    OperatorNotFoundError,
    SchemaError,
    Tensor,
    parse_schema,
)
from opdispatch.dispatch.dispatcher import normalize_key

pytestmark = pytest.mark.smoke

K = DispatchKey
X = np.ones(2)
KERNEL = KernelFunction.from_unboxed(lambda *args, **kwargs: None)


def name(text):
    return OperatorName.parse(text)


# -- finding -------------------------------------------------------------------------------------


def test_an_operator_is_found_by_its_name(dispatcher):
    dispatcher.register_def(parse_schema("t::f.b(Tensor x) -> Tensor"))
    for look in (dispatcher.find_op, dispatcher.find_schema, dispatcher.get_schema):
        assert look("t::f.b").name == look(name("t::f.b")).name == name("t::f.b")


def test_an_operator_is_found_as_one_handle(dispatcher, caller):
    dispatcher.register_def(parse_schema("t::f(Tensor x) -> Tensor"))
    assert dispatcher.get_schema("t::f") is dispatcher.get_schema("t::f")


def test_a_name_without_an_operator_is_not_found(dispatcher):
    assert dispatcher.find_op("t::f") is None
    assert dispatcher.find_schema("t::f") is None
    with pytest.raises(OperatorNotFoundError, match=r"^there is no operator t::f$"):
        dispatcher.get_schema("t::f")


def test_the_error_suggests_names_that_look_like_it(dispatcher):
    for text in ("image::sobel", "image::blur", "audio::sobol"):
        dispatcher.register_def(parse_schema(f"{text}(Tensor x) -> Tensor"))
    with pytest.raises(OperatorNotFoundError) as caught:
        dispatcher.get_schema("image::soble")
    assert str(caught.value).startswith(
        "there is no operator image::soble (did you mean image::sobel"
    )
    assert caught.value.facts == {"operator": "image::soble"}


def test_the_error_suggests_no_name_that_has_no_definition(dispatcher):
    dispatcher.register_impl(name("image::sobel"), K.CPU, KERNEL)
    for wanted in ("image::soble", "image"):
        with pytest.raises(OperatorNotFoundError, match=f"^there is no operator {wanted}$"):
            dispatcher.get_schema(wanted)
    dispatcher.register_def(parse_schema("image::sobel(Tensor x) -> Tensor"))
    with pytest.raises(OperatorNotFoundError, match="did you mean image::sobel"):
        dispatcher.get_schema("image::soble")


def test_an_operator_with_kernels_alone_is_found_but_has_no_schema(dispatcher):
    dispatcher.register_impl(name("t::f"), K.CPU, KERNEL)
    assert dispatcher.find_op("t::f").name == name("t::f")
    assert dispatcher.find_schema("t::f") is None
    with pytest.raises(OperatorNotFoundError, match="has kernels but no definition"):
        dispatcher.get_schema("t::f")
    assert dispatcher.find_dangling_impls() == [name("t::f")]
    dispatcher.register_def(parse_schema("t::f() -> ()"))
    assert dispatcher.find_dangling_impls() == []


@pytest.mark.parametrize("text", ["", "t::", "t::f.", "t f"])
def test_find_op_of_malformed_name_raises_schema_error(dispatcher, text):
    with pytest.raises(SchemaError):
        dispatcher.find_op(text)


def test_operators_are_listed_in_the_order_of_their_registration(dispatcher):
    dispatcher.register_def(parse_schema("t::g() -> ()"))
    gone = dispatcher.register_def(parse_schema("t::h() -> ()"))
    dispatcher.register_impl(name("t::f.a"), K.CPU, KERNEL)
    gone.close()
    assert [str(operator) for operator in dispatcher.operators()] == ["t::g", "t::f.a"]


def test_an_operator_lives_as_long_as_anything_is_registered_for_it(dispatcher):
    definition = dispatcher.register_def(parse_schema("t::f() -> ()"))
    kernels = [dispatcher.register_impl(name("t::f"), key, KERNEL) for key in (K.CPU, K.CUDA)]
    definition.close()
    kernels[0].close()
    assert dispatcher.operators() == [name("t::f")]
    kernels[1].close()
    assert dispatcher.operators() == []


@pytest.mark.parametrize("key", [None, K.Undefined])
def test_a_kernel_without_a_key_is_a_composite_one(dispatcher, key):
    dispatcher.register_impl(name("t::f"), key, KERNEL)
    [kernel] = dispatcher.list_kernels(name("t::f"))
    assert kernel.key is normalize_key(key) is K.CompositeImplicitAutograd


def test_two_dispatchers_know_nothing_of_each_other(dispatcher):
    other = Dispatcher()
    other.register_def(parse_schema("t::f() -> ()"))
    assert dispatcher.operators() == []


# -- overloads -----------------------------------------------------------------------------------


@pytest.fixture
def overloads(dispatcher):
    """Four overloads of t::f; the one without a name is defined third."""
    for schema in (
        "t::f.int(int n) -> str",
        "t::f.two(Tensor x, Tensor y) -> str",
        "t::f(Tensor x) -> str",
        "t::f.named(Tensor x, *, int n) -> str",
    ):
        dispatcher.register_def(parse_schema(schema))
    return dispatcher


@pytest.mark.parametrize(
    ("args", "kwargs", "chosen"),
    [
        ([X], {}, "t::f"),
        ([], {"x": X}, "t::f"),
        ([X, X], {}, "t::f.two"),
        ([X], {"y": X}, "t::f.two"),
        ([X], {"n": 1}, "t::f.named"),
        ([1], {}, "t::f.int"),
        ([Tensor(X)], {}, "t::f"),
    ],
)
def test_the_overload_that_takes_the_arguments_is_chosen(overloads, args, kwargs, chosen):
    assert str(overloads.resolve_overload("t::f", args, kwargs).name) == chosen


def test_the_overload_without_a_name_is_tried_first_then_the_first_defined(dispatcher):
    for schema in ("t::f.a(Scalar s) -> ()", "t::f.b(float s) -> ()", "t::f(int s) -> ()"):
        dispatcher.register_def(parse_schema(schema))
    chosen = [str(dispatcher.resolve_overload("t::f", [value], {}).name) for value in (1, 1.5)]
    assert chosen == ["t::f", "t::f.a"]


def in_order(dispatcher):
    return [str(each) for each in dispatcher.overloads("t::f")]


def test_the_order_is_that_of_definitions_and_not_of_kernels(dispatcher):
    """Also in a transaction, which is how a service publishes libraries."""
    dispatcher.register_impl(name("t::f.c"), K.CPU, KERNEL)
    with dispatcher.transaction():
        dispatcher.register_impl(name("t::f.b"), K.CPU, KERNEL)
        for schema in ("t::f.a() -> ()", "t::f.b() -> ()", "t::f.c() -> ()"):
            dispatcher.register_def(parse_schema(schema))
        assert in_order(dispatcher) == ["t::f.a", "t::f.b", "t::f.c"]
    assert in_order(dispatcher) == ["t::f.a", "t::f.b", "t::f.c"]


@pytest.mark.parametrize("schema", ["t::f.a(float s) -> ()", "t::f.a(Scalar s) -> ()"])
def test_redefined_overload_is_resolved_last(dispatcher, schema):
    """As in PyTorch; in one transaction, too: so a reader of what is left sees the same."""
    first = dispatcher.register_def(parse_schema("t::f.a(float s) -> ()"))
    dispatcher.register_def(parse_schema("t::f.b(float s) -> ()"))
    assert dispatcher.resolve_overload("t::f", [1.5], {}).name == name("t::f.a")
    with dispatcher.transaction():
        first.close()
        dispatcher.register_def(parse_schema(schema))
        assert in_order(dispatcher) == ["t::f.b", "t::f.a"]
    assert in_order(dispatcher) == ["t::f.b", "t::f.a"]
    assert dispatcher.resolve_overload("t::f", [1.5], {}).name == name("t::f.b")
    assert dispatcher.check_invariants() == []


def test_a_definition_that_is_undone_and_not_meant_stays_where_it_was(dispatcher):
    first = dispatcher.register_def(parse_schema("t::f.a(float s) -> ()"))
    dispatcher.register_def(parse_schema("t::f.b(float s) -> ()"))
    with dispatcher.transaction() as transaction:
        first.close()
        dispatcher.register_def(parse_schema("t::f.a(float s) -> ()"))
        transaction.rollback()
    assert in_order(dispatcher) == ["t::f.a", "t::f.b"]


def test_an_overload_that_is_named_is_meant_whatever_the_arguments(overloads):
    assert str(overloads.resolve_overload("t::f.two", [], {}).name) == "t::f.two"
    with pytest.raises(OperatorNotFoundError, match=r"there is no operator t::f\.three"):
        overloads.resolve_overload("t::f.three", [], {})


def test_when_no_overload_takes_the_arguments_the_error_says_why_not_each(overloads):
    with pytest.raises(ArgumentError) as caught:
        overloads.resolve_overload("t::f", ["a"], {})
    text = str(caught.value)
    assert text.startswith("no overload of t::f takes these arguments. t::f(Tensor x) -> str: ")
    assert "t::f.int(int n) -> str: t::f.int got a wrong value for argument 'n'" in text
    assert text.count("its schema is") == 0


def test_a_single_overload_is_the_one_that_is_meant(dispatcher):
    """So that the call itself says what is wrong with the arguments."""
    dispatcher.register_def(parse_schema("t::f.only(Tensor x) -> ()"))
    assert str(dispatcher.resolve_overload("t::f", ["wrong"], {}).name) == "t::f.only"


def test_a_name_without_overloads_is_not_found(dispatcher):
    with pytest.raises(OperatorNotFoundError, match="there is no operator t::f"):
        dispatcher.resolve_overload("t::f", [], {})
    dispatcher.register_impl(name("t::f"), K.CPU, KERNEL)
    with pytest.raises(OperatorNotFoundError, match="has kernels but no definition"):
        dispatcher.resolve_overload("t::f", [], {})


def test_overloads_come_and_go(overloads):
    names = [str(n) for n in overloads.overloads("t::f")]
    assert names == ["t::f.int", "t::f.two", "t::f", "t::f.named"]
    with overloads.register_def(parse_schema("t::f.five() -> ()")):
        assert str(overloads.overloads("t::f")[-1]) == "t::f.five"
    assert len(overloads.overloads("t::f")) == 4
    assert overloads.overloads("t::g") == ()


# -- listeners -----------------------------------------------------------------------------------


class Diary:
    """A listener that writes down its events, and whether the operator could be called."""

    def __init__(self, dispatcher):
        self.dispatcher = dispatcher
        self.entries = []

    def on_operator_registered(self, name):
        self.entries.append(f"+{name}")

    def on_operator_deregistered(self, name):
        self.entries.append(f"-{name}")

    def read(self):
        entries, self.entries = self.entries, []
        return entries


@pytest.fixture
def diary(dispatcher):
    made = Diary(dispatcher)
    dispatcher.add_registration_listener(made)
    return made


def test_listener_gets_definitions_that_come_and_go(dispatcher, diary):
    handle = dispatcher.register_def(parse_schema("t::f() -> ()"))
    assert diary.read() == ["+t::f"]
    handle.close()
    assert diary.read() == ["-t::f"]


def test_listener_gets_earlier_definitions(dispatcher):
    dispatcher.register_def(parse_schema("t::f() -> ()"))
    dispatcher.register_impl(name("t::g"), K.CPU, KERNEL)
    late = Diary(dispatcher)
    dispatcher.add_registration_listener(late)
    assert late.read() == ["+t::f"]


def test_kernels_are_no_news(dispatcher, diary):
    dispatcher.register_impl(name("t::f"), K.CPU, KERNEL)
    assert diary.read() == []
    dispatcher.register_def(parse_schema("t::f() -> ()"))
    assert diary.read() == ["+t::f"]
    dispatcher.register_impl(name("t::f"), K.CUDA, KERNEL)
    assert diary.read() == []


def test_listener_gets_a_transactions_changes_when_it_is_over(dispatcher, diary):
    one = dispatcher.register_def(parse_schema("t::one() -> ()"))
    diary.read()
    with dispatcher.transaction():
        one.close()
        dispatcher.register_def(parse_schema("t::two() -> ()"))
        dispatcher.register_def(parse_schema("t::three() -> ()")).close()
        assert diary.read() == []
    assert diary.read() == ["-t::one", "+t::two"]


def test_a_definition_with_another_schema_is_another_operator(dispatcher, diary):
    handle = dispatcher.register_def(parse_schema("t::f() -> ()"))
    with dispatcher.transaction():
        handle.close()
        dispatcher.register_def(parse_schema("t::f(int n) -> ()"))
    assert diary.read() == ["+t::f", "-t::f", "+t::f"]


def test_a_definition_that_changes_the_order_of_overloads_is_news(dispatcher, diary):
    def define_anew(handle):
        with dispatcher.transaction():
            handle.close()
            return dispatcher.register_def(parse_schema("t::f.a() -> ()"))

    handle = define_anew(dispatcher.register_def(parse_schema("t::f.a() -> ()")))
    assert diary.read() == ["+t::f.a"]
    dispatcher.register_def(parse_schema("t::f.b() -> ()"))
    define_anew(handle)
    assert diary.read() == ["+t::f.b", "+t::f.a"]


def test_listener_may_call_the_registered_operator(dispatcher, caller):
    """A new one can be called already, one that goes can still be called."""
    results = []

    class Caller:
        def on_operator_registered(self, name):
            results.append(dispatcher.get_schema(name)())

        on_operator_deregistered = on_operator_registered

    dispatcher.add_registration_listener(Caller())
    schema = parse_schema("t::f() -> str")
    kernel = KernelFunction.from_unboxed(lambda: "called")
    with dispatcher.register_impl(schema.name, None, kernel), dispatcher.register_def(schema):
        pass
    assert results == ["called", "called"]


def test_removed_listener_is_not_called(dispatcher, diary):
    other = Diary(dispatcher)
    dispatcher.add_registration_listener(other)
    dispatcher.remove_registration_listener(diary)
    dispatcher.register_def(parse_schema("t::f() -> ()"))
    assert (diary.read(), other.read()) == ([], ["+t::f"])


def test_a_listener_that_raises_is_logged_and_changes_nothing(dispatcher, caplog):
    class Broken:
        def on_operator_registered(self, name):
            raise ValueError("told")

        def on_operator_deregistered(self, name):
            raise ValueError("told")

    dispatcher.add_registration_listener(Broken())
    with caplog.at_level("ERROR"):
        handle = dispatcher.register_def(parse_schema("loud::f(Tensor x) -> Tensor"))
        assert dispatcher.find_schema("loud::f") is not None
        handle.close()
    assert dispatcher.find_schema("loud::f") is None
    assert [record.name for record in caplog.records] == ["opdispatch", "opdispatch"]
    assert dispatcher.check_invariants() == []
