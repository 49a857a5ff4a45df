"""Operators without a kernel for a device are computed on the host, if that was asked for."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import scipy.sparse

from opdispatch import (
    CpuFallbackWarning,
    Library,
    NestedArray,
    QuantizedArray,
    Tensor,
    cpu_fallback,
    cpu_fallback_counts,
    ops,
    register_backend,
)
from opdispatch.arrays import device_of
from opdispatch.errors import ArgumentError, DeviceError, DeviceMemoryError, NoKernelError
from tests.simulated_accelerator import Accelerator, AcceleratorArray

X = np.arange(6.0).reshape(2, 3)
HERE = "privateuseone:1"
NAMES = (f"fallen{number}" for number in itertools.count())


@pytest.fixture
def accelerator() -> Iterator[Accelerator]:
    backend = Accelerator()
    registration = register_backend(backend)
    fallbacks = Library("_", "IMPL")
    fallbacks.fallback(cpu_fallback, "PrivateUse1")
    yield backend
    fallbacks.close()
    registration.close()


@pytest.fixture
def lib() -> Iterator[Library]:
    """A namespace of the test's own: what was warned about is not warned about again."""
    library = Library(next(NAMES), "DEF")
    yield library
    library.close()


def define(lib: Library, schema: str, kernel: Any) -> Any:
    lib.define(schema)
    name = schema.partition("(")[0]
    lib.impl(name, kernel, "CPU")
    return getattr(getattr(ops, lib.ns), name)


pytestmark = pytest.mark.filterwarnings("ignore::opdispatch.CpuFallbackWarning")


def test_arguments_go_to_the_host_and_the_result_comes_back(accelerator: Accelerator, lib: Library):
    seen = []

    def add(x: Any, y: Any, *, times: int) -> Any:
        seen.extend([type(x), type(y)])
        return x + times * y

    op = define(lib, "add(Tensor x, Tensor y, *, int times=1) -> Tensor", add)
    x = accelerator.from_host(X, HERE)
    result = op(x, x, times=2)
    assert isinstance(result, AcceleratorArray)
    assert accelerator.device_of(result) == HERE
    np.testing.assert_array_equal(accelerator.to_host(result), 3 * X)
    assert seen == [np.ndarray, np.ndarray]
    mixed = op(np.ones(3), x)
    np.testing.assert_array_equal(accelerator.to_host(mixed), 1 + X)


def test_cpu_fallback_warns_once_per_operator_and_is_counted(
    accelerator: Accelerator, lib: Library
):
    op = define(lib, "neg(Tensor x) -> Tensor", lambda x: -x)
    x = accelerator.from_host(X, HERE)
    with pytest.warns(CpuFallbackWarning, match=rf"{lib.ns}::neg has no kernel for '?{HERE}"):
        op(x)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        op(x)
    assert cpu_fallback_counts()[f"{lib.ns}::neg"] == 2


def test_arguments_that_are_written_to_get_their_contents(accelerator: Accelerator, lib: Library):
    def add_(x: Any, y: Any) -> Any:
        x += y
        return x

    op = define(lib, "add_(Tensor(a!) x, Tensor y) -> Tensor(a!)", add_)
    x = accelerator.from_host(X, HERE)
    assert op(x, x) is x
    np.testing.assert_array_equal(accelerator.to_host(x), 2 * X)
    tensor = Tensor(accelerator.from_host(X, HERE))
    assert op(tensor, X) is tensor
    np.testing.assert_array_equal(accelerator.to_host(tensor.array), 2 * X)

    def fill_(xs: Any, value: float) -> None:
        for each in xs:
            each[...] = value

    fill = define(lib, "fill_(Tensor(a!)[] xs, float value) -> ()", fill_)
    xs = [accelerator.from_host(X, HERE), X.copy()]
    assert fill(xs, 4.0) is None
    assert (accelerator.to_host(xs[0]) == 4).all()
    assert (xs[1] == 4).all()


