"""``opdispatch.array_api``: every function of the standard gives what NumPy's own gives."""

from __future__ import annotations

import operator
import re
from typing import Any

import array_api_compat.numpy
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from opdispatch import (
    ArgumentError,
    Tensor,
    capture_dispatch_trace,
)
from opdispatch import array_api as xp
from opdispatch.native.array.operators.functions import BINARY, FUNCTIONS, UNARY

# What the calls below are made of, in both namespaces.
ARRAYS = {
    "f": np.array([[0.25, 0.5, 0.75], [0.125, 0.625, 0.375]]),
    "g": np.array([[1.5, -2.0, 3.0]], np.float32),
    "h": np.array([[3.0, 1.0, 2.0]], np.float32),
    "s": np.array(0.5),
    "i": np.array([3, 1, 2, 1]),
    "j": np.array([1, 2, 1, 0], np.int8),
    "b": np.array([True, False, True, False]),
    "c": np.array([1 + 2j, 3 - 1j]),
    "v": np.array([1.0, 2.0, 3.0]),
    "m": np.array([[4.0, 1.0], [1.0, 3.0]]),
    "z": np.zeros((0, 3)),
    "n": np.arange(6.0)[::-2],
    "r": np.arange(3, dtype=">f4"),
}
ARGUMENTS = {"acosh": "f + 1", "logical_not": "b"}
INTEGERS = {
    *("bitwise_invert", "bitwise_and", "bitwise_or", "bitwise_xor", "bitwise_left_shift"),
    "bitwise_right_shift",
}
CALLS = [
    *(f"{name}({ARGUMENTS.get(name, 'i' if name in INTEGERS else 'f')})" for name in UNARY),
    *(
        "imag(c)",
        "real(c)",
        "conj(c)",
        "abs(c)",
        "abs(j)",
        "negative(j)",
        "sqrt(z)",
        "exp(n)",
        "ceil(i)",
    ),
    *(
        f"{name}({args})"
        for name in BINARY
        for args in (
            ("i, i", "i, j", "i, 2", "3, j")
            if name in INTEGERS
            else ("b, b", "b, True", "False, b")
            if name.startswith("logical")
            else ("g, h", "f, s", "g, 2.0", "1.5, h", "z, z")
        )
    ),
    *("add(r, g)", "add(n, v)", "multiply(c, 2j)", "pow(i, 2)", "floor_divide(j, j + 1)"),
    *(
        "arange(5)",
        "arange(1, 7, 2)",
        "arange(0.0, 1.0, 0.25, dtype=float32)",
        "arange(3, device='cpu')",
    ),
    *(
        "empty((0, 2))",
        "eye(3)",
        "eye(2, 3, k=1)",
        "full((2, 2), 7)",
        "full(3, 1.5, dtype=float32)",
    ),
    *("linspace(0, 1, 5)", "linspace(0.0, 1.0, num=4, endpoint=False)", "ones((2,))", "zeros(3)"),
    *("zeros((2, 0), dtype=int8)", "fft.fftfreq(5)", "fft.rfftfreq(6, d=0.5)"),
    *("clip(v, 1.5, 2.5)", "clip(v, min=2.0)", "clip(v, v, None)", "clip(i, 2)"),
    *("zeros_like(g)", "ones_like(i, dtype=float64)", "full_like(f, 3.0)", "empty_like(z)"),
    *("meshgrid(v, i)", "meshgrid(v, v, indexing='ij')", "tril(f)", "triu(f, k=1)"),
    *("astype(f, int64)", "astype(i, float32, copy=False)", "broadcast_arrays(f, v)"),
    *("broadcast_to(v, (2, 3))", "take(v, i - 1)", "take(f, i - 1, axis=1)"),
    *("take_along_axis(f, argsort(f, axis=1), axis=1)", "matmul(m, m)", "matmul(f, v)"),
    *("matrix_transpose(f)", "tensordot(m, m)", "tensordot(f, f, axes=((0,), (0,)))"),
    *("vecdot(v, v)", "vecdot(f, f, axis=0)", "concat([f, f])", "concat([f, f], axis=None)"),
    *("expand_dims(v, axis=1)", "flip(f)", "flip(f, axis=1)", "moveaxis(f, 0, 1)"),
    *("permute_dims(f, (1, 0))", "repeat(v, 2)", "repeat(v, i[:3], axis=0)", "reshape(f, (3, -1))"),
    *("reshape(f, (6,), copy=True)", "roll(f, 1)", "roll(f, (1, 1), axis=(0, 1))", "squeeze(g, 0)"),
    *("squeeze(g, axis=(0,))", "stack([v, v], axis=1)", "tile(v, (2, 2))", "unstack(f)"),
    *("unstack(f, axis=1)", "argmax(f)", "argmin(f, axis=0, keepdims=True)", "count_nonzero(b)"),
    *("expand_dims(f, axis=(0, -1))", "searchsorted(v, 1.5)"),
    *("count_nonzero(f, axis=0)", "nonzero(b)", "searchsorted(v, v, side='right')"),
    *("searchsorted(i, i, sorter=argsort(i))", "where(b, i, 0)", "where(b, 1.5, v[0])"),
    *(
        "where(b, i, i)",
        "unique_all(i)",
        "unique_counts(i)",
        "unique_inverse(i)",
        "unique_values(i)",
    ),
    *("argsort(i)", "argsort(f, axis=0, descending=True)", "sort(f)", "sort(i, descending=True)"),
    *("cumulative_sum(v)", "cumulative_sum(f, axis=1, include_initial=True)", "cumulative_prod(i)"),
    *(
        "max(f)",
        "max(f, axis=(0, 1))",
        "min(f, axis=1, keepdims=True)",
        "mean(g)",
        "mean(f, axis=0)",
    ),
    *("prod(j)", "prod(f, axis=1, dtype=float32)", "std(f)", "std(f, axis=0, correction=1)"),
    *("sum(f)", "sum(j)", "sum(f, axis=(0, 1), keepdims=True)", "sum(g, dtype=float64)", "sum(z)"),
    *("var(f, correction=1.0)", "all(b)", "any(f, axis=0)", "diff(i)", "diff(f, axis=0, n=1)"),
    *("diff(v, prepend=v, append=v)", "linalg.cholesky(m)", "linalg.cross(v, v + 1)"),
    *("linalg.det(m)", "linalg.diagonal(f, offset=1)", "linalg.eigh(m)", "linalg.eigvalsh(m)"),
    *("linalg.eig(m)", "linalg.eigvals(m)"),
    *("isin(i, i[0])", "isin(i, 2, invert=True)", "isin(1, i)", "isin(f, 1.5)"),
    *(
        "linalg.inv(m)",
        "linalg.matmul(m, m)",
        "linalg.matrix_norm(f)",
        "linalg.matrix_norm(f, ord=1)",
    ),
    *("linalg.matrix_norm(f, ord='nuc', keepdims=True)", "linalg.matrix_power(m, 3)"),
    *("linalg.matrix_rank(m)", "linalg.matrix_rank(m, rtol=0.5)", "linalg.matrix_transpose(f)"),
    *("linalg.matrix_rank(m, rtol=s)", "linalg.pinv(f, rtol=s)", "linalg.tensordot(m, m)"),
    *("linalg.outer(v, v)", "linalg.pinv(f)", "linalg.pinv(f, rtol=0.1)", "linalg.qr(f)"),
    *("linalg.qr(f, mode='complete')", "linalg.slogdet(m)", "linalg.solve(m, m)", "linalg.svd(f)"),
    *(
        "linalg.svd(f, full_matrices=False)",
        "linalg.svdvals(f)",
        "linalg.trace(m)",
        "linalg.vecdot(v, v)",
    ),
    *("linalg.trace(f, offset=1, dtype=float32)", "linalg.vector_norm(f)"),
    *(
        "linalg.vector_norm(f, axis=1, ord=inf)",
        "linalg.vector_norm(f, axis=(0, 1), keepdims=True)",
    ),
    *(
        f"fft.{name}({array})"
        for name in ("fft", "ifft", "hfft", "irfft")
        for array in ("c", "c, n=4")
    ),
    *(f"fft.{name}(f, axis=0, norm='ortho')" for name in ("rfft", "ihfft")),
    *(f"fft.{name}(f)" for name in ("fftn", "ifftn", "rfftn", "fftshift", "ifftshift")),
    *("fft.irfftn(f)", "fft.fftn(f, s=(4,), axes=(1,))", "fft.fftshift(f, axes=0)"),
]


