"""The registrations of one name: newest first, published as a whole, one schema for ever."""

import numpy as np
import pytest

from opdispatch import DispatchKey, KernelFunction, OperatorName, parse_schema
from opdispatch.dispatch.operator_entry import OperatorEntry
from tests.unit.plain_kernels import returning

K = DispatchKey
NAME = OperatorName("t::f")
X = np.ones(2)


def schema(text="(Tensor x) -> int"):
    return parse_schema(f"t::f{text}")


@pytest.fixture
def entry(dispatcher):
    """The entry of an operator with a definition and a CPU kernel."""
    dispatcher.register_def(schema())
    dispatcher.register_impl(NAME, K.CPU, returning(1))
    return dispatcher._registry.entries[NAME]


def test_the_newest_kernel_of_a_key_is_in_force(dispatcher, entry):
    older = entry.state.kernels[K.CPU]
    newer = dispatcher.register_impl(NAME, K.CPU, returning(2))
    assert entry.state.kernels[K.CPU] is newer.registration
    newer.close()
    assert entry.state.kernels[K.CPU] is older


def test_kernels_are_undone_in_any_order(dispatcher, entry):
    handles = [dispatcher.register_impl(NAME, K.CPU, returning(n)) for n in range(2, 5)]
    handles[1].close()
    assert entry.state.kernels[K.CPU] is handles[2].registration
    handles[2].close()
    assert entry.state.kernels[K.CPU] is handles[0].registration


def test_every_change_publishes_a_new_state_and_forgets_what_calls_have_learnt(dispatcher, entry):
    dispatcher.get_schema(NAME)(X)
    before = entry.state
    assert entry.calls is before.calls != {}
    dispatcher.register_impl(NAME, K.CUDA, returning(2))
    assert entry.state is not before
    assert entry.calls is entry.state.calls == {}
    assert before.kernels.keys() == {K.CPU}, "a published state never changes"


def test_a_dead_entry_has_no_state_and_no_memos(dispatcher):
    handle = dispatcher.register_def(schema())
    entry = dispatcher._registry.entries[NAME]
    handle.close()
    assert entry.state is None
    assert (entry.calls, entry.redispatches) == ({}, {})
    assert not entry.is_registered


def test_a_name_keeps_its_entry_while_its_schema_stays_the_same(dispatcher, entry):
    with dispatcher.transaction():
        dispatcher._registry.entries[NAME].definitions[0].close()
        dispatcher.register_def(schema())
    assert dispatcher._registry.entries[NAME] is entry


@pytest.mark.parametrize(
    "text", ["(Tensor x, int n=1) -> int", "(Tensor y) -> int", "(Tensor x) -> (int, int)"]
)
def test_another_schema_gets_an_entry_of_its_own_with_the_same_kernels(dispatcher, entry, text):
    dispatcher._registry.entries[NAME].definitions[0].close()
    dispatcher.register_def(schema(text))
    successor = dispatcher._registry.entries[NAME]
    assert successor is not entry
    assert (entry.state, entry.schema) == (None, schema())
    assert successor.schema == schema(text)
    assert successor.kernels.keys() == {K.CPU}


def test_schemas_whose_defaults_are_only_equal_are_two(dispatcher):
    """1 == 1.0 == True in Python, and the kernel would get the wrong one of them."""
    op_texts = ["(Scalar s=1) -> Scalar", "(Scalar s=1.0) -> Scalar", "(Scalar s=True) -> Scalar"]
    kernel = KernelFunction.from_unboxed(lambda s: s)
    dispatcher.register_impl(NAME, None, kernel)
    for text, default in zip(op_texts, (1, 1.0, True), strict=True):
        with dispatcher.register_def(schema(text)):
            result = dispatcher.get_schema(NAME)()
            assert (type(result), result) == (type(default), default)


def test_an_entry_without_a_definition_has_no_schema(dispatcher):
    dispatcher.register_impl(NAME, K.CPU, returning(1))
    entry = dispatcher._registry.entries[NAME]
    assert (entry.schema, entry.signature, entry.state.definition) == (None, None, None)
    assert entry.is_registered


def test_the_signature_stays_for_calls_that_are_under_way(dispatcher, entry):
    signature = entry.signature
    dispatcher._registry.entries[NAME].definitions[0].close()
    assert entry.signature is signature
    assert entry.state.signature is None


# -- what is wrong is found ------------------------------------------------------------------------


def violations(entry):
    fallbacks = entry.dispatcher._registry.published_fallbacks
    return [text.removeprefix("t::f: ") for text in entry.find_violations(fallbacks)]


def test_a_sound_entry_has_no_violations(entry):
    assert violations(entry) == []


def test_an_unpublished_change_is_a_violation(dispatcher, entry):
    lost = entry.kernels.pop(K.CPU)
    assert violations(entry) == ["its published kernels are not the registered ones"]
    entry.kernels[K.CPU] = lost


def test_a_second_definition_is_a_violation(entry):
    entry.definitions.append(entry.definitions[0])
    assert violations(entry) == ["it has 2 definitions"]
    entry.definitions.pop()


def test_an_undone_handle_is_a_violation(entry):
    handle = entry.kernels[K.CPU][0]
    handle.live = False
    assert violations(entry) == ["it holds <RegistrationHandle impl t::f for CPU [undone]>"]
    handle.live = True


def test_an_empty_list_of_kernels_is_a_violation(entry):
    entry.kernels_for(K.CUDA)
    assert violations(entry) == ["it has an empty list of kernels for CUDA"]
    entry.prune()
    assert violations(entry) == []


def test_callers_that_look_elsewhere_are_a_violation(entry):
    calls, entry.calls = entry.calls, {}
    assert violations(entry) == ["its compiled callers look at another state"]
    entry.calls = calls


def test_fallbacks_of_an_older_publication_are_a_violation(dispatcher, entry):
    older = entry.state.fallbacks
    dispatcher.register_fallback(K.CPU, returning(2))
    newer = dispatcher._registry.published_fallbacks
    assert newer is not older
    assert entry.find_violations(newer) == []
    expected = "t::f: its published fallbacks are not the registered ones"
    assert entry.find_violations(older) == [expected]


def test_an_entry_that_was_never_published_is_a_violation(dispatcher):
    entry = OperatorEntry(dispatcher, NAME)
    assert violations(entry) == ["it is not published"]
