"""Key sets: the laws of their algebra, and the one law that subtraction breaks."""

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opdispatch import BackendComponent, DispatchKey, DispatchKeyError, DispatchKeySet
from opdispatch.keys.dispatch_key import ALIAS_KEYS, FUNCTIONALITY_BIT, to_functionality_key
from opdispatch.keys.dispatch_key_set import (
    AFTER_ADINPLACEORVIEW_KEYSET,
    AFTER_AUTOGRAD_KEYSET,
    ALIAS_KEYSETS,
    BACKEND_MASK,
    DEFAULT_EXCLUDED_SET,
    DEFAULT_INCLUDED_SET,
    RUNTIME_KEYS,
    TABLE_INDEX,
    bits_of_key,
    get_backend_key_set_from_autograd,
    get_runtime_dispatch_key_set,
    is_included_in_alias,
)

K = DispatchKey

words = st.integers(0, (1 << 64) - 1)
key_sets = st.one_of(
    words.map(DispatchKeySet),
    st.lists(st.sampled_from(RUNTIME_KEYS), max_size=4).map(lambda ks: DispatchKeySet.of(*ks)),
)
runtime_keys = st.sampled_from(RUNTIME_KEYS)
EMPTY = DispatchKeySet()


# -- the algebra of union and intersection ---------------------------------------------------


@given(key_sets, key_sets, key_sets)
def test_union_and_intersection_form_a_lattice(a, b, c):
    assert (a | b, a & b) == (b | a, b & a)
    assert ((a | b) | c, (a & b) & c) == (a | (b | c), a & (b & c))
    assert (a | (a & b), a & (a | b)) == (a, a)
    assert a & (b | c) == (a & b) | (a & c)
    assert (a | EMPTY, a & EMPTY) == (a, EMPTY)


@given(key_sets, key_sets)
def test_exclusive_or_is_what_one_of_the_two_has(a, b):
    assert a ^ b == DispatchKeySet((a | b).bits & ~(a & b).bits)


@given(key_sets, key_sets)
def test_a_set_has_all_of_another_exactly_if_their_union_adds_nothing(a, b):
    assert a.has_all(b) == (a | b == a)
    assert a.has_any(b) == bool(a & b)


# -- subtraction: Note [Subtraction keeps the backend] ---------------------------------------


@given(key_sets, key_sets)
def test_subtraction_takes_functionalities_and_leaves_backends(a, b):
    difference = a - b
    assert difference.bits & BACKEND_MASK == a.bits & BACKEND_MASK
    assert difference.bits & ~BACKEND_MASK == a.bits & ~b.bits & ~BACKEND_MASK


@given(key_sets)
def test_the_law_that_subtraction_breaks_is_that_nothing_is_left_of_a_set_less_itself(a):
    assert a - a == DispatchKeySet(a.bits & BACKEND_MASK)
    assert not list(a - a)


@given(key_sets, key_sets, key_sets)
def test_the_other_laws_of_difference_hold(a, b, c):
    assert (a - b) - c == (a - c) - b == a - (b | c)
    assert (a - b) - b == a - b
    assert (a | c) - b == (a - b) | (c - b)
    assert a - EMPTY == a
    assert a.has_all(a - b)


def test_taking_out_one_key_of_a_backend_leaves_the_others_their_backend():
    keys = DispatchKeySet.of(K.CPU, K.AutogradCPU)
    assert keys - DispatchKeySet.of(K.AutogradCPU) == DispatchKeySet.of(K.CPU)
    assert keys.remove(K.AutogradCPU) == DispatchKeySet.of(K.CPU)


def test_taking_out_cpu_takes_out_dense_for_every_backend():
    keys = DispatchKeySet.of(K.CPU, K.CUDA, K.AutogradCUDA)
    assert keys.remove(K.CPU).highest_priority_key is K.AutogradCUDA
    assert not keys.remove(K.CPU).has(K.CUDA)


@given(key_sets, runtime_keys)
def test_adding_and_removing_a_key_are_union_and_difference_with_it(a, key):
    alone = DispatchKeySet.of(key)
    assert a.add(key) == a | alone
    assert a.remove(key) == a - alone
    assert a.add(key).has(key)


@given(key_sets, runtime_keys)
def test_a_removed_key_is_gone(a, key):
    if key is not K.Undefined:
        assert not a.remove(key).has(key)


@given(key_sets)
def test_no_operation_changes_the_set_it_is_made_on(a):
    before = a.bits
    _ = a.add(K.Python), a.remove(K.CPU), a.remove_backend(BackendComponent.CPU), a - a, a | a
    assert a.bits == before


