"""A dispatcher that allows some keys only: registrations for others are skipped, visibly."""

import logging

import numpy as np
import pytest

from opdispatch import Dispatcher, DispatchKey, KernelFunction, NoKernelError, parse_schema

K = DispatchKey
SCHEMA = parse_schema("t::f(Tensor x) -> Tensor")
NAME = SCHEMA.name
KERNEL = KernelFunction.from_unboxed(lambda x: x + 1)


@pytest.fixture
def picky():
    dispatcher = Dispatcher(allowed_keys=[K.CPU, K.AutogradCPU])
    dispatcher.register_def(SCHEMA)
    return dispatcher


def test_a_kernel_for_an_allowed_key_is_registered(picky):
    handle = picky.register_impl(NAME, K.CPU, KERNEL)
    assert handle.live
    assert not handle.skipped
    assert picky.get_schema(NAME)(np.ones(1)) == 2
    assert picky.skipped() == []


@pytest.mark.parametrize("key", [K.CUDA, K.CompositeImplicitAutograd, K.Undefined])
def test_a_kernel_for_another_key_is_skipped_visibly(picky, key, caplog):
    with caplog.at_level(logging.INFO, "opdispatch"):
        handle = picky.register_impl(NAME, key, KERNEL, site="lib.py:7")
    assert handle.skipped
    assert repr(handle).endswith("[skipped]>")
    assert picky.skipped() == [handle.registration]
    assert picky.list_kernels(NAME) == []
    [record] = caplog.records
    assert "t::f" in record.getMessage()
    assert "lib.py:7" in record.getMessage()
    with pytest.raises(NoKernelError):
        picky.get_schema(NAME)(np.ones(1))
    assert picky.check_invariants() == []
    handle.close()
    assert not handle.live
    assert picky.skipped() == []


def test_a_skipped_kernel_makes_no_operator():
    dispatcher = Dispatcher(allowed_keys=[K.CPU])
    dispatcher.register_impl(NAME, K.CUDA, KERNEL)
    assert dispatcher.operators() == []


def test_fallbacks_are_skipped_as_well_but_not_those_of_opdispatch(picky):
    before = dict(picky.fallbacks())
    assert K.AutogradOther in before
    handle = picky.register_fallback(K.Tracer, KernelFunction.fallthrough())
    assert handle.skipped
    assert dict(picky.fallbacks()) == before


def test_a_failed_transaction_forgets_what_it_skipped(picky):
    with picky.transaction() as transaction:
        picky.register_impl(NAME, K.CUDA, KERNEL)
        transaction.rollback()
    assert picky.skipped() == []


def test_every_key_is_allowed_unless_some_are_named(dispatcher):
    assert not dispatcher.register_impl(NAME, K.CUDA, KERNEL).skipped


def test_a_key_is_allowed_by_the_name_it_is_registered_with():
    dispatcher = Dispatcher(allowed_keys=[K.Undefined])
    dispatcher.register_def(SCHEMA)
    # None, Undefined and CompositeImplicitAutograd are one key to a registration.
    assert not dispatcher.register_impl(NAME, None, KERNEL).skipped
    assert dispatcher.get_schema(NAME)(np.ones(1)) == 2
