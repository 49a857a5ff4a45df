"""``vmap``: arguments, results, levels, and what cannot be batched."""

import asyncio
import copy
import threading

import numpy as np
import pytest

from opdispatch import (
    ArgumentError,
    AutogradError,
    DispatchKey,
    ExcludeDispatchKeyGuard,
    LoggingMode,
    Tensor,
    TransformError,
    capture_dispatch_trace,
    func,
    is_grad_enabled,
    local_dispatch_key_set,
    vmap,
)
from opdispatch import array_api as xp
from opdispatch.functorch.dynamic_layer import TOP
from tests.waits import join

X = np.arange(6.0).reshape(3, 2)
ROW = np.array([1.0, 10.0])


def test_a_function_of_samples_becomes_one_of_batches():
    got = vmap(lambda a, b: xp.sum(a * b))(Tensor(X), X + 1)
    np.testing.assert_array_equal(got, (X * (X + 1)).sum(1))


def test_in_dims_and_out_dims_may_be_nested():
    def function(given, *, factor):
        assert given["x"].shape == (3,)
        assert given["all"][0].shape == (2,)
        return {"x": given["x"] * factor, "rest": (given["x"][0] + xp.sum(given["all"][0]), 7)}

    got = vmap(function, in_dims=({"x": -1, "all": [None]},), out_dims={"x": 1, "rest": (0, None)})(
        {"x": Tensor(X), "all": [Tensor(ROW)]}, factor=Tensor(np.array(2.0))
    )
    np.testing.assert_array_equal(got["x"], X * 2)
    np.testing.assert_array_equal(got["rest"][0], X[0] + 11)
    assert got["rest"][1] == 7


def test_out_dims_of_the_only_result_may_be_in_a_tuple():
    np.testing.assert_array_equal(vmap(lambda a: a + 1, out_dims=(1,))(X), X.T + 1)
    with pytest.raises(ArgumentError, match="out_dims that do not fit"):
        vmap(lambda a: a, out_dims=[0])(X)


def test_a_result_that_is_the_same_for_all_samples():
    got = vmap(lambda a: (xp.zeros(2), xp.asarray(ROW)), out_dims=(1, None))(X)
    assert got[0].shape == (2, 3)
    np.testing.assert_array_equal(got[1], ROW)


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_chunks(size):
    seen = []

    def function(a, b):
        seen.append(a.array.value.shape[0])
        return a * b, b

    got, same = vmap(function, in_dims=(0, None), out_dims=(1, None), chunk_size=size)(X, ROW)
    np.testing.assert_array_equal(got, (X * ROW).T)
    assert same is not None
    assert max(seen) <= size
    assert sum(seen) == 3


def test_an_empty_batch():
    assert vmap(lambda a: xp.sum(a @ a))(np.zeros((0, 2))).shape == (0,)


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        (lambda: vmap(lambda: X)(), "without positional arguments"),
        (lambda: vmap(lambda a: a, in_dims=None)(X), "only None in in_dims"),
        (lambda: vmap(lambda a, b: a)(X, ROW), r"numbers of samples: \[3, 2\]"),
        (lambda: vmap(lambda a: a, in_dims=(0, 0))(X), r"in_dims .* \(0, 0\) was given for \(nd"),
        (lambda: vmap(lambda a: a, in_dims=({"b": 0},))({"a": X}), "in_dims that do not fit"),
        (lambda: vmap(lambda a: a, in_dims="0")(X), "'0' is neither an int nor None"),
        (lambda: vmap(lambda a: a, in_dims=2)(X), "expected one of its 2 dimensions"),
        (lambda: vmap(lambda a: a, in_dims=-3)(X), r"in_dims=-3 for a tensor of shape \[3, 2\]"),
        (lambda: vmap(lambda a, b: a)(X, 1.0), "float, which is not a tensor .*use in_dims=None"),
        (lambda: vmap(lambda a: (a, 3))(X), r"this one returned \(Tensor, int\)"),
        (lambda: vmap(lambda a: a, out_dims=None)(X), "out_dims=None for a batched result"),
        (lambda: vmap(lambda a: a, out_dims=(0, 0))(X), "out_dims that do not fit"),
        (lambda: vmap(lambda a: a, out_dims=2)(X), "out_dims=2 for a result of 2 dimensions"),
        (lambda: vmap(lambda a: a, randomness="none"), "randomness='none'; expected 'error'"),
        (lambda: vmap(lambda a: a, chunk_size=0), "chunk_size=0; expected an int above 0"),
    ],
)
def test_invalid_vmap_arguments_raise_argument_error(call, reason):
    with pytest.raises(ArgumentError, match=reason):
        call()


# -- what cannot be batched ----------------------------------------------------------------------


@pytest.mark.parametrize("read", [bool, int, float, complex, lambda a: a.item(), range])
def test_control_flow_that_depends_on_a_sample(read):
    with pytest.raises(
        TransformError, match=r"cannot read a number out of a batched .*array_api.where"
    ):
        vmap(lambda a: (read(xp.sum(a)), a)[1])(X.astype(int))


@pytest.mark.parametrize(
    "leave",
    [np.cbrt, np.sum, np.asarray, np.from_dlpack, Tensor.tolist, lambda a: a.to_sparse()],
)
def test_other_libraries_do_not_get_the_elements(leave):
    for transform in (vmap, func.grad):
        with pytest.raises(TransformError, match="the transform would not see"):
            transform(lambda a: (leave(a), xp.sum(a))[1])(X)