# -- membership ------------------------------------------------------------------------------


@given(key_sets)
def test_undefined_and_aliases_are_in_every_set_since_they_have_no_bits(a):
    assert all(a.has(key) for key in (K.Undefined, *ALIAS_KEYS))
    assert [bits_of_key(key) for key in (K.Undefined, *ALIAS_KEYS)] == [0] * 7
    assert a.add(K.Autograd) == a


@given(key_sets)
def test_a_set_without_stray_backends_is_the_union_of_the_keys_it_lists(a):
    listed = DispatchKeySet.of(*a)
    assert a.has_all(listed)
    assert listed.bits & ~BACKEND_MASK == a.bits & ~BACKEND_MASK or not a.bits & BACKEND_MASK
    assert all(a.has(key) and key in a for key in a)


@given(st.lists(runtime_keys, max_size=6))
def test_the_order_of_construction_does_not_matter(keys):
    assert DispatchKeySet.of(*keys) == DispatchKeySet.of(*reversed(keys), *keys)


def test_keys_share_backend_bits():
    # {CPU, AutogradCUDA} cannot be told from {CPU, CUDA, AutogradCPU, AutogradCUDA}.
    keys = DispatchKeySet.of(K.CPU, K.AutogradCUDA)
    assert list(keys) == [K.CPU, K.CUDA, K.AutogradCPU, K.AutogradCUDA]


def test_backends_are_asked_for_and_removed_by_themselves():
    keys = DispatchKeySet.of(K.CPU, BackendComponent.CUDA)
    assert (keys.has_backend(BackendComponent.CUDA), keys.has(K.CUDA)) == (True, True)
    assert keys.remove_backend(BackendComponent.CUDA) == DispatchKeySet.of(K.CPU)
    assert not keys.has_backend(BackendComponent.Meta)


# -- which key is served -------------------------------------------------------------------------


@given(key_sets)
def test_the_highest_key_is_the_last_one_listed(a):
    listed = list(a)
    expected = listed[-1] if listed else K.Undefined
    if a.bits & BACKEND_MASK:
        assert a.highest_priority_key is expected
    assert a.highest_functionality_key is to_functionality_key(a.highest_priority_key)


def test_a_functionality_without_a_backend_is_served_by_the_slot_of_the_cpu():
    keys = DispatchKeySet.of(K.Quantized)
    assert str(keys.highest_priority_key) == "QuantizedUndefined"
    assert keys.highest_backend_key is None
    assert keys.table_index == TABLE_INDEX[K.QuantizedCPU]


@given(key_sets)
def test_the_table_index_is_that_of_the_highest_key(a):
    index = a.table_index
    if a.bits & BACKEND_MASK:
        assert RUNTIME_KEYS[index] is a.highest_priority_key
    assert index == TABLE_INDEX[RUNTIME_KEYS[index]]


@given(key_sets, key_sets)
def test_a_union_is_served_at_least_as_early_as_its_parts(a, b):
    def rank(keys):
        return FUNCTIONALITY_BIT.get(keys.highest_functionality_key, -1)

    assert rank(a | b) == max(rank(a), rank(b))


def test_the_highest_backend_is_served():
    keys = DispatchKeySet.of(K.CPU, K.CUDA, K.Meta)
    assert keys.highest_backend_key is BackendComponent.Meta
    assert keys.highest_priority_key is K.Meta


def test_every_runtime_key_has_its_own_slot():
    assert [TABLE_INDEX[key] for key in RUNTIME_KEYS] == list(range(len(RUNTIME_KEYS)))
    assert len(RUNTIME_KEYS) == 137 + 2  # PyTorch's, and the two that it dropped
    for key in RUNTIME_KEYS:
        assert DispatchKeySet.of(key).table_index == TABLE_INDEX[key]


# -- full sets -----------------------------------------------------------------------------------


def test_the_full_set_has_every_bit_of_2_13():
    assert DispatchKeySet.full().bits == (1 << 62) - 1
    assert not DispatchKeySet.full().has(K.ORT)
    assert not DispatchKeySet.full().has(K.Named)


def test_full_after_is_everything_below_and_the_python_dispatcher():
    after = DispatchKeySet.full_after(K.AutogradOther)
    assert after == AFTER_AUTOGRAD_KEYSET
    assert list(after)[-1] is K.PythonDispatcher
    below = after.remove(K.PythonDispatcher)
    assert below.highest_functionality_key is K.ADInplaceOrView
    assert all(after.has_backend(backend) for backend in BackendComponent)
    assert DispatchKeySet.full_after(K.ADInplaceOrView) == AFTER_ADINPLACEORVIEW_KEYSET


