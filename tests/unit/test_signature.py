"""How a call's arguments become a stack, and a stack a call's result: the messages, too."""

import numpy as np
import pytest

from opdispatch import ArgumentError, ReturnError, Tensor, parse_schema
from opdispatch.arrays import CPU_BITS
from opdispatch.boxing.signature import Signature
from opdispatch.schema.function_schema import NO_DEFAULT

X = np.ones(2)
TEXT = "t::f(Tensor x, int n=2, *, float a=0.5, str? mode=None) -> Tensor"


@pytest.fixture
def signature():
    return Signature(parse_schema(TEXT))


def signature_of(text):
    return Signature(parse_schema(text))


# -- binding -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "kwargs", "rest"),
    [
        ([X], {}, [2, 0.5, None]),
        ([X, 3], {}, [3, 0.5, None]),
        ([X], {"n": 3}, [3, 0.5, None]),
        ([], {"n": 3, "x": X}, [3, 0.5, None]),
        ([X], {"mode": "fast", "a": 1}, [2, 1.0, "fast"]),
    ],
)
def test_the_stack_has_every_argument_in_the_order_of_the_schema(signature, args, kwargs, rest):
    stack = signature.bind(args, kwargs)
    assert stack[0] is X
    assert stack[1:] == rest


def test_values_are_converted_to_the_types_of_the_schema(signature):
    stack = signature.bind([X, np.int32(3)], {"a": 1})
    assert [type(value) for value in stack[1:3]] == [int, float]


def test_a_default_list_is_new_for_every_call():
    bind = signature_of("t::f(int[] sizes=[1, 2]) -> ()").bind
    first = bind([], {})[0]
    first.append(3)
    assert bind([], {}) == [[1, 2]]


def test_the_arguments_of_the_caller_are_left_as_they_are():
    sizes = (1, 2)
    args = [sizes]
    assert signature_of("t::f(int[] sizes) -> ()").bind(args, {}) == [[1, 2]]
    assert args == [(1, 2)]


@pytest.mark.parametrize(
    ("args", "kwargs", "message"),
    [
        ([], {}, "t::f is missing its argument 'x'"),
        ([X, 1, 2], {}, "t::f takes 2 positional arguments but 3 were given"),
        ([X], {"k": 1}, "t::f has no argument 'k'"),
        ([], {"k": 1}, "t::f has no argument 'k'"),  # though 'x' is missing, too
        ([X, 1], {"n": 1, "k": 1}, "t::f got its argument 'n' twice"),
        ([X, 1], {"n": 1}, "t::f got its argument 'n' twice"),
        ([1], {}, "t::f got a wrong value for argument 'x' (position 0): expected Tensor "),
        ([X], {"a": "b"}, "t::f got a wrong value for argument 'a' (position 2): expected float, "),
        ([None], {}, "t::f got a wrong value for argument 'x' (position 0): expected Tensor "),
    ],
)
def test_bind_error_says_what_does_not_fit_and_shows_schema(signature, args, kwargs, message):
    with pytest.raises(ArgumentError) as caught:
        signature.bind(args, kwargs)
    assert str(caught.value).startswith(message)
    assert str(caught.value).endswith(f"; its schema is {TEXT}")
    assert caught.value.facts["operator"] == "t::f"


@pytest.mark.parametrize("args", [[], [X]], ids=["missing another", "complete"])
def test_wrong_name_is_named_first_with_the_one_that_was_meant(args):
    signature = signature_of("t::f(Tensor picture, *, bool normalize=True) -> ()")
    with pytest.raises(ArgumentError, match=r"has no argument 'normalise'; .*'normalize'\?"):
        signature.bind(args, {"normalise": True})


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("t::f() -> ()", "no positional arguments"),
        ("t::f(*, int a) -> ()", "no positional arguments"),
        ("t::f(int a) -> ()", "1 positional argument "),
    ],
)
def test_the_number_of_arguments_is_said_in_words(text, count):
    with pytest.raises(ArgumentError, match=f"takes {count}"):
        signature_of(text).bind([1, 2], {})


def test_the_error_names_the_argument_for_programs(signature):
    with pytest.raises(ArgumentError) as caught:
        signature.bind([X], {"a": "b"})
    assert caught.value.facts["argument"] == "a"


