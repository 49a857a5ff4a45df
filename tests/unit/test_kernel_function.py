"""Kernels: made from a function of arguments, of a stack, or of any operator; called both ways."""

import numpy as np
import pytest

from opdispatch import DispatchKey, DispatchKeySet, KernelFunction, RegistrationError, Tensor

X = np.ones(2)
KEYS = DispatchKeySet.of(DispatchKey.CPU)
SCHEMA = "t::f(Tensor x, int n=2, *, int k=3) -> (Tensor, int)"


def unboxed(x, n, *, k):
    """Add."""
    return x, n + k


def boxed(op, keys, stack):
    x, n, k = stack
    stack[:] = [x, n + k]


def fallback(op, x, n=2, *, k=3):
    return x, n + k  # defaults are left out


KERNELS = {
    "unboxed": KernelFunction.from_unboxed(unboxed),
    "with_keyset": KernelFunction.from_unboxed(
        lambda keys, x, n, *, k: (x, n + k), with_keyset=True
    ),
    "maker": KernelFunction.from_maker(lambda: unboxed),
    "boxed": KernelFunction.from_boxed(boxed),
    "fallback": KernelFunction.from_fallback(fallback),
    "fallback_with_keyset": KernelFunction.from_fallback(
        lambda keys, op, *args, **kwargs: fallback(op, *args, **kwargs), with_keyset=True
    ),
}


@pytest.mark.parametrize("kernel", KERNELS.values(), ids=KERNELS)
def test_a_kernel_is_callable_unboxed_and_boxed(define, kernel):
    op = define(SCHEMA)
    assert kernel.unboxed(op, KEYS)(X, 4, k=5) == (X, 9)
    stack = [X, 4, 5]
    kernel.call_boxed(op, KEYS, stack)
    assert stack == [X, 9]


@pytest.mark.parametrize("kernel", KERNELS.values(), ids=KERNELS)
def test_a_kernel_serves_calls_of_both_kinds(define, caller, kernel):
    op = define(SCHEMA, CPU=kernel)
    for _ in range(2):
        assert op(X) == op(x=X, n=2, k=3) == op.redispatch(KEYS, X) == (X, 5)
        for call in (op.call_boxed, lambda stack: op.redispatch_boxed(KEYS, stack)):
            stack = op.bind([X], {"k": 7})
            call(stack)
            assert stack == [X, 9]


@pytest.mark.parametrize("made", ["unboxed", "fallback"])
def test_with_keyset_gives_the_keys_of_the_call_first(define, caller, made):
    seen = []

    def kernel(keys, *args):
        seen.append((keys, args))
        return args[-1]

    make = getattr(KernelFunction, f"from_{made}")
    op = define("t::f(Tensor x) -> Tensor", Tracer=make(kernel, with_keyset=True))
    keys = DispatchKeySet.of(DispatchKey.Tracer, DispatchKey.CPU)
    x = Tensor(X, keys=keys)
    op(x)
    op(x)
    op.redispatch(keys | KEYS, X)
    assert [keys for keys, _ in seen] == [keys, keys, keys | KEYS]
    assert all(args[:-1] == ((op,) if made == "fallback" else ()) for _, args in seen)


def test_a_boxed_kernel_is_given_the_operator_and_the_keys(define, caller):
    seen = []
    kernel = KernelFunction.from_boxed(lambda *args: seen.append((*args[:2], list(args[2]))))
    op = define("t::f(Tensor x) -> Tensor", CPU=kernel)
    assert op(X) is X
    assert seen == [(op, KEYS, [X])]


def test_keyword_only_arguments_are_passed_by_name_whatever_their_order(define, caller):
    op = define("t::f(*, int b, int a=1) -> int", CompositeImplicitAutograd=lambda a, b: 10 * a + b)
    assert op(b=2) == 12
    assert op(a=3, b=2) == 32


@pytest.mark.parametrize("name", ["self", "type", "lambda", "keys", "op", "_k", "_op", "None_"])
def test_arguments_may_have_the_names_of_anything_in_python(define, caller, name):
    def kernel(x, **kwargs):
        return kwargs[name]

    op = define(f"t::f(Tensor x, *, int {name}=1) -> int", CPU=kernel)
    for _ in range(2):
        assert op(X) == 1
        assert op(X, **{name: 2}) == 2
        assert op.redispatch(KEYS, X, **{name: 3}) == 3


@pytest.mark.parametrize("name", ["self", "type", "lambda", "args", "kwargs", "_p", "_a0"])
def test_positional_arguments_may_too(define, caller, name):
    op = define(f"t::f(Tensor {name}, int n=1) -> int", CPU=lambda x, n: n)
    for _ in range(2):
        assert op(X) == op(**{name: X}) == 1
        assert op(X, 2) == op(X, n=2) == op(**{name: X, "n": 2}) == 2


def test_maker_of_a_kernel_is_called_at_the_first_call(define, caller):
    made = []

    def make():
        made.append(lambda x: x)
        return made[-1]

    kernel = KernelFunction.from_maker(make)
    op = define("t::f(Tensor x) -> Tensor", CPU=kernel)
    assert not made
    assert (kernel.function, kernel.documentation) == (None, "")
    assert repr(kernel) == "<KernelFunction unboxed, made when it is called>"
    assert op(X) is op(X) is op.redispatch(KEYS, X) is X
    assert len(made) == 1


def test_a_fallthrough_has_no_function():
    kernel = KernelFunction.fallthrough()
    assert kernel.is_fallthrough
    assert kernel.function is None
    assert kernel.documentation == ""
    assert repr(kernel) == "<KernelFunction fallthrough>"


def test_a_kernel_knows_what_it_was_made_from():
    kernel = KERNELS["unboxed"]
    assert kernel.function is unboxed
    assert kernel.documentation == "Add."
    assert (kernel.is_boxed, kernel.with_keyset, kernel.is_fallthrough) == (False, False, False)
    assert repr(kernel) == "<KernelFunction unboxed unboxed>"
    assert KernelFunction.from_boxed(boxed).is_boxed
    assert KernelFunction.from_boxed(boxed).function is boxed
    assert KernelFunction.from_fallback(fallback).function is fallback


@pytest.mark.parametrize("make", ["unboxed", "maker", "boxed", "fallback", "layer"])
def test_a_kernel_must_be_callable(make):
    with pytest.raises(RegistrationError, match="a kernel must be callable, and 3 is not"):
        getattr(KernelFunction, f"from_{make}")(*((3, set) if make == "layer" else (3,)))


def test_one_kernel_serves_several_operators_of_different_schemas(define, caller):
    kernel = KernelFunction.from_unboxed(lambda x, n=5: n)
    one = define("t::one(Tensor x) -> int", CPU=kernel)
    two = define("t::two(Tensor x, int n) -> int", CPU=kernel)
    three = define("t::three(Tensor x, int n, int m=0) -> int", CPU=kernel)
    for _ in range(2):
        assert (one(X), two(X, 6), three(X, 7)) == (5, 6, 7)
