"""``get_kernel``: one kernel, called by itself, for as long as it is registered."""

import gc

import numpy as np
import pytest

from opdispatch import (
    AmbiguousKernelError,
    ArgumentError,
    DispatchKey,
    DispatchKeyError,
    DispatchKeySet,
    KernelFunction,
    Library,
    NoKernelError,
    OperatorNotFoundError,
    ReturnError,
    Tensor,
    custom_op,
    default_dispatcher,
    fallthrough_kernel,
    get_kernel,
    ops,
)

K = DispatchKey
CPU = DispatchKeySet.of(K.CPU)
X = np.arange(3.0)


@pytest.fixture
def lib():
    with Library("kernels", "DEF") as lib:
        lib.define("scale(Tensor x, float by=2.0, *, bool negative=False) -> Tensor")
        lib.impl("scale", lambda x, by, *, negative: x * (-by if negative else by), "CPU")
        yield lib


@pytest.mark.parametrize(
    "op", ["kernels::scale", lambda: ops.kernels.scale.default], ids=["name", "handle"]
)
@pytest.mark.parametrize("key", ["CPU", K.CPU])
def test_a_kernel_is_called_by_itself(lib, op, key):
    kernel = get_kernel(op if isinstance(op, str) else op(), key)
    np.testing.assert_array_equal(kernel.call_boxed(CPU, X), X * 2)
    np.testing.assert_array_equal(kernel.call_boxed(CPU, X, 3, negative=True), -X * 3)
    assert kernel.op_handle.name == ops.kernels.scale.default.name
    assert repr(kernel).startswith("<SafeKernelFunction of kernels::scale, registered at ")


def test_one_that_covers_it_may_call_it(lib):
    original = get_kernel("kernels::scale", "CPU")

    def scale(keys, x, by, *, negative):
        return x if by == 1 else original.call_boxed(keys, x, by, negative=negative)

    with lib.impl("scale", scale, "CPU", with_keyset=True):
        assert ops.kernels.scale(X, 1) is X
        np.testing.assert_array_equal(ops.kernels.scale(X, 3), X * 3)
    np.testing.assert_array_equal(original.call_boxed(CPU, X), X * 2)


def test_the_kernel_that_an_alias_or_a_fallback_has_for_the_key(lib):
    lib.define("twice(Tensor x) -> Tensor")
    lib.impl("twice", lambda x: x * 2)
    np.testing.assert_array_equal(get_kernel("kernels::twice", "CUDA").call_boxed(CPU, X), X * 2)
    fallback = get_kernel("kernels::scale", "AutogradCPU")
    keys = DispatchKeySet.of(K.CPU, K.AutogradCPU)
    np.testing.assert_array_equal(fallback.call_boxed(keys, Tensor(X)).array, X * 2)


def test_results_of_every_kind(lib):
    lib.define("pair(Tensor x) -> (Tensor, int)")
    lib.impl("pair", lambda x: (x, 1), "CPU")
    lib.define("nothing(Tensor x) -> ()")
    lib.impl("nothing", lambda x: None, "CPU")
    assert get_kernel("kernels::pair", "CPU").call_boxed(CPU, X)[1] == 1
    assert get_kernel("kernels::nothing", "CPU").call_boxed(CPU, X) is None


def test_kernel_of_a_closed_library_raises_no_kernel_error(lib):
    with Library("kernels", "IMPL") as other:
        other.impl("scale", lambda x, by, *, negative: x, "CPU")
        kernel = get_kernel("kernels::scale", "CPU")
        assert kernel.call_boxed(CPU, X) is X
    gc.collect()
    with pytest.raises(NoKernelError, match="is gone: the library that had it") as caught:
        kernel.call_boxed(CPU, X)
    assert caught.value.facts == {"operator": "kernels::scale", "key": "CPU"}
    np.testing.assert_array_equal(ops.kernels.scale(X), X * 2)


def test_a_library_that_goes_takes_a_covered_kernel_along(lib):
    original = get_kernel("kernels::scale", "CPU")
    with Library("kernels", "IMPL") as other:
        other.impl("scale", lambda x, by, *, negative: original.call_boxed(CPU, x), "CPU")
        lib.handles[-1].close()
        with pytest.raises(NoKernelError, match="is gone"):
            ops.kernels.scale(X)


