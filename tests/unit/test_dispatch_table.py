"""The order of precedence, rule by rule; tests/conformance compares whole tables with PyTorch."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opdispatch import DispatchKey, Registration
from opdispatch.dispatch.dispatch_table import AMBIGUOUS, EXPANDS, MISSING, Slot, compute_slot
from opdispatch.keys.dispatch_key import ALIAS_KEYS
from opdispatch.keys.dispatch_key_set import RUNTIME_KEYS

K = DispatchKey
EXPLICIT, NON_FUNCTIONAL = K.CompositeExplicitAutograd, K.CompositeExplicitAutogradNonFunctional
IMPLICIT, NESTED = K.CompositeImplicitAutograd, K.CompositeImplicitAutogradNestedTensor
BATCHED = K.FuncTorchBatchedDecomposition

registrations = {key: Registration("impl", key=key) for key in DispatchKey}
fallbacks = {key: Registration("fallback", key=key) for key in RUNTIME_KEYS}


def slot(key, *keys, fallback=False):
    """The slot of `key` when there are kernels for `keys`: which of them it is, and why."""
    found = compute_slot(key, {k: registrations[k] for k in keys}, fallbacks if fallback else {})
    which = found.registration
    return (None if which is None else which.kind if which.kind == "fallback" else which.key), (
        found.reason
    )


PRECEDENCE = [
    (K.CPU, "kernel"),
    (NON_FUNCTIONAL, "default backend kernel"),
    (EXPLICIT, "default backend kernel"),
    (IMPLICIT, "math kernel"),
    ("fallback", "backend fallback"),
]


@pytest.mark.parametrize("place", range(len(PRECEDENCE)))
def test_for_a_backend_the_first_of_these_wins(place):
    rest = [key for key, _ in PRECEDENCE[place:] if key != "fallback"]
    assert slot(K.CPU, *rest, fallback=True) == PRECEDENCE[place]


AUTOGRAD_PRECEDENCE = [
    (K.AutogradCPU, "kernel"),
    (IMPLICIT, "math kernel"),
    (K.Autograd, "autograd kernel"),
    ("fallback", "backend fallback"),
]


@pytest.mark.parametrize("place", range(len(AUTOGRAD_PRECEDENCE)))
def test_for_autograd_the_first_of_these_wins(place):
    rest = [key for key, _ in AUTOGRAD_PRECEDENCE[place:] if key != "fallback"]
    assert slot(K.AutogradCPU, *rest, fallback=True) == AUTOGRAD_PRECEDENCE[place]


def test_key_without_a_kernel_is_unserved():
    assert compute_slot(K.CPU, {}, {}) == Slot(None, MISSING)


def test_nested_tensors_take_the_kernel_for_nested_tensors_first():
    for key in (K.NestedTensorCPU, K.AutogradNestedTensor):
        assert slot(key, NESTED, IMPLICIT) == (NESTED, "nested kernel")
        assert slot(key, IMPLICIT) == (IMPLICIT, "math kernel")
    assert slot(K.CPU, NESTED) == (None, MISSING)
    assert slot(K.NestedTensorCPU, EXPLICIT) == (None, MISSING)


def test_batched_tensors_have_an_alias_of_their_own():
    assert slot(K.FuncTorchBatched, BATCHED) == (BATCHED, "batched kernel")
    assert slot(K.Batched, BATCHED) == (None, MISSING)


# -- a composite kernel must not hide a backend's own from autograd ----------------------------


def test_a_backend_with_its_own_kernel_keeps_the_math_kernel_from_its_autograd():
    assert slot(K.AutogradCPU, IMPLICIT, K.CPU) == (None, MISSING)
    assert slot(K.AutogradCPU, IMPLICIT, K.CPU, K.Autograd) == (K.Autograd, "autograd kernel")
    assert slot(K.AutogradCUDA, IMPLICIT, K.CPU) == (IMPLICIT, "math kernel")


def test_a_kernel_for_every_backend_keeps_it_from_every_autograd():
    assert slot(K.AutogradCPU, IMPLICIT, EXPLICIT) == (None, MISSING)
    assert slot(K.AutogradCPU, IMPLICIT, NON_FUNCTIONAL) == (IMPLICIT, "math kernel")


@pytest.mark.parametrize("key", [K.AutogradHIP, K.AutogradVE, K.AutogradMTIA])
def test_some_autograd_keys_know_no_backend_and_always_take_it(key):
    backend = K[key.name.removeprefix("Autograd")]
    assert slot(key, IMPLICIT, backend) == (IMPLICIT, "math kernel")


def test_a_kernel_for_dense_serves_no_slot_but_counts_as_a_kernel_of_the_backend():
    assert slot(K.CPU, K.Dense) == (None, MISSING)
    assert slot(K.AutogradCPU, IMPLICIT, K.Dense) == (None, MISSING)
    assert slot(K.AutogradHIP, IMPLICIT, K.Dense) == (IMPLICIT, "math kernel")


@pytest.mark.parametrize("backend", [K.FPGA, K.SparseCPU, K.QuantizedCUDA, K.MkldnnCPU, K.Sparse])
def test_autograd_other_is_ambiguous_when_one_of_its_backends_has_a_kernel_too(backend):
    assert slot(K.AutogradOther, IMPLICIT, backend) == (None, AMBIGUOUS)
    assert slot(K.AutogradOther, IMPLICIT, backend, K.AutogradOther) == (
        K.AutogradOther,
        "kernel",
    )
    assert slot(K.AutogradOther, IMPLICIT, backend, K.Autograd) == (None, AMBIGUOUS)


def test_autograd_other_is_not_ambiguous_otherwise():
    assert slot(K.AutogradOther, IMPLICIT, K.CPU) == (IMPLICIT, "math kernel")
    assert slot(K.AutogradOther, K.SparseCPU) == (None, MISSING)


def test_a_nested_tensor_kernel_leaves_nested_autograd_without():
    assert slot(K.AutogradNestedTensor, IMPLICIT, K.NestedTensorCPU) == (None, MISSING)


# -- Note [Undefined borrows composite kernels] --------------------------------------------------


@pytest.mark.parametrize("alias", ALIAS_KEYS)
def test_undefined_takes_the_kernels_of_these_aliases(alias):
    taken = {
        EXPLICIT: "default backend kernel",
        NON_FUNCTIONAL: "default backend kernel",
        IMPLICIT: "math kernel",
    }
    expected = (alias, taken[alias]) if alias in taken else (None, MISSING)
    assert slot(K.Undefined, alias) == expected


def test_undefined_has_a_kernel_of_its_own_first():
    assert slot(K.Undefined, K.Undefined, IMPLICIT, EXPLICIT) == (K.Undefined, "kernel")


# -- properties ------------------------------------------------------------------------------------

some_keys = st.sets(st.sampled_from([*RUNTIME_KEYS, *ALIAS_KEYS, K.Dense, K.Sparse]), max_size=6)


@given(some_keys, st.booleans())
def test_a_slot_holds_a_kernel_that_is_registered_for_it(keys, fallback):
    for key in RUNTIME_KEYS:
        which, reason = slot(key, *keys, fallback=fallback)
        if which is None:
            assert reason in (MISSING, AMBIGUOUS)
        elif which != "fallback":
            assert which in keys
            assert which is key or key in EXPANDS[which] or key is K.Undefined


@given(some_keys, st.sampled_from(RUNTIME_KEYS))
def test_a_direct_kernel_always_wins(keys, key):
    assert slot(key, *keys, key, fallback=True) == (key, "kernel")


@given(some_keys)
def test_a_fallback_changes_only_slots_that_had_none(keys):
    for key in RUNTIME_KEYS:
        without, with_fallbacks = slot(key, *keys), slot(key, *keys, fallback=True)
        if without[1] == MISSING:
            assert with_fallbacks == ("fallback", "backend fallback")
        else:
            assert with_fallbacks == without


def test_the_order_of_registration_does_not_matter():
    keys = (K.CPU, K.SparseCPU, EXPLICIT, IMPLICIT, K.Autograd)
    tables = [
        tuple(slot(key, *order) for key in RUNTIME_KEYS) for order in itertools.permutations(keys)
    ]
    assert len(set(tables)) == 1
