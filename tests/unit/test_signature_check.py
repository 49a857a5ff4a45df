"""Definitions and kernels of one operator must agree on its signature."""

import pytest

from opdispatch import (
    DispatchKey,
    KernelFunction,
    OperatorName,
    SchemaError,
    SchemaMismatchError,
    parse_schema,
)

K = DispatchKey
NAME = OperatorName.parse("t::f")
ONE = parse_schema("t::f(Tensor x) -> Tensor")
TWO = parse_schema("t::f(Tensor x, Tensor y) -> Tensor")


def kernel(signature):
    return KernelFunction.from_unboxed(lambda *tensors: tensors[0], signature=signature)


UNARY = kernel("(Tensor _0) -> Tensor _0")
BINARY = kernel("(Tensor _0, Tensor _1) -> Tensor _0")


def refused(register):
    with pytest.raises(SchemaMismatchError) as caught:
        register()
    return caught.value


def test_a_kernel_must_fit_the_definition(dispatcher):
    dispatcher.register_def(ONE, site="one.py:1")
    error = refused(lambda: dispatcher.register_impl(NAME, K.CPU, BINARY, site="two.py:2"))
    assert error.message == (
        "the definition t::f(Tensor x) -> Tensor, registered at one.py:1, and the CPU kernel "
        "(Tensor _0, Tensor _1) -> Tensor _0 of t::f, registered at two.py:2, do not have the "
        "same signature: the number of arguments differs: 1 and 2"
    )
    assert (error.facts["first_site"], error.facts["second_site"]) == ("one.py:1", "two.py:2")
    assert dispatcher.list_kernels(NAME) == []


def test_a_definition_must_fit_the_kernels(dispatcher):
    handle = dispatcher.register_impl(NAME, K.CPU, UNARY, site="one.py:1")
    error = refused(lambda: dispatcher.register_def(TWO, site="two.py:2"))
    assert (error.facts["first_site"], error.facts["second_site"]) == ("one.py:1", "two.py:2")
    assert dispatcher.find_schema(NAME) is None
    assert dispatcher.find_dangling_impls() == [NAME]
    handle.close()
    dispatcher.register_def(TWO)


def test_mismatch_message_is_the_same_in_either_order_of_registration(dispatcher):
    def definition():
        return dispatcher.register_def(TWO, debug="here")

    def implementation():
        return dispatcher.register_impl(NAME, K.CPU, UNARY, debug="there")

    texts = set()
    for first, second in ((definition, implementation), (implementation, definition)):
        with first():
            texts.add(str(refused(second)))
    assert texts == {
        "the definition t::f(Tensor x, Tensor y) -> Tensor, here, and the CPU kernel "
        "(Tensor _0) -> Tensor _0 of t::f, there, do not have the same signature: "
        "the number of arguments differs: 2 and 1"
    }


def test_kernels_must_fit_each_other_defined_or_not(dispatcher):
    dispatcher.register_impl(NAME, K.CPU, UNARY)
    refused(lambda: dispatcher.register_impl(NAME, K.CUDA, BINARY))
    refused(lambda: dispatcher.register_impl(NAME, K.CPU, BINARY))
    assert [kernel.key for kernel in dispatcher.list_kernels(NAME)] == [K.CPU]


def test_a_covered_kernel_counts_too(dispatcher):
    dispatcher.register_impl(NAME, K.CPU, UNARY)
    dispatcher.register_impl(NAME, K.CPU, kernel(""))
    refused(lambda: dispatcher.register_def(TWO))


def test_a_refusal_in_a_transaction_leaves_the_rest_of_it(dispatcher):
    with dispatcher.transaction():
        dispatcher.register_def(ONE)
        refused(lambda: dispatcher.register_impl(NAME, K.CPU, BINARY))
        dispatcher.register_impl(NAME, K.CPU, UNARY)
    assert dispatcher.check_invariants() == []
    assert [kernel.key for kernel in dispatcher.list_kernels(NAME)] == [K.CPU]


@pytest.mark.parametrize(
    "made",
    [kernel(""), KernelFunction.fallthrough(), KernelFunction.from_boxed(lambda *_: None)],
    ids=["python", "fallthrough", "boxed"],
)
def test_a_kernel_that_says_nothing_fits_everything(dispatcher, made):
    dispatcher.register_impl(NAME, K.CPU, made)
    dispatcher.register_impl(NAME, K.CUDA, BINARY)
    dispatcher.register_def(TWO)
    dispatcher.register_impl(NAME, K.XLA, made)


def test_a_signature_is_shown_with_the_kernel(dispatcher):
    dispatcher.register_impl(NAME, K.CPU, UNARY, site="one.py:1")
    state = dispatcher.find_op(NAME).dump_state()
    line = "CPU: registered at one.py:1 :: (Tensor _0) -> Tensor _0 [ boxed unboxed ]"
    assert state.splitlines()[-1] == line


def test_a_signature_must_parse():
    with pytest.raises(SchemaError):
        kernel("Tensor to Tensor")
