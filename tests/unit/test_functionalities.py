"""What the functionality keys do: autograd passes on, and others let a call pass."""

import numpy as np
import pytest

from opdispatch import (
    DispatchKey,
    DispatchKeySet,
    ForceDispatchKeyGuard,
    KernelFunction,
    NoKernelError,
    Tensor,
    capture_dispatch_trace,
)
from opdispatch.dispatch_key import BackendComponent
from opdispatch.dispatch_key_set import RUNTIME_KEYS
from opdispatch.functionalities import BUILTIN_FALLBACKS, autograd, passive
from opdispatch.tensor import key_set_of_backend

K = DispatchKey
X = np.ones(2)
pytestmark = pytest.mark.usefixtures("caller")


def test_every_dispatcher_starts_with_the_built_in_fallbacks(dispatcher):
    fallbacks = dispatcher.fallbacks()
    assert {key: r.kernel for key, r in fallbacks.items()} == BUILTIN_FALLBACKS
    assert {r.site for r in fallbacks.values()} == {"opdispatch"}


def test_a_functionality_is_handled_in_one_way():
    assert not set(passive.FALLBACKS) & set(autograd.FALLBACKS)
    assert set(BUILTIN_FALLBACKS) <= set(RUNTIME_KEYS)
    assert all(kernel.is_fallthrough for kernel in passive.FALLBACKS.values())
    assert not any(kernel.is_fallthrough for kernel in autograd.FALLBACKS.values())


@pytest.mark.parametrize("key", passive.KEYS, ids=str)
def test_a_passive_functionality_lets_a_call_pass(define, key):
    op = define("t::f(Tensor x) -> str", CPU=lambda x: "CPU")
    everything = DispatchKeySet.of(key)
    with ForceDispatchKeyGuard(everything, DispatchKeySet()):
        assert op(X) == "CPU"


@pytest.mark.parametrize("key", passive.KEYS, ids=str)
def test_an_operator_may_have_a_kernel_for_a_passive_functionality(define, key):
    op = define("t::f(Tensor x) -> str", CPU=lambda x: "CPU", **{key.name: lambda x: "its own"})
    with ForceDispatchKeyGuard(DispatchKeySet.of(key), DispatchKeySet()):
        assert op(X) == "its own"


@pytest.mark.parametrize("backend", autograd.BACKENDS, ids=lambda backend: backend.name)
def test_autograd_of_an_operator_without_a_derivative_passes_on(define, backend):
    op = define("t::f(Tensor x) -> str", **{backend.name: lambda x: "below"})
    x = Tensor(X, keys=key_set_of_backend(backend))
    with capture_dispatch_trace() as lines:
        assert op(x) == "below"
    assert [line.key for line in lines] == [f"Autograd{backend.name}", backend.name]


@pytest.mark.parametrize("backend", [BackendComponent.HIP, BackendComponent.VE])
def test_some_backends_have_no_autograd_fallback_as_in_pytorch(define, backend):
    op = define("t::f(Tensor x) -> str", **{backend.name: lambda x: "below"})
    with pytest.raises(NoKernelError, match=f"from the Autograd{backend.name} backend"):
        op(Tensor(X, keys=key_set_of_backend(backend)))


def test_backends_without_an_autograd_key_share_one(define):
    op = define("t::f(Tensor x) -> str", FPGA=lambda x: "FPGA")
    assert op(Tensor(X, keys=DispatchKeySet.of(K.FPGA, K.AutogradOther))) == "FPGA"


def test_below_autograd_no_autograd_key_is_left(define):
    seen = []
    kernel = KernelFunction.from_unboxed(lambda keys, x: seen.append(keys), with_keyset=True)
    op = define("t::f(Tensor x) -> ()", CPU=kernel)
    op(Tensor(X, keys=DispatchKeySet.of(K.CPU, K.AutogradCPU, K.AutogradOther)))
    assert seen == [DispatchKeySet.of(K.CPU)]


def test_what_stands_above_autograd_is_served_first(define):
    op = define("t::f(Tensor x) -> str", Python=lambda x: "Python", CPU=lambda x: "CPU")
    x = Tensor(X, keys=key_set_of_backend(BackendComponent.CPU).add(K.Python))
    with capture_dispatch_trace() as lines:
        assert op(x) == "Python"
    assert [line.key for line in lines] == ["AutogradCPU", "Python"]
