"""The functionality keys: most let a call pass, some refuse it."""

import numpy as np
import pytest

from opdispatch import (
    DispatchKey,
    DispatchKeySet,
    ExcludeDispatchKeyGuard,
    ForceDispatchKeyGuard,
    IncludeDispatchKeyGuard,
    KernelFunction,
    NoKernelError,
    Tensor,
    capture_dispatch_trace,
    functionalities,
    local_dispatch_key_set,
)
from opdispatch.functionalities import BUILTIN_FALLBACKS, autograd, fallthrough
from opdispatch.keys.dispatch_key import BackendComponent
from opdispatch.keys.dispatch_key_set import RUNTIME_KEYS
from opdispatch.tensors.tensor import key_set_of_backend

K = DispatchKey
X = np.ones(2)
pytestmark = pytest.mark.usefixtures("caller")


def test_every_dispatcher_starts_with_the_built_in_fallbacks(dispatcher):
    fallbacks = dispatcher.fallbacks()
    assert {key: r.kernel for key, r in fallbacks.items()} == BUILTIN_FALLBACKS
    assert {r.site for r in fallbacks.values()} == {"opdispatch"}


def test_a_functionality_is_handled_in_one_way():
    modules = [m for m in vars(functionalities).values() if hasattr(m, "FALLBACKS")]
    assert sum(len(module.FALLBACKS) for module in modules) == len(BUILTIN_FALLBACKS)
    assert set(BUILTIN_FALLBACKS) <= set(RUNTIME_KEYS)
    assert all(kernel.is_fallthrough for kernel in fallthrough.FALLBACKS.values())
    assert not any(kernel.is_fallthrough for kernel in autograd.FALLBACKS.values())


@pytest.mark.parametrize("key", fallthrough.KEYS, ids=str)
def test_a_fallthrough_functionality_lets_a_call_pass(define, key):
    op = define("t::f(Tensor x) -> str", CPU=lambda x: "CPU")
    everything = DispatchKeySet.of(key)
    with ForceDispatchKeyGuard(everything, DispatchKeySet()):
        assert op(X) == "CPU"


@pytest.mark.parametrize("key", fallthrough.KEYS, ids=str)
def test_an_operator_may_have_a_kernel_for_a_fallthrough_functionality(define, key):
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
def test_some_backends_share_autograd_other_as_in_pytorch(define, backend):
    op = define("t::f(Tensor x) -> str", **{backend.name: lambda x: "below"})
    x = Tensor(X, keys=key_set_of_backend(backend))
    with capture_dispatch_trace() as lines:
        assert op(x) == "below"
    assert [line.key for line in lines] == ["AutogradOther", backend.name]


@pytest.mark.parametrize("key", [K.AutogradHIP, K.AutogradVE, K.AutogradIPU])
def test_some_autograd_keys_have_no_fallback_as_in_pytorch(define, key):
    backend = key.name.removeprefix("Autograd")
    op = define("t::f(Tensor x) -> str", **{backend: lambda x: "below"})
    with pytest.raises(NoKernelError, match=f"from the {key.name} backend"):
        op(Tensor(X, keys=DispatchKeySet.of(K[backend], key)))


def test_backends_without_an_autograd_key_share_one(define):
    op = define("t::f(Tensor x) -> str", FPGA=lambda x: "FPGA")
    assert op(Tensor(X, keys=DispatchKeySet.of(K.FPGA, K.AutogradOther))) == "FPGA"


def test_below_autograd_no_autograd_key_is_left(define):
    seen = []
    kernel = KernelFunction.from_unboxed(lambda keys, x: seen.append(keys), with_keyset=True)
    op = define("t::f(Tensor x) -> ()", CPU=kernel)
    op(Tensor(X, keys=DispatchKeySet.of(K.CPU, K.AutogradCPU, K.AutogradOther)))
    assert seen == [DispatchKeySet.of(K.CPU)]


def test_python_key_is_dispatched_below_autograd(define):
    op = define("t::f(Tensor x) -> str", Python=lambda x: "Python", CPU=lambda x: "CPU")
    x = Tensor(X, keys=key_set_of_backend(BackendComponent.CPU).add(K.Python))
    with capture_dispatch_trace() as lines:
        assert op(x) == "Python"
    assert [line.key for line in lines] == ["AutogradCPU", "Python"]


def visits(op, *args):
    with capture_dispatch_trace() as lines:
        op(*args)
    return [line.key for line in lines]


PASSING = [K.Conjugate, K.Negative, K.ZeroTensor, K.PythonTLSSnapshot, K.PreDispatch]


@pytest.mark.parametrize("key", PASSING, ids=str)
def test_some_functionalities_let_a_call_go_on_below_their_key(define, key):
    op = define("t::f(Tensor x) -> ()", CPU=lambda x: None)
    x = Tensor(X, keys=DispatchKeySet.of(K.CPU, key))
    assert visits(op, x) == [key.name, "CPU"]


