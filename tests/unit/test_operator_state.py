"""A snapshot of one operator: its slots, its masks, and what calls have learnt."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opdispatch import DispatchKey, DispatchKeySet, KernelFunction, Registration, parse_schema
from opdispatch.boxing.signature import Signature
from opdispatch.dispatch.dispatch_key_extractor import is_fallthrough
from opdispatch.dispatch.operator_state import (
    MEMO_LIMIT,
    Fallbacks,
    OperatorState,
)
from opdispatch.keys.dispatch_key_set import BACKEND_MASK, RUNTIME_KEYS, TABLE_INDEX

K = DispatchKey
DEFINITION = Registration("def", schema=parse_schema("t::f(Tensor x) -> Tensor"))


def registration(key, *, falls_through=False):
    kernel = (
        KernelFunction.fallthrough() if falls_through else KernelFunction.from_unboxed(lambda x: x)
    )
    return Registration("impl", key=key, kernel=kernel)


def state_of(*keys, falls_through=(), fallbacks=()):
    kernels = {key: registration(key) for key in keys}
    kernels |= {key: registration(key, falls_through=True) for key in falls_through}
    by_key = {key: registration(key, falls_through=True) for key in fallbacks}
    signature = Signature(DEFINITION.schema)
    return OperatorState(DEFINITION, signature, kernels, Fallbacks(by_key))


def bits(*keys):
    return DispatchKeySet.of(*keys).bits


def test_a_slot_is_computed_once():
    state = state_of(K.CPU)
    assert state.slot(K.CPU) is state.slot(K.CPU)


def test_a_call_arrives_at_its_highest_key():
    state = state_of(K.CPU, K.AutogradCPU)
    key, slot = state.resolve(bits(K.CPU, K.AutogradCPU))
    assert (key, slot.registration) == (K.AutogradCPU, state.kernels[K.AutogradCPU])


def test_a_fallthrough_of_the_operator_is_masked():
    state = state_of(K.CPU, falls_through=[K.Tracer])
    assert state.mask(bits(K.CPU, K.Tracer)) == bits(K.CPU)


def test_a_fallthrough_of_the_dispatcher_is_masked_unless_the_operator_has_a_kernel():
    assert state_of(K.CPU, fallbacks=[K.Tracer]).mask(bits(K.CPU, K.Tracer)) == bits(K.CPU)
    state = state_of(K.CPU, K.Tracer, fallbacks=[K.Tracer])
    assert state.mask(bits(K.CPU, K.Tracer)) == bits(K.CPU, K.Tracer)


def test_masks_differ_by_backend_and_the_highest_one_chooses():
    state = state_of(K.CPU, K.CUDA, falls_through=[K.AutogradCPU])
    cpu, cuda = (K.CPU, K.AutogradCPU), (K.CUDA, K.AutogradCUDA)
    assert state.mask(bits(*cpu)) == bits(K.CPU)
    assert state.mask(bits(*cuda)) == bits(*cuda)
    assert state.mask(bits(*cpu, *cuda)) == bits(*cpu, *cuda)


def test_a_mask_takes_functionalities_and_leaves_backends():
    state = state_of(falls_through=[K.CompositeImplicitAutograd])
    assert state.mask((1 << 62) - 1) & BACKEND_MASK == BACKEND_MASK
    assert not DispatchKeySet(state.mask(bits(K.CPU))).has(K.CPU)


@given(st.integers(0, (1 << 62) - 1))
def test_masking_is_idempotent_and_leads_to_no_fallthrough(word):
    state = state_of(
        K.CPU,
        K.AutogradCUDA,
        falls_through=[K.Tracer, K.SparseCPU, K.Autograd],
        fallbacks=[K.BackendSelect, K.ADInplaceOrView],
    )
    masked = state.mask(word)
    assert state.mask(masked) == masked
    assert not is_fallthrough(state.resolve(masked)[1].registration)


def test_keys_with_a_kernel_are_listed_without_fallbacks_and_fallthroughs():
    state = state_of(K.SparseCPU, K.CPU, falls_through=[K.Tracer], fallbacks=[K.BackendSelect])
    assert state.keys_with_kernel() == [K.CPU, K.SparseCPU]


def test_memo_of_calls_is_bounded():
    state = state_of(K.CPU)
    for word in range(2 * MEMO_LIMIT):
        state.remember(state.calls, word, print)
    assert len(state.calls) == MEMO_LIMIT


def test_a_wrong_slot_is_found():
    state = state_of(K.CPU)
    assert state.find_violations() == []
    state._slots[K.CPU] = state.slot(K.CUDA)
    [violation] = state.find_violations()
    assert violation.startswith("the slot of CPU is ")


def test_a_wrong_mask_is_found():
    state = state_of(K.CPU)
    state.mask(bits(K.CPU))
    state._masks[0] = 0
    [violation] = state.find_violations()
    assert violation.startswith("the mask of backend 0 is 0x0, and should be ")


def test_a_call_that_should_lead_nowhere_is_found():
    state = state_of(K.CPU)
    state.remember(state.calls, bits(K.CUDA), print)
    assert state.find_violations() == [
        "DispatchKeySet(CUDA) leads to a kernel, and should lead to none"
    ]


@pytest.mark.parametrize("key", RUNTIME_KEYS)
def test_every_runtime_key_can_be_served(key):
    state = state_of(key)
    assert state.slot(key).registration is state.kernels[key]
    assert RUNTIME_KEYS[TABLE_INDEX[key]] is key