@pytest.mark.parametrize("key", [K.AutogradCUDA, K.AutogradFunctionality])
def test_full_after_goes_by_functionality(key):
    assert DispatchKeySet.full_after(key) == DispatchKeySet.full_after(K.AutogradCPU)


def test_a_task_starts_with_these_keys():
    assert list(DEFAULT_INCLUDED_SET) == [K.BackendSelect, K.ADInplaceOrView]
    assert all(str(key).startswith("Autocast") for key in DEFAULT_EXCLUDED_SET)
    assert len(list(DEFAULT_EXCLUDED_SET)) == 10


# -- aliases -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("alias", "members"),
    [
        ("Autograd", 18),
        ("CompositeImplicitAutograd", 103),
        ("CompositeExplicitAutograd", 69),
        ("CompositeExplicitAutogradNonFunctional", 47),
    ],
)
def test_an_alias_stands_for_that_many_runtime_keys(alias, members):
    keys = get_runtime_dispatch_key_set(K[alias])
    assert len(list(keys)) == members
    assert {key for key in RUNTIME_KEYS if is_included_in_alias(key, K[alias])} == set(keys)


def test_a_runtime_key_stands_for_itself():
    assert get_runtime_dispatch_key_set(K.SparseCPU) == DispatchKeySet.of(K.SparseCPU)


def test_undefined_is_in_no_alias():
    assert not any(is_included_in_alias(K.Undefined, alias) for alias in ALIAS_KEYSETS)


def test_nested_tensors_belong_to_the_implicit_aliases_only():
    having = {str(a) for a in ALIAS_KEYSETS if is_included_in_alias(K.NestedTensorCPU, a)}
    assert having == {"CompositeImplicitAutograd", "CompositeImplicitAutogradNestedTensor"}


def test_the_autograd_of_some_backends_has_no_backend():
    assert get_backend_key_set_from_autograd(K.AutogradCPU) == DispatchKeySet.of(K.CPU)
    for key in (K.AutogradHIP, K.AutogradVE, K.AutogradMTIA, K.CPU, K.Python):
        assert get_backend_key_set_from_autograd(key) == EMPTY
    assert get_backend_key_set_from_autograd(K.AutogradOther).has(K.SparseCsrCUDA)
    assert get_backend_key_set_from_autograd(K.AutogradNestedTensor).has(K.NestedTensorCPU)


# -- as a value ----------------------------------------------------------------------------------


@given(words)
def test_a_set_is_its_word(word):
    keys = DispatchKeySet.from_raw_repr(word)
    assert keys.raw_repr() == word
    assert (keys, hash(keys)) == (DispatchKeySet(word), hash(DispatchKeySet(word)))
    assert bool(keys) == (word != 0)


@pytest.mark.parametrize("word", [1 << 64, -1])
def test_a_word_has_64_bits(word):
    with pytest.raises(ValueError, match="a dispatch key set has 64 bits"):
        DispatchKeySet.from_raw_repr(word)


def test_a_set_prints_its_keys_from_lowest_to_highest():
    assert str(DispatchKeySet.of(K.AutogradCPU, K.CPU, K.Python)) == (
        "DispatchKeySet(CPU, Python, AutogradCPU)"
    )
    assert repr(DispatchKeySet.of(BackendComponent.CUDA)) == "DispatchKeySet()"


@pytest.mark.parametrize("key", [K.CPU, K.AutogradCUDA, K.Python, K.Undefined, K.Autograd])
def test_a_key_and_its_name_are_the_set_of_that_key(key):
    expected = DispatchKeySet.of(key)
    assert (
        DispatchKeySet(key) == DispatchKeySet(str(key)) == DispatchKeySet.of(str(key)) == expected
    )


def test_a_backend_is_the_set_of_its_bit():
    assert DispatchKeySet(BackendComponent.CUDA).bits == 1 << BackendComponent.CUDA


def test_keys_are_added_removed_and_asked_for_by_name():
    keys = DispatchKeySet("CPU").add("Python")
    assert keys == DispatchKeySet.of(K.CPU, K.Python)
    assert keys.has("Python")
    assert "Python" in keys
    assert not keys.remove("Python").has("Python")
    with pytest.raises(DispatchKeyError, match="there is no dispatch key 'GPU'"):
        keys.has("GPU")


def test_a_set_survives_pickling():
    keys = DispatchKeySet.of(K.AutogradCPU, K.Python)
    assert pickle.loads(pickle.dumps(keys)) == keys