def test_an_argument_may_have_any_name():
    text = "t::f(Tensor self, int type, *, int lambda=1, int args=2, int kwargs=3) -> ()"
    stack = signature_of(text).bind([], {"self": X, "type": 5, "lambda": 6, "kwargs": 7})
    assert stack[1:] == [5, 6, 2, 7]


def test_one_name_may_stand_twice_and_then_means_both():
    bind = signature_of("t::f(int a, int a) -> ()").bind
    assert bind([], {"a": 1}) == [1, 1]
    assert bind([1], {"a": 2}) == [1, 2]
    with pytest.raises(ArgumentError, match="got its argument 'a' twice"):
        bind([1, 2], {"a": 3})


# -- keys --------------------------------------------------------------------------------------


def test_tensors_have_a_say_wherever_they_stand():
    signature = signature_of("t::f(Tensor x, Tensor? y, Tensor[] zs, Tensor?[] ws, Any a) -> ()")
    t = Tensor(X)
    assert signature.dispatching == (0, 1, 2, 3)
    assert signature.key_bits([X, None, [], [None], t]) == CPU_BITS
    for stack in ([t, X, [], [], 0], [X, t, [], [], 0], [X, X, [X, t], [], 0]):
        assert signature.key_bits(stack) == t.key_bits
    assert signature.key_bits([X, X, [], [None, t], 0]) == t.key_bits


def test_without_a_tensor_there_are_no_keys():
    assert signature_of("t::f(int n, Tensor[] xs) -> ()").key_bits([1, []]) == 0


def test_a_stack_is_split_into_positional_and_keyword_only_arguments(signature):
    assert signature.split([X, 2, 0.5, None]) == ([X, 2], {"a": 0.5, "mode": None})


def test_defaults_are_known_as_a_kernel_gets_them():
    signature = signature_of("t::f(Tensor x, int[] n=[1], float a=1, int wrong=1.5) -> ()")
    assert signature.converted_defaults() == [NO_DEFAULT, [1], 1.0, NO_DEFAULT]
    assert type(signature.converted_defaults()[2]) is float


# -- returns -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("returns", "result", "stack"),
    [
        ("()", None, []),
        ("str", "s", ["s"]),
        ("(Tensor, int)", (X, 2), [X, 2]),
        ("(Tensor, int)", [X, 2], [X, 2]),
        ("int[]", [1, 2], [[1, 2]]),
    ],
)
def test_a_result_is_boxed_as_one_value_a_return(returns, result, stack):
    signature = signature_of(f"t::f() -> {returns}")
    boxed = signature.box_returns(result)
    assert boxed == stack
    unboxed = signature.unbox_returns(boxed)
    assert unboxed == (tuple(result) if len(stack) > 1 else result)


@pytest.mark.parametrize(
    ("returns", "result", "message"),
    [
        ("()", 1, "expected None, not int"),
        ("(Tensor, int)", X, "expected a tuple of 2, not numpy.ndarray"),
        ("(Tensor, int)", (X, 1, 2), "expected a tuple of 2, not tuple of 3"),
        ("(Tensor, int)", None, "expected a tuple of 2, not NoneType"),
    ],
)
def test_a_result_of_another_shape_is_a_broken_promise(returns, result, message):
    signature = signature_of(f"t::f() -> {returns}")
    with pytest.raises(ReturnError) as caught:
        signature.box_returns(result)
    text = "the kernel of t::f returned what its schema does not promise: "
    assert str(caught.value) == f"{text}{message}; the schema is t::f() -> {returns}"


def test_a_stack_of_the_wrong_length_is_a_broken_promise():
    with pytest.raises(ReturnError, match="expected 1 values, and the kernel left 2 on the stack"):
        signature_of("t::f() -> Tensor").check_returns([X, X])


def test_returns_are_converted_to_their_types():
    values = signature_of("t::f() -> (int, float)").check_returns([np.int8(1), 2])
    assert [type(value) for value in values] == [int, float]
    assert signature_of("t::f() -> int[]").check_result((1, 2)) == [1, 2]


@pytest.mark.parametrize(
    ("returns", "stack", "message"),
    [
        ("Tensor", [1], "promise: expected Tensor "),
        ("(int, str)", [1, 2], "promise: return 1: expected str, got int 2"),
    ],
)
def test_a_return_of_the_wrong_type_is_a_broken_promise(returns, stack, message):
    with pytest.raises(ReturnError) as caught:
        signature_of(f"t::f() -> {returns}").check_returns(stack)
    assert message in str(caught.value)
    assert caught.value.facts["operator"] == "t::f"
