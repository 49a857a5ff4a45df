"""Calls that arrive where no kernel is: the error names the keys that have one."""

import numpy as np
import pytest

from opdispatch import AmbiguousKernelError, DispatchKey, NoKernelError
from tests.unit.plain_kernels import naming, tensor

K = DispatchKey
X = np.ones(2)
pytestmark = pytest.mark.usefixtures("caller")


def message_of(op, *args):
    with pytest.raises(NoKernelError) as caught:
        op(*args)
    return str(caught.value)


def test_without_a_kernel_the_error_lists_the_keys_that_have_one(define):
    op = define("t::f(Tensor x) -> str", **naming("CUDA", "SparseCPU"))
    assert message_of(op, X) == (
        "t::f has no kernel for arguments from the CPU backend; kernels serve CUDA, SparseCPU"
    )
    with pytest.raises(NoKernelError) as caught:
        op(X)
    assert caught.value.facts == {
        "operator": "t::f",
        "key": "CPU",
        "available": "CUDA, SparseCPU",
    }


def test_without_a_tensor_the_error_says_so(define):
    op = define("t::f(Tensor[] xs) -> str", **naming("CPU"))
    assert message_of(op, []) == (
        "t::f was called without tensor arguments, and has no kernel for that; kernels serve CPU "
        "(register one for CompositeExplicitAutograd, which needs no tensor; tensors in a Dict do "
        "not choose a kernel)"
    )


def test_meta_tensors_are_named_as_such(define):
    op = define("t::f(Tensor x) -> str", **naming("CPU"))
    assert message_of(op, tensor(K.Meta)).startswith("t::f was called with Meta tensors, and has")


def test_without_any_kernel_the_error_says_so(define):
    assert message_of(define("t::f(Tensor x) -> str"), X).endswith("; no key has a kernel")


def test_a_functionality_without_a_backend_is_named_as_in_pytorch(define):
    op = define("t::f(Tensor x) -> str", **naming("CPU"))
    assert "from the QuantizedUndefined backend" in message_of(op, tensor(K.Quantized))


def test_a_long_list_of_keys_is_cut_short(define):
    op = define("t::f(Tensor x) -> str", **naming("CompositeExplicitAutogradNonFunctional"))
    text = message_of(op, tensor(K.XLA))
    assert text.endswith("and 36 more"), text


def test_two_kernels_with_an_equal_claim_are_an_error_of_their_own(define):
    op = define("t::f(Tensor x) -> str", **naming("CompositeImplicitAutograd", "SparseCPU"))
    with pytest.raises(AmbiguousKernelError) as caught:
        op(tensor(K.SparseCPU, K.AutogradOther))
    assert str(caught.value).startswith("t::f has a CompositeImplicitAutograd kernel and a kernel ")
    assert "register a kernel for AutogradOther" in caught.value.hint
    assert op(tensor(K.SparseCPU)) == "SparseCPU"
