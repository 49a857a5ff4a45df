"""Inspection of operators, and PyTorch's answers to the same questions."""

import pytest

from opdispatch import (
    DispatchKey,
    DispatchKeyError,
    DispatchKeySet,
    KernelFunction,
    NoKernelError,
    parse_dispatch_key,
)
from opdispatch.dispatch.inspection import (
    get_computed_kernel_for_dispatch_key,
    has_computed_kernel_for_dispatch_key,
    has_kernel_for_any_dispatch_key,
    is_kernel_for_dispatch_key_fallthrough,
    is_observed,
)

K = DispatchKey
FALLTHROUGH = KernelFunction.fallthrough()


@pytest.fixture
def composite(define):
    """An operator with a composite kernel, and one that CUDA falls through."""
    return define(
        "t::f(Tensor x) -> Tensor", CompositeImplicitAutograd=lambda x: x, CUDA=FALLTHROUGH
    )


@pytest.fixture
def sparse(define):
    """An operator with a kernel of one backend."""
    return define("t::g(Tensor x) -> Tensor", SparseCPU=lambda x: x)


@pytest.mark.parametrize(
    ("key", "in_composite", "in_sparse"),
    [
        ("CPU", True, False),
        ("CUDA", True, False),
        ("SparseCPU", True, True),
        ("AutogradCPU", True, True),
        ("AutogradOther", True, True),
        ("BackendSelect", True, True),
        ("Undefined", True, False),
        ("Dense", True, False),
        ("Sparse", True, True),
    ],
)
def test_a_computed_kernel_may_be_a_composite_one_or_a_fallback(
    composite, sparse, key, in_composite, in_sparse
):
    for name in (key, parse_dispatch_key(key)):
        assert has_computed_kernel_for_dispatch_key(composite, name) == in_composite
        assert has_computed_kernel_for_dispatch_key(sparse, name) == in_sparse


def test_an_ambiguous_slot_counts_as_computed(define):
    kernels = {"CompositeImplicitAutograd": FALLTHROUGH, "SparseCPU": FALLTHROUGH}
    op = define("t::h(Tensor x) -> Tensor", **kernels)
    assert has_computed_kernel_for_dispatch_key(op, K.AutogradOther)


@pytest.mark.parametrize("key", ["Autograd", "CompositeImplicitAutograd"])
@pytest.mark.parametrize(
    "ask", [has_computed_kernel_for_dispatch_key, get_computed_kernel_for_dispatch_key]
)
def test_an_alias_key_has_no_row(composite, ask, key):
    with pytest.raises(DispatchKeyError, match=f"the alias key {key} has no row"):
        ask(composite, key)


def test_the_computed_kernel_comes_with_its_reason(composite, sparse):
    row = get_computed_kernel_for_dispatch_key(composite, "CPU")
    assert (row.key, row.reason, row.fallthrough) == (K.CPU, "math kernel", False)
    assert get_computed_kernel_for_dispatch_key(composite, K.CUDA).fallthrough
    with pytest.raises(NoKernelError, match="t::g has no kernel for CPU in its table") as caught:
        get_computed_kernel_for_dispatch_key(sparse, "CPU")
    assert caught.value.facts["key"] == "CPU"


def test_a_registered_kernel_is_a_fallthrough_or_not(composite, dispatcher):
    assert is_kernel_for_dispatch_key_fallthrough(composite, "CUDA")
    assert not is_kernel_for_dispatch_key_fallthrough(composite, K.CompositeImplicitAutograd)
    with pytest.raises(NoKernelError, match="t::f has no kernel registered for CPU"):
        is_kernel_for_dispatch_key_fallthrough(composite, K.CPU)
    kernel = KernelFunction.from_unboxed(lambda x: x)
    with dispatcher.register_impl(composite.name, K.CUDA, kernel):
        assert not is_kernel_for_dispatch_key_fallthrough(composite, K.CUDA)
    assert is_kernel_for_dispatch_key_fallthrough(composite, K.CUDA)


@pytest.mark.parametrize(
    ("keys", "in_composite", "in_sparse"),
    [
        (DispatchKeySet.full(), True, True),
        (DispatchKeySet("CPU"), False, False),
        (DispatchKeySet("CUDA"), True, False),
        (DispatchKeySet("SparseCPU"), False, True),
        (DispatchKeySet(), False, False),
    ],
)
def test_any_key_of_a_set_means_registered_for_it_itself(
    composite, sparse, keys, in_composite, in_sparse
):
    assert has_kernel_for_any_dispatch_key(composite, keys) == in_composite
    assert has_kernel_for_any_dispatch_key(sparse, keys) == in_sparse


def test_operators_are_listed_by_the_key_that_a_kernel_is_registered_for(
    composite, sparse, dispatcher
):
    def listed(key=None):
        return [str(name) for name in dispatcher.get_registrations_for_dispatch_key(key)]

    assert listed() == ["t::f", "t::g"]
    assert listed(K.CUDA) == listed(K.CompositeImplicitAutograd) == ["t::f"]
    assert listed(K.SparseCPU) == ["t::g"]
    assert listed(K.CPU) == listed(K.Undefined) == []


def test_a_key_has_a_fallback_or_not(dispatcher):
    has = dispatcher.has_backend_fallback_for_dispatch_key
    assert has(K.AutogradCPU)
    assert not has(K.CUDA)
    with dispatcher.register_fallback(K.CUDA, FALLTHROUGH):
        assert has(K.CUDA)


def test_every_operator_is_observed_but_for_a_few(define):
    assert is_observed(define("t::size(Tensor x) -> int"))
    assert is_observed(define("aten::add(Tensor x) -> Tensor"))
    for name in ("aten::size", "aten::size.int", "profiler::_record_function_enter"):
        assert not is_observed(define(f"{name}(Tensor x) -> int")), name