def test_without_the_definition_there_is_no_operator(lib):
    with Library("kernels", "IMPL") as other:
        other.impl("scale", lambda x: x, "CPU")
        kernel = get_kernel("kernels::scale", "CPU")
        lib.close()
        with pytest.raises(OperatorNotFoundError):
            kernel.call_boxed(CPU, X)


def test_one_that_is_registered_again_is_there_again(lib):
    """So a library that is published anew keeps the kernels that others hold."""
    kernel = get_kernel("kernels::scale", "CPU")
    handle = lib.handles[-1]
    with default_dispatcher().transaction():
        handle.close()
        again = default_dispatcher().register(handle.registration)
    np.testing.assert_array_equal(kernel.call_boxed(CPU, X), X * 2)
    again.close()
    with pytest.raises(NoKernelError, match="is gone"):
        kernel.call_boxed(CPU, X)


def test_a_fallback_is_gone_with_its_library(lib):
    with Library("_", "IMPL") as fallbacks:
        fallbacks.fallback(lambda op, x, *rest: x, "PrivateUse2")
        kernel = get_kernel("kernels::scale", "PrivateUse2")
        assert kernel.call_boxed(CPU, X) is X
    with pytest.raises(NoKernelError, match="is gone"):
        kernel.call_boxed(CPU, X)


@pytest.mark.parametrize(
    ("op", "key", "error", "what"),
    [
        ("kernels::nothing", "CPU", OperatorNotFoundError, "there is no operator"),
        ("kernels::scale", "CUDA", NoKernelError, "has no kernel for arguments from the CUDA"),
        ("kernels::scale", "Undefined", NoKernelError, "without tensor arguments"),
        ("kernels::scale", "Autograd", DispatchKeyError, "Autograd is an alias"),
        ("kernels::scale", "Dense", DispatchKeyError, "a functionality"),
        ("kernels::scale", "Nothing", DispatchKeyError, "no dispatch key"),
        (3, "CPU", ArgumentError, "takes an operator or its name, not 3"),
    ],
)
def test_get_kernel_without_a_kernel_raises(lib, op, key, error, what):
    with pytest.raises(error, match=what):
        get_kernel(op, key)


def test_neither_a_fallthrough_nor_an_ambiguous_slot_is_a_kernel(lib):
    lib.impl("scale", fallthrough_kernel, "XLA")
    with pytest.raises(NoKernelError, match="falls through at XLA"):
        get_kernel("kernels::scale", "XLA")
    lib.impl("scale", lambda x, by, *, negative: x)
    lib.impl("scale", lambda x, by, *, negative: x, "SparseCPU")
    with pytest.raises(AmbiguousKernelError):
        get_kernel("kernels::scale", "AutogradOther")


def test_a_kernel_in_another_interpreter_cannot_be_had(lib):
    there = KernelFunction.from_boxed(lambda op, keys, stack: None, is_elsewhere=True)
    lib.impl("scale", there, "CUDA")
    with pytest.raises(NoKernelError, match="is in another interpreter"):
        get_kernel("kernels::scale", "CUDA")


def test_arguments_and_results_are_checked(lib):
    kernel = get_kernel("kernels::scale", "CPU")
    with pytest.raises(ArgumentError, match="takes a DispatchKeySet before the arguments"):
        kernel.call_boxed(X)
    with pytest.raises(ArgumentError, match="is missing its argument 'x'"):
        kernel.call_boxed(CPU)
    lib.define("wrong(Tensor x) -> Tensor")
    lib.impl("wrong", lambda x: "text", "CPU")
    with pytest.raises(ReturnError):
        get_kernel("kernels::wrong", "CPU").call_boxed(CPU, X)


def test_of_a_custom_op():
    @custom_op("kernels_custom::copy", mutates_args=())
    def copied(x: Tensor) -> Tensor:
        return Tensor(np.array(x.array))

    kernel = get_kernel(copied, "CPU")
    np.testing.assert_array_equal(kernel.call_boxed(CPU, Tensor(X)).array, X)
    copied.close()
    with pytest.raises(NoKernelError, match="is gone"):
        kernel.call_boxed(CPU, Tensor(X))
