"""The key that serves a call, and the functionalities that calls of an operator pass over."""

from hypothesis import given
from hypothesis import strategies as st

from opdispatch import DispatchKey, DispatchKeySet, KernelFunction, Registration, parse_schema
from opdispatch.dispatch.dispatch_key_extractor import (
    is_fallthrough,
    non_fallthrough_mask,
    table_key,
)
from opdispatch.keys.dispatch_key_set import BACKEND_MASK, RUNTIME_KEYS, WORD_MASK

K = DispatchKey


def registration(key, *, falls_through=False):
    kernel = (
        KernelFunction.fallthrough() if falls_through else KernelFunction.from_unboxed(lambda x: x)
    )
    return Registration("impl", key=key, kernel=kernel)


@given(st.integers(0, (1 << 64) - 1))
def test_the_key_that_serves_a_word_is_the_one_in_its_slot(word):
    keys = DispatchKeySet(word)
    assert table_key(word) is RUNTIME_KEYS[keys.table_index]
    if word & BACKEND_MASK:
        assert table_key(word) is keys.highest_priority_key


def test_only_a_fallthrough_kernel_falls_through():
    assert is_fallthrough(registration(K.CPU, falls_through=True))
    assert not is_fallthrough(registration(K.CPU))
    assert not is_fallthrough(Registration("def", schema=parse_schema("t::f(Tensor x) -> Tensor")))
    assert not is_fallthrough(None)


def test_mask_has_all_bits_where_nothing_falls_through():
    assert non_fallthrough_mask(0, lambda key: False) == WORD_MASK


def test_mask_leaves_out_the_functionality_that_falls_through_on_that_backend_alone():
    autograd = DispatchKeySet.of(K.AutogradCUDA).bits & ~BACKEND_MASK
    for key, is_left_out in ((K.CPU, False), (K.CUDA, True)):
        backend = (DispatchKeySet.of(key).bits & BACKEND_MASK).bit_length() - 1
        mask = non_fallthrough_mask(backend, lambda key: key is K.AutogradCUDA)
        assert mask == (WORD_MASK & ~autograd if is_left_out else WORD_MASK)
