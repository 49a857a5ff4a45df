"""Functions of the library ``array`` on a GPU, where CuPy's own would do something else."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from opdispatch import ArgumentError, DeviceError, DeviceMemoryError, Tensor
from opdispatch import array_api as xp
from opdispatch.schema.scalar_type import find_dtype_of_name

pytestmark = pytest.mark.gpu


def there(values: Any, dtype: Any = "float64") -> Tensor:
    return Tensor(np.array(values, dtype)).to("cuda")


def here(tensor: Tensor) -> np.ndarray:
    assert tensor.device == "cuda:0"
    return np.asarray(tensor.to("cpu"))


@pytest.mark.parametrize(
    ("of_systems", "of_sides"),
    [((3, 3), (2, 3, 1)), ((2, 3, 3), (3, 2)), ((4, 1, 3, 3), (2, 3, 1)), ((2, 3, 3), (3,))],
)
def test_systems_are_solved_for_as_many_sides(of_systems: Any, of_sides: Any):
    random = np.random.default_rng(0)
    x1, x2 = random.normal(size=of_systems), random.normal(size=of_sides)
    expected = np.linalg.solve(x1, x2)
    np.testing.assert_allclose(here(xp.linalg.solve(there(x1), there(x2))), expected)


@pytest.mark.parametrize("shape", [(2, 2), (3, 2, 2)])
@pytest.mark.parametrize(
    "call",
    [
        xp.linalg.inv,
        lambda x: xp.linalg.solve(x, x),
        lambda x: xp.linalg.solve(x, x[..., 0]) if x.ndim == 2 else xp.linalg.solve(x, x),
        lambda x: xp.linalg.cholesky(x - 1.0),
    ],
)
def test_singular_factorization_raises_linalg_error(call: Any, shape: tuple[int, ...]):
    with pytest.raises(np.linalg.LinAlgError):
        call(there(np.zeros(shape)))


def test_a_singular_matrix_has_a_determinant():
    assert here(xp.linalg.det(there(np.zeros((2, 2))))) == 0.0
    found = xp.linalg.slogdet(there(np.zeros((3, 2, 2))))
    np.testing.assert_array_equal(here(found.sign), [0.0] * 3)


@pytest.mark.parametrize("order", [np.inf, 1, 2])
def test_the_norm_of_nothing_is_zero(order: float):
    assert here(xp.linalg.vector_norm(there([]), ord=order)) == 0.0
    found = here(xp.linalg.matrix_norm(there(np.empty((2, 0, 0))), ord=order))
    np.testing.assert_array_equal(found, [0.0, 0.0])


def test_places_are_searched_among_numbers_of_another_type():
    found = xp.searchsorted(there([-1, 0, 1], "int8"), there([0, 1], "uint64"))
    np.testing.assert_array_equal(here(found), [1, 2])


def test_axes_are_not_left_out():
    with pytest.raises(ArgumentError, match="was given 0 axes for the shape"):
        xp.permute_dims(there([[1.0, 2.0]]), ())


def test_a_zero_of_the_host_keeps_its_sign():
    signs = xp.copysign(there([1.0, 2.0]), Tensor(np.array(-0.0)))
    np.testing.assert_array_equal(here(signs), [-1.0, -2.0])


def test_complex_numbers_are_not_taken_for_real_ones():
    with pytest.raises(ArgumentError, match="is for real numbers, not complex128"):
        xp.fft.rfft(there([1j, 2], "complex128"))


def test_numbers_without_dimensions_are_taken_as_on_the_host():
    one, two = there(2.0), there([3.0, 4.0])
    np.testing.assert_array_equal(here(xp.cumulative_sum(one)), [2.0])
    assert [x.shape for x in xp.meshgrid(one, two)] == [(2, 1), (2, 1)]
    np.testing.assert_array_equal(here(xp.tensordot(one, two, axes=0)), [6.0, 8.0])


@pytest.mark.parametrize(
    "call",
    [
        *(xp.sum, xp.mean, xp.std, xp.cumulative_sum, xp.round, xp.tril, xp.linalg.vector_norm),
        *(lambda x: xp.hypot(x, x), lambda x: xp.atan2(x, 2.0), lambda x: x @ x, lambda x: x + 0.1),
        *(lambda x: xp.where(x > 0, x, 0.5), lambda x: xp.clip(x, 0.5), xp.exp, xp.sort),
        *(lambda x: xp.linalg.matrix_power(x, 2), lambda x: xp.logaddexp(x, x), xp.fft.rfft),
        *(xp.argsort, xp.unique_values, lambda x: xp.unique_all(x).values),
        *(lambda x: xp.isin(x, x[0]), lambda x: xp.searchsorted(xp.sort(x[0]), x)),
    ],
)
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_short_numbers_give_the_dtypes_of_the_host(call: Any, dtype: str):
    x = Tensor(np.random.default_rng(0).normal(size=(4, 4)).astype(find_dtype_of_name(dtype)))
    if call is xp.cumulative_sum:
        x = x[0]
    expected, found = call(x), call(x.to("cuda"))
    assert (found.shape, found.dtype) == (expected.shape, expected.dtype)
    wide = np.complex64 if expected.dtype.kind == "c" else np.float32
    np.testing.assert_allclose(
        here(found).astype(wide), np.asarray(expected).astype(wide), rtol=0.02, atol=0.02
    )


@pytest.mark.parametrize("shape", [(100_000,), (3, 30_000)])
def test_float16_is_added_up_in_float32(shape: tuple[int, ...]):
    x = np.random.default_rng(0).random(shape).astype(np.float16)
    found = xp.sum(there(x, "float16"), axis=-1)
    expected = x.sum(axis=-1, dtype=np.float64)
    assert found.dtype == np.float16
    np.testing.assert_allclose(here(found).astype(float), expected, rtol=2**-11)
    norm = xp.linalg.vector_norm(there(x, "float16"), axis=-1)
    expected = np.linalg.norm(x.astype(float), axis=-1)
    np.testing.assert_allclose(here(norm).astype(float), expected, rtol=2**-11)
    close_to_one = (1 + (x - 0.5) / 512).astype(np.float16)
    product = xp.prod(there(close_to_one, "float16"), axis=-1)
    expected = close_to_one.prod(axis=-1, dtype=np.float64)
    np.testing.assert_allclose(here(product).astype(float), expected, rtol=2**-10)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_factorizations_want_more_bits(dtype: str):
    with pytest.raises(ArgumentError, match=f"was given {dtype}; expected numbers of 32 bits"):
        xp.linalg.inv(there(np.eye(2), find_dtype_of_name(dtype)))


def test_allocation_error_has_the_memory_figures():
    with pytest.raises(DeviceMemoryError, match="cuda:0") as caught:
        xp.zeros((1 << 45,), device="cuda")
    assert caught.value.facts["asked"] == str(1 << 48)


WIDE = (1 << 30, 1)
LARGER: dict[str, Any] = {
    "zeros": lambda x: xp.zeros((2**32, 2**32), device="cuda"),
    "ones": lambda x: xp.ones((2**61 + 1,), device="cuda"),
    "eye": lambda x: xp.eye(2**40, device="cuda"),
    "fftfreq": lambda x: xp.fft.fftfreq(2**60, device="cuda"),
    "add": lambda x: x + x.T,
    "matmul": lambda x: x @ x.T,
    "svd": xp.linalg.svd,
    "where": lambda x: xp.where(there(True, "bool"), x.T, x),
    "meshgrid": lambda x: xp.meshgrid(x[:, 0], x[:, 0]),
    "stack": lambda x: xp.stack([xp.broadcast_to(x, (1 << 30, 1 << 28))] * 3),
    "broadcast_to": lambda x: xp.broadcast_to(x, (1 << 30, 1 << 30)),
    "broadcast_to less than none": lambda x: xp.broadcast_to(x[:1], (1, -3)),
    "repeat": lambda x: xp.repeat(x, 1 << 30),
    "repeat of a tensor": lambda x: xp.repeat(x, there([1 << 30], "int64"), axis=1),
    "tile": lambda x: xp.tile(x, (1, 1 << 30)),
    "fft": lambda x: xp.fft.fft(x[:3, 0], n=2**60),
    "take": lambda x: xp.take(x, xp.broadcast_to(there(0, "int64"), (1 << 30,)), axis=1),
    "of no elements": lambda x: x[:, :0, None] * xp.permute_dims(x[:, :0, None], (2, 1, 0)),
    "reshape of no elements": lambda x: xp.reshape(x[:0], (2**62, 0)),
}


@pytest.mark.parametrize("call", LARGER.values(), ids=LARGER)
def test_results_with_too_many_elements_raise_argument_error(call: Any):
    """CuPy takes no memory for it, or a little, and its kernels write beyond."""
    with pytest.raises(ArgumentError, match=r"^array::"):
        call(xp.broadcast_to(there(1.0), WIDE))
    np.testing.assert_array_equal(here(there([1.0]) + 1.0), [2.0])


def test_after_a_call_on_the_gpu_alone_the_host_is_still_seen():
    x = there([1.0, 2.0])
    for _ in range(2):
        np.testing.assert_array_equal(here(xp.add(x, x)), [2.0, 4.0])
    np.testing.assert_array_equal(here(xp.add(x, Tensor(np.array(1.0)))), [2.0, 3.0])
    with pytest.raises(DeviceError, match="found at least two devices, cuda:0 and cpu!"):
        xp.add(x, Tensor(np.array([1.0, 2.0])))
    wide = xp.broadcast_to(x[0], (1 << 45,))
    with pytest.raises(DeviceMemoryError, match="cuda:0"):
        xp.add(wide, wide)