def evaluate(call: str, namespace: Any, asarray: Any) -> Any:
    """The value of a call in a namespace, over arrays of its kind."""
    scope = {name: getattr(namespace, name) for name in dir(namespace) if name[0] != "_"}
    return eval(call, scope, {name: asarray(array.copy()) for name, array in ARRAYS.items()})


def parts(result: Any) -> list[Any]:
    return list(result) if isinstance(result, tuple | list) else [result]


@pytest.mark.parametrize("call", CALLS)
def test_functions_give_what_those_of_numpy_give(call: str):
    result = evaluate(call, xp, Tensor)
    expected = evaluate(call, array_api_compat.numpy, np.asarray)
    assert len(parts(result)) == len(parts(expected))
    for ours, theirs in zip(parts(result), parts(expected), strict=True):
        assert type(ours) is Tensor
        assert (ours.shape, ours.dtype) == (np.shape(theirs), np.asarray(theirs).dtype)
        if "empty" not in call:
            np.testing.assert_array_equal(ours.array, theirs)


# Eigenvalues may come in another order, and vectors the other way round, as the library likes it.
OF_ANY_ORDER = ("linalg.eig(", "linalg.eigvals(")
OF_ANY_SIGN = ("linalg.eig(", "linalg.eigh", "linalg.qr", "linalg.svd")