def test_an_argument_that_is_given_twice_is_one_on_the_host_too(
    accelerator: Accelerator, lib: Library
):
    def both_(x: Any, y: Any) -> float:
        x += 1
        y *= 10
        return float(np.sum(x))

    both = define(lib, "both_(Tensor(a!) x, Tensor(b!) y) -> float", both_)
    x = accelerator.from_host(X, HERE)
    assert both(x, x) == ((X + 1) * 10).sum()
    np.testing.assert_array_equal(accelerator.to_host(x), (X + 1) * 10)
    tensor = Tensor(accelerator.from_host(X, HERE))
    assert both(tensor, tensor.array) == ((X + 1) * 10).sum()
    np.testing.assert_array_equal(accelerator.to_host(tensor.array), (X + 1) * 10)

    def double_(xs: Any) -> None:
        for each in xs:
            each *= 2

    double = define(lib, "double_(Tensor(a!)[] xs) -> ()", double_)
    downloads = accelerator.downloads
    double([x, x])
    assert accelerator.downloads == downloads + 1
    np.testing.assert_array_equal(accelerator.to_host(x), (X + 1) * 40)


def test_cpu_fallback_returns_the_written_argument_itself(accelerator: Accelerator, lib: Library):
    def double_(x: Any) -> Any:
        x *= 2
        return x[...]

    double = define(lib, "double_(Tensor(a!) x) -> Tensor(a!)", double_)
    x = accelerator.from_host(X, HERE)
    assert double(x) is x
    tensor = Tensor(x)
    assert double(tensor) is tensor
    np.testing.assert_array_equal(accelerator.to_host(x), 4 * X)

    add = define(
        lib,
        "add(Tensor x, Tensor y, *, Tensor(a!)? out=None) -> Tensor(a!)",
        lambda x, y, *, out=None: np.add(x, y, out=out),
    )
    there, here = accelerator.from_host(X, "privateuseone:0"), np.empty_like(X)
    assert add(x, x, out=there) is there
    assert add(x, x, out=here) is here
    np.testing.assert_array_equal(accelerator.to_host(there), 8 * X)
    np.testing.assert_array_equal(here, 8 * X)
    assert accelerator.device_of(add(x, x)) == HERE


def test_a_copy_in_the_place_of_a_view_is_warned_about(accelerator: Accelerator, lib: Library):
    op = define(lib, "first(Tensor(a) x) -> Tensor(a)", lambda x: x[0])
    with pytest.warns(CpuFallbackWarning, match="a copy, where it would be a view") as caught:
        op(accelerator.from_host(X, HERE))
    assert [each.filename for each in caught] == [__file__]


def test_lists_optionals_and_several_results(accelerator: Accelerator, lib: Library):
    def split(xs: Any, mask: Any) -> Any:
        assert mask is None
        return list(xs[0]), len(xs)

    op = define(lib, "split(Tensor[] xs, Tensor? mask=None) -> (Tensor[], int)", split)
    rows, count = op([accelerator.from_host(X, HERE)])
    assert count == 1
    assert [accelerator.device_of(row) for row in rows] == [HERE, HERE]
    np.testing.assert_array_equal(accelerator.to_host(rows[1]), X[1])


def test_cpu_fallback_keeps_requires_grad(accelerator: Accelerator, lib: Library):
    op = define(lib, "same(Tensor x) -> Tensor", lambda x: Tensor(x.array * 1, requires_grad=True))
    tensor = Tensor(accelerator.from_host(X, HERE), requires_grad=True)
    result = op(tensor)
    assert (result.device, result.requires_grad) == (HERE, True)


def test_a_factory_makes_its_result_where_it_was_asked_to(accelerator: Accelerator, lib: Library):
    def ones(like: Any, *, device: Any) -> Any:
        assert device == "cpu"
        return np.ones(2)

    op = define(lib, "ones(Tensor? like, *, Device device) -> Tensor", ones)
    like = accelerator.from_host(X, "privateuseone:0")
    assert accelerator.device_of(op(like, device=HERE)) == HERE


def test_results_that_are_asked_for_on_the_host_stay_there(accelerator: Accelerator, lib: Library):
    op = define(
        lib,
        "fetched(Tensor x, *, Device? device=None) -> Tensor",
        lambda x, *, device: np.array(x),
    )
    here = accelerator.from_host(X, HERE)
    assert type(op(here, device="cpu")) is np.ndarray
    assert accelerator.device_of(op(here)) == HERE