def test_functions_of_numpy_that_are_operators_are_those():
    function = lambda a: xp.sum(np.float64(2) * np.sin(a))  # noqa: E731
    assert vmap(function)(X).array == pytest.approx(2 * np.sin(X).sum(axis=1))
    for found in (func.grad(function)(X), vmap(func.grad(function))(X)):
        np.testing.assert_allclose(found.array, 2 * np.cos(X))


@pytest.mark.parametrize("change", [lambda a: a.requires_grad_(), lambda a: xp.sum(a).backward()])
def test_leaves_are_not_made_within(change):
    for transform in (vmap, func.grad):
        with pytest.raises(AutogradError, match="within a function that is transformed"):
            transform(lambda a: (change(a), xp.sum(a))[1])(X)


def test_a_tensor_that_escapes():
    kept = []
    vmap(lambda a: (kept.append(a), a)[1])(X)
    for use in (lambda a: a + 1, xp.sum, lambda a: xp.stack([a])):
        with pytest.raises(TransformError, match="outside of the vmap that has made it"):
            use(kept[0])
    with pytest.raises(TransformError, match="outside of the vmap"):
        vmap(lambda b: b + kept[0])(X)
    assert "BatchedTensor(level=1" in repr(kept[0])


def test_copies_within():
    def copied(a):
        b = xp.asarray(a, copy=True)
        b[0] = 9.0
        flags = xp.asarray(a > 1, copy=True)
        return a, b, flags, Tensor(a) + 1

    x = Tensor(X.copy())
    same, changed, flags, more = vmap(copied)(x)
    np.testing.assert_array_equal(same, X)
    np.testing.assert_array_equal(changed[:, 0], [9, 9, 9])
    np.testing.assert_array_equal(flags, X > 1)
    np.testing.assert_array_equal(more, X + 1)
    with pytest.raises(TransformError, match="cannot be copied or pickled"):
        vmap(copy.deepcopy)(x)


def test_other_layouts_and_moving_are_refused():
    sparse = Tensor(X).to_sparse()
    with pytest.raises(TransformError, match=r"dense tensors.*to_dense"):
        func.grad(lambda a: xp.sum(a))(sparse)
    with pytest.raises(TransformError, match="cannot be moved to 'meta'"):
        vmap(lambda a: a.to("meta"))(X)


# -- levels --------------------------------------------------------------------------------------


def test_exception_restores_levels_keys_and_grad_mode():
    before = local_dispatch_key_set()

    def fail(a):
        ExcludeDispatchKeyGuard(DispatchKey.Tracer).__enter__()
        raise KeyError(TOP.get().layer.level)

    with pytest.raises(KeyError, match="3"):
        vmap(vmap(func.grad(fail)))(np.zeros((2, 2, 2)))
    assert TOP.get() is None
    assert local_dispatch_key_set() == before
    assert is_grad_enabled()


def test_each_thread_has_its_own_levels():
    seen = []

    def within(a):
        def other():
            seen.append(float(xp.sum(Tensor(ROW))))
            with pytest.raises(TransformError, match="outside of the vmap"):
                a + 1
            seen.append(vmap(lambda b: b * 2)(X).shape)

        thread = threading.Thread(target=other)
        thread.start()
        join(thread)
        return a * 2

    np.testing.assert_array_equal(vmap(within)(X), X * 2)
    assert seen == [11.0, (3, 2)]


def test_each_task_has_its_own_levels():
    async def one(scale):
        results = []
        for _ in range(3):
            await asyncio.sleep(0)
            results.append(vmap(lambda a: a * scale)(X))
            assert TOP.get() is None
        return results[-1]

    async def several():
        return await asyncio.gather(*(one(n) for n in range(4)))

    for scale, got in enumerate(asyncio.run(several())):
        np.testing.assert_array_equal(got, X * scale)


def test_keys_that_a_call_visits():
    with capture_dispatch_trace() as lines:
        vmap(xp.exp)(Tensor(X))
    assert [line.key for line in lines] == [
        *("FuncTorchDynamicLayerFrontMode", "FuncTorchBatched", "AutogradCPU", "CPU")
    ]
    with capture_dispatch_trace() as lines:
        func.grad(lambda a: xp.exp(a))(Tensor(np.array(1.0)))
    assert [line.key for line in lines if line.operator == "array::exp"] == [
        *("FuncTorchDynamicLayerFrontMode", "AutogradCPU", "FuncTorchDynamicLayerBackMode"),
        *("AutogradCPU", "CPU"),
    ]


def test_modes_see_what_is_called_below():
    seen = []
    with LoggingMode(seen.append):
        vmap(lambda a: xp.exp(a) + 1)(Tensor(X))
    assert seen == [
        "array::exp(float64[3, 2]) -> float64[3, 2]",
        "array::add.Scalar(float64[3, 2], 1) -> float64[3, 2]",
    ]


def test_gradients_go_through_a_batch():
    leaf = Tensor(X.copy(), requires_grad=True)
    xp.sum(vmap(lambda a: a * xp.sum(a))(leaf)).backward()
    np.testing.assert_array_equal(leaf.grad, 2 * X.sum(1, keepdims=True) + np.zeros((3, 2)))
