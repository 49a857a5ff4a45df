"""Transactions: registrations that become visible at once, or not at all."""

import threading
from contextlib import suppress

import numpy as np
import pytest

from opdispatch import (
    DispatchKey,
    DuplicateDefinitionError,
    OperatorName,
    OperatorNotFoundError,
    parse_schema,
)
from tests.unit.plain_kernels import returning
from tests.waits import LONGEST_WAIT

K = DispatchKey
X = np.ones(2)
SCHEMA = parse_schema("t::f(Tensor x) -> int")
NAME = SCHEMA.name


def elsewhere(look):
    """Return the function's result from another thread."""
    seen = []
    thread = threading.Thread(target=lambda: seen.append(look()))
    thread.start()
    thread.join(LONGEST_WAIT)
    return seen[0]


@pytest.fixture
def op(dispatcher):
    """An operator that was there before, and returns 1."""
    dispatcher.register_def(SCHEMA)
    dispatcher.register_impl(NAME, K.CPU, returning(1))
    handle = dispatcher.get_schema(NAME)
    assert (handle(X), handle(X)) == (1, 1)
    return handle


def test_other_threads_see_registrations_only_after_the_transaction(dispatcher):
    with dispatcher.transaction():
        dispatcher.register_def(SCHEMA)
        dispatcher.register_impl(NAME, K.CPU, returning(1))
        assert elsewhere(dispatcher.operators) == []
        assert elsewhere(lambda: dispatcher.find_op(NAME)) is None
    assert elsewhere(lambda: dispatcher.get_schema(NAME)(X)) == 1


def test_the_thread_itself_sees_its_own_registrations_at_once(dispatcher, caller):
    with dispatcher.transaction():
        dispatcher.register_def(SCHEMA)
        assert dispatcher.get_schema(NAME).schema == SCHEMA
        assert dispatcher.operators() == [NAME]
        kernel = dispatcher.register_impl(NAME, K.CPU, returning(1))
        inside = dispatcher.get_schema(NAME)
        assert inside(X) == 1
        with dispatcher.register_impl(NAME, K.CPU, returning(2)):
            assert inside(X) == 2
        assert inside(X) == 1
        assert [str(n) for n in dispatcher.overloads("t::f")] == ["t::f"]
        kernel.close()
        assert inside.kernels() == []
    assert not inside.has_kernel_for_dispatch_key(K.CPU)


def test_others_keep_calling_what_was_there(dispatcher, op, caller):
    with dispatcher.transaction():
        dispatcher.register_impl(NAME, K.CPU, returning(2))
        assert dispatcher.get_schema(NAME)(X) == 2
        assert elsewhere(lambda: op(X)) == 1
        assert elsewhere(lambda: dispatcher.get_schema(NAME)(X)) == 1
    assert op(X) == 2


def test_own_thread_sees_removals_within_the_transaction(dispatcher, caller):
    handles = [dispatcher.register_def(SCHEMA), dispatcher.register_impl(NAME, None, returning(1))]
    with dispatcher.transaction():
        for handle in handles:
            handle.close()
        assert dispatcher.find_op(NAME) is None
        assert dispatcher.operators() == []
        with pytest.raises(OperatorNotFoundError):
            dispatcher.get_schema(NAME)
        assert elsewhere(lambda: dispatcher.get_schema(NAME)(X)) == 1
    assert elsewhere(lambda: dispatcher.find_op(NAME)) is None


def test_a_definition_may_be_replaced_by_another_at_once(dispatcher, op, caller):
    other = parse_schema("t::f(Tensor x, int n=5) -> (int, int)")
    definition = dispatcher._registry.entries[NAME].definitions[0]
    with dispatcher.transaction():
        definition.close()
        dispatcher.register_def(other)
        dispatcher.register_impl(NAME, K.CPU, returning((2, 3)))
        assert dispatcher.get_schema(NAME)(X) == (2, 3)
        assert dispatcher.get_schema(NAME).schema == other
        assert elsewhere(lambda: op(X)) == 1
        assert elsewhere(lambda: op.schema) == SCHEMA
    assert op(X, n=1) == (2, 3)
    assert op.schema == other


def test_an_exception_propagates(dispatcher):
    with pytest.raises(KeyError), dispatcher.transaction():
        raise KeyError


def test_an_exception_undoes_everything(dispatcher, op):
    before = dispatcher.operators()
    with suppress(KeyError), dispatcher.transaction() as transaction:
        dispatcher.register_library("t")
        dispatcher.register_def(parse_schema("t::g() -> ()"))
        dispatcher.register_fallback(K.Fake, returning(3))
        dispatcher.register_impl(NAME, K.CPU, returning(2))
        op.kernels()
        raise KeyError
    assert transaction.registrations == []
    assert dispatcher.operators() == before
    assert dispatcher.libraries() == {}
    assert K.Fake not in dispatcher.fallbacks()
    assert op(X) == 1
    assert len(op.kernels()) == 1


