"""An operator's own callback is called for calls that find no kernel."""

import numpy as np
import pytest

from opdispatch import (
    AmbiguousKernelError,
    DispatchKey,
    DispatchKeySet,
    KernelFunction,
    NoKernelError,
    parse_schema,
)

K = DispatchKey
SCHEMA = parse_schema("t::f(Tensor x) -> Tensor")
NONE = parse_schema("t::none(int x) -> int")
KERNEL = KernelFunction.from_unboxed(lambda x: x)


@pytest.fixture
def op(dispatcher):
    dispatcher.register_def(SCHEMA)
    return dispatcher.get_schema(SCHEMA.name)


def test_callback_gets_the_key_before_the_error_is_raised(op):
    told = []
    op.set_report_error_callback(told.append)
    with pytest.raises(NoKernelError):
        op(np.ones(1))
    assert told == ["CPU"]


def test_without_tensors_the_key_is_undefined(dispatcher):
    dispatcher.register_def(NONE)
    op, told = dispatcher.get_schema(NONE.name), []
    op.set_report_error_callback(told.append)
    with pytest.raises(NoKernelError):
        op(1)
    assert told == ["Undefined"]


def test_error_of_the_callback_is_raised_instead(op):
    def complain(key):
        raise LookupError(f"nothing for {key}")

    op.set_report_error_callback(complain)
    with pytest.raises(LookupError, match="nothing for CPU"):
        op(np.ones(1))


def test_callback_is_not_called_for_meta_tensors_ambiguity_or_fallthroughs(dispatcher, op):
    told = []
    op.set_report_error_callback(told.append)
    with pytest.raises(NoKernelError):
        op.redispatch(DispatchKeySet.of(K.Meta), np.ones(1))
    dispatcher.register_impl(SCHEMA.name, K.CPU, KernelFunction.fallthrough())
    with pytest.raises(NoKernelError):
        op.redispatch(DispatchKeySet.of(K.CPU), np.ones(1))
    dispatcher.register_impl(SCHEMA.name, K.SparseCPU, KERNEL)
    dispatcher.register_impl(SCHEMA.name, None, KERNEL)
    with pytest.raises(AmbiguousKernelError):
        op.redispatch(DispatchKeySet.of(K.AutogradOther), np.ones(1))
    assert told == []


def test_callback_is_not_called_for_calls_that_find_a_kernel(dispatcher, op):
    op.set_report_error_callback(lambda key: 1 / 0)
    dispatcher.register_impl(SCHEMA.name, K.CPU, KERNEL)
    assert op(np.ones(1)) == np.ones(1)


def test_newest_callback_is_called_and_none_removes_it(op):
    told = []
    op.set_report_error_callback(lambda key: 1 / 0)
    op.set_report_error_callback(told.append)
    op.set_report_error_callback(None)
    with pytest.raises(NoKernelError):
        op(np.ones(1))
    assert told == []