def test_an_argument_that_is_resized_is_an_error(accelerator: Accelerator, lib: Library):
    def grow_(x: Any) -> None:
        x.resize((3, 3), refcheck=False)

    op = define(lib, "grow_(Tensor(a!) x) -> ()", grow_)
    x = accelerator.from_host(X, HERE)
    with pytest.raises(ArgumentError, match=r"argument 'x' from \[2, 3\] to \[3, 3\]"):
        op(x)
    np.testing.assert_array_equal(accelerator.to_host(x), X)


def test_cpu_fallback_writes_all_arguments_or_none(accelerator: Accelerator, lib: Library):
    def resize(xs: Any, y: Any) -> None:
        xs[0] += 1
        y.resize((7,), refcheck=False)

    def change_type(xs: Any, y: Any) -> None:
        xs[0] += 1
        y.array = y.array.astype(np.float32)

    x, y = (accelerator.from_host(X, HERE) for _ in range(2))
    schema = "(Tensor(a!)[] xs, Tensor(b!) y) -> ()"
    with pytest.raises(
        ArgumentError, match=r"the shape of its argument 'y' from \[2, 3\] to \[7\]"
    ):
        define(lib, f"resize{schema}", resize)([x], y)
    with pytest.raises(ArgumentError, match="the dtype of its argument 'y' from float64 to float3"):
        define(lib, f"change_type{schema}", change_type)([x], Tensor(y))
    np.testing.assert_array_equal(accelerator.to_host(x), X)
    np.testing.assert_array_equal(accelerator.to_host(y), X)


def test_a_result_of_another_layout_comes_back_too(accelerator: Accelerator, lib: Library):
    quantized = QuantizedArray(np.zeros(2, np.uint8), 0.5, 3)
    nested = NestedArray(np.ones(3), np.array([0, 1, 3]))
    made = define(lib, "made(Tensor x) -> (Tensor, Tensor)", lambda x: (quantized, Tensor(nested)))
    one, two = made(accelerator.from_host(X, HERE))
    assert (device_of(one), one.scale, one.zero_point) == (HERE, 0.5, 3)
    assert (two.device, two.is_nested) == (HERE, True)
    np.testing.assert_array_equal(accelerator.to_host(one.int_repr), quantized.int_repr)
    sparse = define(lib, "sparse(Tensor x) -> Tensor", scipy.sparse.coo_array)
    with pytest.raises(DeviceError, match=f"sparse arrays are not supported on '{HERE}'"):
        sparse(accelerator.from_host(X, HERE))


@pytest.mark.parametrize("method", ["to_host", "from_host", "assign"])
def test_backend_error_in_cpu_fallback_becomes_device_error(
    accelerator: Accelerator, lib: Library, monkeypatch: pytest.MonkeyPatch, method: str
):
    def fail(*_: Any) -> None:
        raise ValueError("no such queue")

    op = define(lib, "added(Tensor(a!) x) -> Tensor", lambda x: x + 1)
    x = accelerator.from_host(X, HERE)
    monkeypatch.setattr(accelerator, method, fail)
    says = f"the backend for arrays on '{HERE}' raised ValueError: no such queue"
    with pytest.raises(DeviceError, match=says):
        op(x)


def test_cpu_fallback_passes_errors_of_kernel_and_device_on(accelerator: Accelerator, lib: Library):
    op = define(lib, "neg(Tensor x) -> Tensor", lambda x: -x)
    lib.define("nothing(Tensor x) -> Tensor")
    x = accelerator.from_host(X, HERE)
    with pytest.raises(NoKernelError, match="CPU"):
        getattr(ops, lib.ns).nothing(x)
    accelerator.room = 1
    with pytest.raises(DeviceMemoryError, match="do not fit"):
        op(x)
    accelerator.has_failed = True
    with pytest.raises(DeviceError, match="has fallen off"):
        op(x)


def test_a_kernel_of_its_own_comes_first(accelerator: Accelerator, lib: Library):
    op = define(lib, "neg(Tensor x) -> Tensor", lambda x: -x)
    lib.impl("neg", lambda x: x, "PrivateUse1")
    x = accelerator.from_host(X, HERE)
    assert op(x) is x
    assert f"{lib.ns}::neg" not in cpu_fallback_counts()
