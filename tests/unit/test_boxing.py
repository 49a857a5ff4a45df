"""Adapters: boxed kernels as functions, and kernels that do not take every argument."""

import numpy as np
import pytest

from opdispatch import DispatchKey, DispatchKeySet, KernelFunction, ReturnError, parse_schema
from opdispatch.boxing.boxing import elide_defaults, unboxed_from_boxed
from opdispatch.boxing.signature import Signature

K = DispatchKey
X = np.ones(2)


def signature_of(text):
    return Signature(parse_schema(text))


def test_a_boxed_function_is_called_with_the_stack_in_the_order_of_the_schema(define):
    op = define("t::f(Tensor x, int n, *, str b, str a) -> (int, str)")
    keys, seen = DispatchKeySet.full(), []

    def boxed(*args):
        seen.append((*args[:2], list(args[2])))
        args[2][:] = [1, "s"]

    assert unboxed_from_boxed(boxed, op, keys)(X, 2, a="a", b="b") == (1, "s")
    assert seen == [(op, keys, [X, 2, "b", "a"])]


def test_a_boxed_function_must_leave_as_many_values_as_the_schema_promises(define):
    op = define("t::f(Tensor x) -> ()")
    with pytest.raises(ReturnError, match="expected 0 values, and the kernel left 1"):
        unboxed_from_boxed(lambda op, keys, stack: None, op, DispatchKeySet())(X)


SCHEMA = "t::f(Tensor x, int n=2, int[] p=[1], *, float a=0.5, str? m=None) -> ()"
DEFAULTS = ([2, [1]], {"a": 0.5, "m": None})


def every(*args, **kwargs):
    return args, kwargs


def positional(*args):
    return args, {}


def one(x):
    return (x,), {}


def three(x, n, p):
    return (x, n, p), {}


def two_and_a(x, n=7, *, a):
    return (x, n), {"a": a}


@pytest.mark.parametrize(
    ("kernel", "received"),
    [
        (every, ((X, 2, [1]), {"a": 0.5, "m": None})),
        (positional, ((X,), {})),
        (one, ((X,), {})),
    ],
)
def test_a_kernel_that_does_not_take_every_argument_is_spared_the_defaults(kernel, received):
    call = elide_defaults(kernel, signature_of(SCHEMA))
    assert call(X, *DEFAULTS[0], **DEFAULTS[1]) == received


def test_all_trailing_defaults_are_left_out_even_those_that_the_kernel_would_take():
    """As in PyTorch. A default of the kernel's own takes their place; without, the call fails."""
    assert elide_defaults(lambda x, n=7: n, signature_of(SCHEMA))(X, 2, [1], a=0.5, m=None) == 7
    with pytest.raises(TypeError, match="missing 2 required positional arguments"):
        elide_defaults(three, signature_of(SCHEMA))(X, 2, [1], a=0.5, m=None)


def test_only_trailing_defaults_are_left_out():
    call = elide_defaults(positional, signature_of(SCHEMA))
    assert call(X, 2, [9], a=0.5, m=None) == ((X, 2, [9]), {})
    assert call(X, 3, [1], a=0.5, m=None) == ((X, 3), {})


def test_a_keyword_is_passed_unless_it_has_its_default():
    call = elide_defaults(two_and_a, signature_of(SCHEMA))
    assert call(X, 3, [1], a=1.5, m=None) == ((X, 3), {"a": 1.5})


def test_a_kernel_that_cannot_take_what_is_not_a_default_fails_as_python_does():
    call = elide_defaults(one, signature_of(SCHEMA))
    with pytest.raises(TypeError, match="takes 1 positional argument but 2 were given"):
        call(X, 3, [1], a=0.5, m=None)


def test_a_value_that_only_equals_the_default_is_no_default():
    call = elide_defaults(positional, signature_of("t::f(Scalar s=1) -> ()"))
    assert call(1) == ((1,), {})  # takes all
    spared = elide_defaults(lambda: "default", signature_of("t::f(Scalar s=1) -> ()"))
    assert spared(1) == "default"
    for other in (True, 1.0):
        with pytest.raises(TypeError):
            spared(other)


def test_tensors_are_never_compared_with_a_default():
    spared = elide_defaults(
        lambda x: len(x), signature_of("t::f(Tensor[] xs, Tensor? y=None) -> ()")
    )
    assert spared([X, X], None) == 2
    with pytest.raises(TypeError):
        spared([X], X)


def test_the_leading_parameters_of_the_dispatcher_are_no_arguments():
    def kernel(keys, x):
        return keys, x

    call = elide_defaults(kernel, signature_of("t::f(Tensor x, int n=1) -> ()"), skip=1)
    assert call("keys", X, 1) == ("keys", X)


def test_a_kernel_that_takes_everything_is_called_directly():
    signature = signature_of("t::f(Tensor x, *, int n=1) -> ()")
    for kernel in (every, lambda x, *, n: x, lambda x, **kwargs: x):
        assert elide_defaults(kernel, signature) is kernel


def test_a_function_of_any_operator_is_spared_the_defaults(dispatcher, define):
    op, seen = define(SCHEMA), []

    def fallback(op, *args, **kwargs):
        seen.append((args, kwargs))

    dispatcher.register_fallback(K.CPU, KernelFunction.from_fallback(fallback))
    op(X)
    op(X, 2, [1], a=0.5, m=None)
    op(X, n=3)
    op(X, 2, [2], m="m")
    assert seen == [((X,), {}), ((X,), {}), ((X, 3), {}), ((X, 2, [2]), {"m": "m"})]


def test_a_built_in_that_does_not_say_what_it_takes_is_spared_the_defaults():
    call = elide_defaults(max, signature_of("t::f(int[] x, int d=0) -> ()"))
    assert call([1, 3], 0) == 3
