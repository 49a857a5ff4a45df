"""Kernels that are layers: they find the kernel below them once, and never an outdated one."""

import numpy as np
import pytest

from opdispatch import (
    DispatchKey,
    DispatchKeySet,
    KernelFunction,
    NoKernelError,
    ReturnError,
    capture_dispatch_trace,
)

K = DispatchKey
X = np.ones(2)
KEYS = DispatchKeySet.of(K.CPU)
SCHEMA = "t::f(Tensor x, int[1] n, *, int? k=None) -> Tensor"
pytestmark = pytest.mark.usefixtures("caller")


@pytest.fixture
def made():
    """The functions below that layers were made with."""
    return []


@pytest.fixture
def layer(made):
    """Double what the kernel of the CPU gives."""

    def make(below):
        made.append(below)

        def kernel(x, n, *, k):
            return below(x, n, k=k) * 2

        return kernel

    return KernelFunction.from_layer(make, lambda keys: KEYS)


@pytest.fixture
def op(define, layer):
    """Called by plain arrays at ADInplaceOrView, and below that at CPU."""
    return define(SCHEMA, CPU=lambda x, n, *, k: x + sum(n), ADInplaceOrView=layer)


def implement(op, kernel, key=K.CPU):
    return op.dispatcher.register_impl(op.name, key, KernelFunction.from_unboxed(kernel))


def test_a_layer_goes_on_with_the_kernel_below(op):
    for _ in range(2):
        assert op(X, [1, 2]).tolist() == [8, 8]
        assert op(X, (1,), k=3).tolist() == [4, 4]
        stack = op.bind([X, [1]], {})
        op.call_boxed(stack)
        assert stack[0].tolist() == [4, 4]


def test_kernel_below_is_found_once_for_the_same_keys(op, made, caller):
    for _ in range(3):
        op(X, 1)
    assert len(made) == (1 if caller == "compiled" else 3)


def test_a_new_kernel_below_is_called_from_the_next_call_on(op):
    assert op(X, 1).tolist() == [4, 4]
    newer = implement(op, lambda x, n, *, k: x)
    assert op(X, 1).tolist() == [2, 2]
    newer.close()
    assert op(X, 1).tolist() == [4, 4]


def test_one_that_is_withdrawn_before_it_is_published_leaves_nothing_behind(op):
    assert op(X, 1).tolist() == [4, 4]
    with op.dispatcher.transaction():
        newer = implement(op, lambda x, n, *, k: x)
        assert op.dispatcher.get_schema(op.name)(X, 1).tolist() == [2, 2]
        newer.close()
    assert op(X, 1).tolist() == [4, 4]


def test_a_fallback_below_is_called_as_long_as_it_is_there(define, layer):
    op = define(SCHEMA, ADInplaceOrView=layer)
    fallback = KernelFunction.from_fallback(lambda op, x, n, **kwargs: x * 5)
    for _ in range(2):
        with pytest.raises(NoKernelError, match="t::f has no kernel for arguments from the CPU"):
            op(X, 1)
        registered = op.dispatcher.register_fallback(K.CPU, fallback)
        assert op(X, 1).tolist() == [10, 10]
        registered.close()


def test_without_a_kernel_below_the_layer_fails_in_the_call_and_not_before(define):
    called = []

    def make(below):
        def kernel(x):
            called.append(x)
            return below(x)

        return kernel

    layer = KernelFunction.from_layer(make, lambda keys: KEYS)
    op = define("t::f(Tensor x) -> Tensor", ADInplaceOrView=layer)
    with pytest.raises(NoKernelError):
        op(X)
    assert len(called) == 1


def test_layers_may_lie_on_layers(define, layer):
    def make(below):
        return lambda x, n, *, k: below(x, n, k=k) + 1

    def keys_below(keys):
        return KEYS.add(K.ADInplaceOrView)

    upper = KernelFunction.from_layer(make, keys_below)
    op = define(SCHEMA, CPU=lambda x, n, *, k: x, ADInplaceOrView=layer, Tracer=upper)
    for kernel in (lambda x, n, *, k: x, lambda x, n, *, k: x * 10):
        implement(op, kernel)
        for _ in range(2):
            result = op.redispatch(KEYS.add(K.Tracer), X, [1])
            assert result.tolist() == (kernel(X, [1], k=None) * 2 + 1).tolist()


def test_each_kernel_gets_lists_of_its_own(define):
    seen = []

    def make(below):
        def kernel(x, n, *, k):
            below(x, n, k=k)
            return x if n == [1, 2] else None

        return kernel

    def spoil(x, n, *, k):
        seen.append(n.pop())
        return x

    layer = KernelFunction.from_layer(make, lambda keys: KEYS)
    op = define(SCHEMA, CPU=spoil, ADInplaceOrView=layer)
    for _ in range(2):
        given = [1, 2]
        assert op(X, given) is X
        assert given == [1, 2]
    assert seen == [2, 2]


def test_result_of_the_kernel_below_is_checked_before_the_layer(define, layer):
    op = define(SCHEMA, CPU=lambda x, n, *, k: "no tensor", ADInplaceOrView=layer)
    for _ in range(2):
        with pytest.raises(ReturnError, match="t::f returned what its schema does not promise"):
            op(X, 1)


def test_a_layer_may_leave_all_to_the_kernel_below(define, caller):
    """Which gets the lists that the layer was given; what it returns is checked after that."""
    given, got = [], []

    def make(below):
        def kernel(x, n, *, k):
            given.append(n)
            return below.kernel(x, n, k=k)

        return kernel

    def lowest(x, n, *, k):
        got.append(n)
        return x if k is None else "no tensor"

    layer = KernelFunction.from_layer(make, lambda keys: KEYS)
    op = define(SCHEMA, CPU=lowest, ADInplaceOrView=layer)
    for _ in range(2):
        assert op(X, [1, 2]) is X
        with pytest.raises(ReturnError, match="t::f returned what its schema does not promise"):
            op(X, [1, 2], k=1)
    assert given == got == [[1, 2]] * 4
    are_the_same = [g is n for g, n in zip(given, got, strict=True)]
    # The first call of a kind is interpreted, and so are all where nothing is compiled.
    assert all(are_the_same) if caller == "compiled" else not any(are_the_same)


def test_a_trace_has_a_line_for_the_kernel_below_whenever_it_is_taken(op):
    for _ in range(2):
        with capture_dispatch_trace() as lines:
            op(X, 1)
        assert [(line.depth, line.kind, line.key) for line in lines] == [
            (0, "call", "ADInplaceOrView"),
            (1, "redispatch", "CPU"),
        ]
        op(X, 1)


@pytest.mark.parametrize("name", ["self", "lambda", "_below", "_k", "_check"])
def test_arguments_may_have_any_name(define, name):
    def make(below):
        return lambda x, **named: below(x, **named)

    layer = KernelFunction.from_layer(make, lambda keys: KEYS)
    op = define(
        f"t::f(Tensor x, *, int {name}=1) -> int",
        CPU=lambda x, **named: named[name],
        ADInplaceOrView=layer,
    )
    for _ in range(2):
        assert op(X, **{name: 7}) == 7