def test_an_exception_brings_back_what_was_undone_in_its_old_place(dispatcher, op):
    handles = [dispatcher.register_impl(NAME, K.CPU, returning(n)) for n in (2, 3)]
    before = [kernel.registration for kernel in op.kernels()]
    with suppress(KeyError), dispatcher.transaction():
        handles[0].close()
        dispatcher.register_impl(NAME, K.CPU, returning(4))
        handles[1].close()
        raise KeyError
    assert [kernel.registration for kernel in op.kernels()] == before
    assert [handle.live for handle in handles] == [True, True]
    assert op(X) == 3


def test_handles_of_an_undone_transaction_are_undone(dispatcher):
    with suppress(KeyError), dispatcher.transaction():
        handle = dispatcher.register_def(SCHEMA)
        raise KeyError
    assert not handle.live
    handle.close()
    assert dispatcher.operators() == []


def test_a_registration_that_is_refused_does_not_end_the_transaction(dispatcher, op):
    with dispatcher.transaction():
        dispatcher.register_impl(NAME, K.CUDA, returning(2))
        with pytest.raises(DuplicateDefinitionError):
            dispatcher.register_def(SCHEMA)
        dispatcher.register_impl(NAME, K.Meta, returning(3))
    assert [str(kernel.key) for kernel in op.kernels()] == ["CPU", "CUDA", "Meta"]


def test_a_transaction_lists_what_it_registered_in_order(dispatcher):
    with dispatcher.transaction() as transaction:
        one = dispatcher.register_library("t")
        two = dispatcher.register_def(SCHEMA)
        gone = dispatcher.register_impl(NAME, K.CPU, returning(1))
        gone.close()
        three = dispatcher.register_impl(NAME, K.CPU, returning(2))
        handles = [one, two, three]
        assert transaction.registrations == [handle.registration for handle in handles]


def test_a_fallback_for_an_alias_is_one_registration(dispatcher):
    key = K.CompositeImplicitAutogradNestedTensor  # stands for 17 keys
    with dispatcher.transaction() as transaction:
        handle = dispatcher.register_fallback(key, returning(1))
        assert transaction.registrations == [handle.registration]


def test_rolling_back_leaves_the_transaction_empty_and_usable(dispatcher, op):
    with dispatcher.transaction() as transaction:
        dispatcher.register_def(parse_schema("t::g() -> ()"))
        dispatcher.register_impl(NAME, K.CPU, returning(2))
        transaction.rollback()
        assert transaction.registrations == []
        assert dispatcher.get_schema(NAME)(X) == 1
        kept = dispatcher.register_impl(NAME, K.CUDA, returning(3))
        assert transaction.registrations == [kept.registration]
    assert dispatcher.operators() == [NAME]
    assert [str(kernel.key) for kernel in op.kernels()] == ["CPU", "CUDA"]


# -- transactions within transactions ------------------------------------------------------------


def test_an_inner_transaction_is_published_with_the_outer_one(dispatcher):
    with dispatcher.transaction():
        with dispatcher.transaction():
            dispatcher.register_def(SCHEMA)
        assert elsewhere(dispatcher.operators) == []
    assert elsewhere(dispatcher.operators) == [NAME]


def test_an_inner_transaction_that_fails_undoes_only_itself(dispatcher):
    with dispatcher.transaction() as outer:
        dispatcher.register_def(SCHEMA)
        with suppress(KeyError), dispatcher.transaction() as inner:
            dispatcher.register_impl(NAME, K.CPU, returning(1))
            assert len(inner.registrations) == 1
            raise KeyError
        assert [r.kind for r in outer.registrations] == ["def"]
    assert dispatcher.get_schema(NAME).kernels() == []


def test_an_outer_transaction_that_fails_undoes_the_inner_one(dispatcher):
    with suppress(KeyError), dispatcher.transaction():
        with dispatcher.transaction():
            dispatcher.register_def(SCHEMA)
        raise KeyError
    assert dispatcher.operators() == []


# -- one at a time ---------------------------------------------------------------------------------


def test_other_threads_wait_with_their_registrations(dispatcher):
    order, inside = [], threading.Event()

    def register():
        assert inside.wait(LONGEST_WAIT)
        dispatcher.register_impl(OperatorName("t::other"), None, returning(1))
        order.append("other")

    thread = threading.Thread(target=register)
    thread.start()
    with dispatcher.transaction():
        inside.set()
        dispatcher.register_def(SCHEMA)
        order.append("first")
    thread.join(LONGEST_WAIT)
    assert order == ["first", "other"]
    assert [str(name) for name in dispatcher.operators()] == ["t::f", "t::other"]


def test_only_the_thread_in_the_transaction_is_in_it(dispatcher):
    assert not dispatcher.in_transaction
    with dispatcher.transaction():
        assert dispatcher.in_transaction
        assert not elsewhere(lambda: dispatcher.in_transaction)
    assert not dispatcher.in_transaction
