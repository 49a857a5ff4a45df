"""Tensors given to NumPy, and to libraries on top of it, without an array or with a history."""

from __future__ import annotations

import operator

import numpy as np
import pytest

from opdispatch import (
    ArgumentError,
    AutogradError,
    DeviceError,
    Library,
    NoKernelError,
    Tensor,
    cpu_fallback,
    no_grad,
    ops,
    register_backend,
)
from opdispatch import array_api as xp
from opdispatch.autograd import grad
from tests.simulated_accelerator import Accelerator

X = np.array([1.0, 2.0, 3.0])


@pytest.fixture
def x():
    return Tensor(X, requires_grad=True)


@pytest.mark.parametrize(
    "call",
    [
        np.asarray,
        lambda x: np.asarray(x * 2),
        lambda x: x.numpy(),
        np.fft.fft,
        lambda x: np.testing.assert_array_equal(x, X),
    ],
)
def test_an_array_of_what_is_recorded_would_lose_its_history(x, call):
    with pytest.raises(AutogradError, match=r"autograd would not record.*tensor\.detach\(\)"):
        call(x)
    call(x.detach())
    with no_grad():
        call(x)


@pytest.mark.parametrize("call", [np.from_dlpack, xp.from_dlpack], ids=["numpy", "ours"])
def test_nor_is_it_given_by_dlpack(x, call):
    for each in (x, x * 2):
        with pytest.raises(BufferError, match=r"autograd would not record.*tensor\.detach\(\)"):
            call(each)
        with no_grad():
            np.testing.assert_array_equal(call(each), each.detach())


@pytest.mark.parametrize(
    "function",
    [
        lambda x: np.asarray(x) * 2,
        lambda x: x.numpy() * 2,
        lambda x: np.add.reduce(np.stack([x, x])),
        lambda x: np.sum(x) + x.array,
        lambda x: np.add(x, x, out=np.empty(3)),
    ],
)
def test_a_kernel_below_autograd_may_use_numpy(x, function):
    """Its operator's derivative says what is lost, or that it has none."""
    expected = function(Tensor(X)).tolist()
    with Library("of_numpy", "DEF") as lib:
        for name in ("known", "unknown", "composite"):
            lib.define(f"{name}(Tensor x) -> Tensor")
        lib.impl("known", function, "CPU")
        lib.register_autograd("known", lambda ctx, gradient: gradient * 3.0)
        known = ops.of_numpy.known(x)
        assert known.array.tolist() == expected
        assert grad(xp.sum(known), x)[0].array.tolist() == [3, 3, 3]
        lib.impl("unknown", function, "CPU")
        unknown = ops.of_numpy.unknown(x)
        assert unknown.array.tolist() == expected
        with pytest.raises(AutogradError, match="of_numpy::unknown has no derivative"):
            xp.sum(unknown).backward()
        lib.impl("composite", function, "CompositeImplicitAutograd")
        with pytest.raises(AutogradError, match=r"autograd (would not|cannot) record"):
            ops.of_numpy.composite(x)


@pytest.fixture
def there():
    """A tensor on a device of which NumPy knows nothing."""
    registration = register_backend(Accelerator())
    yield Tensor(X).to("privateuseone:1")
    registration.close()


@pytest.mark.parametrize(
    "call",
    [
        np.sum,
        np.add.accumulate,
        lambda x: np.add.outer(x, x),
        lambda x: np.add.at(np.zeros(3), [0], x),
        lambda x: np.add(x, 1, out=np.zeros(3)),
        lambda x: np.add(X, X, out=x),
        np.spacing,  # which the standard has not
    ],
)
def test_numpys_functions_do_not_take_what_is_elsewhere_for_a_number(there, call):
    with pytest.raises(
        DeviceError, match=r"a tensor on 'privateuseone:1' cannot be converted to a NumPy array"
    ):
        call(there)
    sparse = Tensor(X).to_sparse()
    with pytest.raises(ArgumentError, match=r"use to_dense\(\)"):
        call(sparse)


@pytest.mark.filterwarnings("ignore::opdispatch.CpuFallbackWarning")
def test_of_what_is_elsewhere_they_are_the_operators_of_the_standard(there):
    with pytest.raises(NoKernelError, match=r"array::multiply\.ScalarFirst has no kernel"):
        np.float64(2) * there
    with pytest.raises(NoKernelError, match="array::equal"):
        operator.eq(X, Tensor(X).to_sparse())
    with Library("_", "IMPL") as lib:
        lib.fallback(cpu_fallback, "PrivateUse1")
        double = np.float64(2) * there
        same, cosine = np.float32(2) == there, np.cos(there)
        assert {each.device for each in (double, same, cosine)} == {"privateuseone:1"}
        assert double.cpu().array.tolist() == [2, 4, 6]
        assert same.cpu().array.tolist() == [False, True, False]