def in_order(found: Any) -> Any:
    """The places of eigenvalues, the least first."""
    values = parts(found)[0]
    return np.argsort(np.real(values.to("cpu").array if type(values) is Tensor else values))


@pytest.mark.gpu
@pytest.mark.parametrize("call", CALLS)
def test_functions_give_the_same_on_a_gpu(cupy: Any, call: str):
    result = evaluate(call, xp, lambda array: Tensor(cupy.asarray(array)))
    expected = evaluate(call, array_api_compat.numpy, np.asarray)
    for ours, theirs in zip(parts(result), parts(expected), strict=True):
        assert (ours.shape, ours.dtype) == (np.shape(theirs), np.asarray(theirs).dtype)
        # What is made of nothing is made on the host, if nothing else is said.
        assert ours.device == ("cuda:0" if re.search(r"\b[a-z]\b(?!=)", call) else "cpu")
        if "empty" not in call:
            found = np.asarray(ours.to("cpu"))
            if call.startswith(OF_ANY_ORDER):
                found, theirs = (
                    x[..., in_order(y)] for x, y in ((found, result), (theirs, expected))
                )
            if call.startswith(OF_ANY_SIGN):
                found, theirs = np.abs(found), np.abs(theirs)
            # A zero need not be one: it may be the difference of two sums.
            np.testing.assert_allclose(found, theirs, rtol=1e-6, atol=1e-7)


def test_every_function_is_called_above():
    called = {call.partition("(")[0].replace(".", "_") for call in CALLS}
    assert {function.schema.name.name for function in FUNCTIONS} <= called


@pytest.mark.parametrize("call", ["add(f, s)", "sum(f, axis=0)", "linalg.svd(f)", "unstack(f)"])
def test_plain_arrays_stay_plain(call: str):
    for each in parts(evaluate(call, xp, np.asarray)):
        assert isinstance(each, np.ndarray)


def test_calls_are_dispatched():
    with capture_dispatch_trace() as lines:
        xp.add(Tensor(np.ones(2)), 1.0)
    assert {str(line.operator) for line in lines} == {"array::add.Scalar"}


# -- what a tensor does itself ---------------------------------------------------------------------

BINARY_OPERATORS = [
    *(operator.add, operator.sub, operator.mul, operator.truediv, operator.floordiv, operator.mod),
    *(operator.pow, operator.lt, operator.le, operator.gt, operator.ge, operator.eq, operator.ne),
]


@given(
    st.sampled_from(BINARY_OPERATORS),
    st.lists(st.floats(0.5, 8.0), min_size=1, max_size=5),
    st.floats(0.5, 4.0),
)
def test_operators_are_those_of_arrays(operate: Any, values: list[float], other: float):
    array = np.array(values)
    tensor = Tensor(array)
    for left, right in ((tensor, tensor), (tensor, other), (other, tensor), (tensor, array)):
        result = operate(left, right)
        assert type(result) is Tensor
        plain = operate(*(x.array if type(x) is Tensor else x for x in (left, right)))
        np.testing.assert_array_equal(result.array, plain)


def test_more_operators():
    x, m = xp.asarray([6, 3, 1]), xp.asarray([[1.0, 2.0], [3.0, 4.0]])
    assert (x & 2).array.tolist() == [2, 2, 0]
    assert (1 | x).array.tolist() == [7, 3, 1]
    assert (x ^ x).array.tolist() == [0, 0, 0]
    assert (x << 1 >> 1 == x).array.all()
    assert (~x).array.tolist() == [-7, -4, -2]
    assert (abs(-x) == +x).array.all()
    assert (m @ m).array.tolist() == [[7, 10], [15, 22]]
    assert m.T.array.tolist() == m.mT.array.tolist() == [[1, 3], [2, 4]]
    assert (m.size, m.ndim, len(m), m.device) == (4, 2, 2, "cpu")
    assert (float(m[0, 1]), int(x[0]), complex(m[0, 0]), bool(x[0])) == (2.0, 6, 1, True)
    assert [10, 20, 30][xp.asarray(1)] == 20
    assert m.__array_namespace__() is m.__array_namespace__(api_version="2023.12") is xp


def test_in_place_operators_return_the_same_tensor():
    x = y = xp.asarray([1.0, 2.0, 3.0])
    x += 1
    x *= xp.asarray([2.0, 2.0, 2.0])
    x[xp.asarray([True, False, False])] = 0.5
    x[1:] = xp.asarray([7.0, 8.0])
    assert x is y
    assert y.array.tolist() == [0.5, 7.0, 8.0]
    with pytest.raises(ArgumentError, match="cannot be written to a tensor of shape"):
        x += xp.ones((2, 3))
    n = xp.asarray([1, 2])
    with pytest.raises(ArgumentError, match="dtype float64"):
        n /= 2
    locked = np.ones(2)
    locked.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        Tensor(locked)[0] = 1


def test_others_are_not_operands():
    x = xp.ones(2)
    with pytest.raises(TypeError):
        x + "1"
    assert (x == None) is False  # noqa: E711