REFUSING = {
    "Meta": "was called with Meta tensors, and has no Meta kernel",
    "FuncTorchBatched": "has no batching rule, and no argument has a batch dimension",
    "BatchedNestedTensor": "has no batching rule",
    "Batched": "has no batching rule",
    "FuncTorchDynamicLayerBackMode": "no function transform is under way",
    "FuncTorchDynamicLayerFrontMode": "no function transform is under way",
    "FuncTorchGradWrapper": "no argument is the wrapper of a finished transform",
    "PythonDispatcher": "no such dispatcher is set",
    "Tracer": "no trace is under way",
}


@pytest.mark.parametrize("key", REFUSING)
def test_some_functionalities_refuse_operators_without_a_rule(define, key):
    op = define("t::f(Tensor x) -> ()", CPU=lambda x: None)
    with pytest.raises(NoKernelError, match=REFUSING[key]) as caught:
        op(Tensor(X, keys=DispatchKeySet.of(K.CPU, K[key])))
    assert caught.value.facts == {"operator": "t::f", "key": key, "available": "CPU"}


@pytest.mark.parametrize("schema", ["(Tensor(a!) x) -> ()", "(Tensor[] x) -> ()", "(int x) -> int"])
@pytest.mark.parametrize("key", [K.FuncTorchBatched, K.BatchedNestedTensor], ids=str)
def test_some_signatures_rule_out_going_along_a_batch(define, schema, key):
    op = define(f"t::f{schema}", CompositeExplicitAutograd=lambda x: None)
    with (
        IncludeDispatchKeyGuard(key),
        pytest.raises(NoKernelError, match=r"f has no batching rule, and (its alias|not all its)"),
    ):
        op([] if "[]" in schema else 1 if "int" in schema else X)


@pytest.mark.parametrize("key", [K.FuncTorchBatched, K.BatchedNestedTensor], ids=str)
def test_a_call_without_tensors_has_no_batch_to_go_along(define, key):
    op = define("t::f(int x) -> ()", CompositeExplicitAutograd=lambda x: None)
    with IncludeDispatchKeyGuard(key):
        assert visits(op, 1) == [key.name, "Undefined"]


def test_python_goes_on_below_with_what_stands_above_it_switched_off(define):
    op = define("t::f(Tensor x) -> str", CPU=lambda x: str(local_dispatch_key_set()[0]))
    with IncludeDispatchKeyGuard(K.Python), capture_dispatch_trace() as lines:
        assert "Python" not in op(Tensor(X))
    assert [line.key for line in lines] == ["AutogradCPU", "Python", "CPU"]


def test_python_needs_a_tensor_to_find_a_class(define):
    op = define("t::f(int x) -> ()", CompositeExplicitAutograd=lambda x: None)
    with (
        IncludeDispatchKeyGuard(K.Python),
        pytest.raises(NoKernelError, match="without a tensor whose class could handle it"),
    ):
        op(1)


def test_functionalize_calls_again_without_itself(define):
    op = define("t::f(Tensor x) -> ()", CPU=lambda x: None)
    with IncludeDispatchKeyGuard(K.Functionalize):
        assert visits(op, X) == ["Functionalize", "CPU"]


@pytest.mark.parametrize("schema", ["t::f(Tensor(a!) x) -> ()", "t::f(Tensor(a) x) -> Tensor(a)"])
def test_functionalize_refuses_operators_with_aliases(define, schema):
    op = define(schema, CPU=lambda x: None)
    with (
        IncludeDispatchKeyGuard(K.Functionalize),
        pytest.raises(NoKernelError, match="f has alias annotations"),
    ):
        op(X)


def test_a_zero_tensor_is_not_written_to(define):
    op = define("t::f(Tensor(a!)[] x, Tensor y) -> ()", CPU=lambda x, y: None)
    zero = Tensor(X, keys=DispatchKeySet.of(K.CPU, K.ZeroTensor))
    assert visits(op, [X], zero) == ["ZeroTensor", "CPU"]
    with pytest.raises(NoKernelError, match="f writes to its argument 'x', which is a zero tensor"):
        op([X, zero], X)


def test_tracer_calls_by_the_arguments_and_not_by_the_keys(define):
    op = define("t::f(Tensor x) -> ()", CPU=lambda x: None, AutogradCPU=lambda x: None)
    with capture_dispatch_trace() as lines:
        op.redispatch(DispatchKeySet.of(K.CPU, K.Tracer), Tensor(X))
    assert [line.key for line in lines] == ["Tracer", "AutogradCPU"]
    traced = Tensor(X, keys=DispatchKeySet.of(K.CPU, K.Tracer))
    with ExcludeDispatchKeyGuard(K.Tracer):
        assert visits(op, traced) == ["CPU"]


def test_tracer_leaves_the_recursion_of_a_kernel_alone(define):
    def endless(x):
        raise RecursionError

    op = define("t::f(Tensor x) -> ()", CPU=endless)
    with pytest.raises(RecursionError):
        op.redispatch(DispatchKeySet.of(K.CPU, K.Tracer), X)
