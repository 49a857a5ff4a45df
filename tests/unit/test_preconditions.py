"""Calls that the standard leaves undefined, and NumPy computes: refused, and the arguments intact.

Each was found by calling all functions at random, beside array-api-strict.
"""

from __future__ import annotations

import math
import tracemalloc
from typing import Any

import numpy as np
import pytest

from opdispatch import ArgumentError, AutogradError, DeviceError, Tensor, func, vmap
from opdispatch import array_api as xp


def of(values: Any, dtype: str = "float64") -> Tensor:
    return Tensor(np.array(values, dtype))


ONE, VECTOR, MATRIX = of(1.0), of([1.0, 2.0]), of([[1.0, 2.0], [3.0, 4.0]])
BYTES = of([1, 2], "uint8")

REFUSED = {
    "tril of a vector": lambda: xp.tril(VECTOR),
    "triu of a number": lambda: xp.triu(ONE),
    "outer of matrices": lambda: xp.linalg.outer(MATRIX, VECTOR),
    "cross of two dimensions": lambda: xp.linalg.cross(VECTOR, VECTOR),
    "cross of different dimensions along an axis from the front": lambda: xp.linalg.cross(
        xp.ones((3, 3)), xp.ones((2, 3, 3)), axis=1
    ),
    "vecdot of different dimensions along an axis from the front": lambda: xp.vecdot(
        xp.ones((3, 3)), xp.ones((1, 3, 3)), axis=1
    ),
    "repetitions of nothing less than never": lambda: xp.repeat(of([]), -1),
    "repetitions less than never": lambda: xp.repeat(VECTOR, Tensor(np.array([1, -1]))),
    "tensordot over -1 axes": lambda: xp.tensordot(VECTOR, VECTOR, axes=-1),
    "tensordot over too many axes": lambda: xp.tensordot(VECTOR, VECTOR, axes=2),
    "tensordot over axes that are not there": lambda: xp.tensordot(
        VECTOR, VECTOR, axes=((5,), (0,))
    ),
    "tensordot over no axes of nothing": lambda: xp.tensordot(VECTOR, VECTOR, axes=()),
    "arange to a complex number": lambda: xp.arange(1j),
    "arange in steps of zero": lambda: xp.arange(0, 5, 0),
    "clip of real numbers to a complex one": lambda: xp.clip(VECTOR, 1j),
    "full of a complex number as float": lambda: xp.full((2,), 1j, dtype=xp.float32),
    "full_like of a complex number": lambda: xp.full_like(VECTOR, 1j),
    "linspace from a complex number as float": lambda: xp.linspace(1j, 2, 3, dtype=xp.float32),
    "fftfreq in integers": lambda: xp.fft.fftfreq(4, dtype=xp.int8),
    "rfftfreq in complex numbers": lambda: xp.fft.rfftfreq(4, dtype=xp.complex64),
    "fftfreq of no points": lambda: xp.fft.fftfreq(0),
    "fft along an axis that is not there": lambda: xp.fft.fft(VECTOR, axis=1),
    "rfftn along an axis that is not there": lambda: xp.fft.rfftn(VECTOR, axes=(0, 1)),
    "irfft of a number": lambda: xp.fft.irfft(ONE),
    "rfftn of a number": lambda: xp.fft.rfftn(ONE),
    "irfftn along no axes": lambda: xp.fft.irfftn(of([1, 2], "complex64"), axes=()),
    "irfft of one point": lambda: xp.fft.irfft(of([1j], "complex64")),
    "irfftn of one point": lambda: xp.fft.irfftn(of([[1j, 2], [3j, 4]], "complex64"), s=(2, 0)),
    "fft of nothing": lambda: xp.fft.fft(of([])),
    "ifft to no points": lambda: xp.fft.ifft(VECTOR, n=0),
    "fftn of nothing": lambda: xp.fft.fftn(of([[]])),
    "rfft of complex numbers": lambda: xp.fft.rfft(of([1j, 2], "complex64")),
    "ihfft of complex numbers": lambda: xp.fft.ihfft(of([1j, 2], "complex128")),
    "rfftn of complex numbers": lambda: xp.fft.rfftn(of([1j, 2], "complex64")),
    "searchsorted among complex numbers": lambda: xp.searchsorted(of([1j], "complex64"), ONE),
    "searchsorted for complex numbers": lambda: xp.searchsorted(VECTOR, of([1j], "complex64")),
    "fftshift along an axis that is not there": lambda: xp.fft.fftshift(VECTOR, axes=5),
    "a sum of complex numbers as float": lambda: xp.sum(of([1j], "complex64"), dtype=xp.float32),
    "a product of complex numbers as int": lambda: xp.prod(of([1j], "complex64"), dtype=xp.int8),
    "a trace of complex numbers as float": lambda: xp.linalg.trace(
        of([[1j]], "complex64"), dtype=xp.float32
    ),
    "complex numbers written to real ones": lambda: VECTOR.__setitem__(0, of([1j], "complex64")),
    "a complex number written to a real one": lambda: VECTOR.__setitem__(0, 1j),
    "a running sum of a number": lambda: xp.cumulative_sum(ONE, include_initial=True),
    "qr in a mode of NumPy's": lambda: xp.linalg.qr(MATRIX, mode="r"),
    "a reshape to an extent of -2": lambda: xp.reshape(VECTOR, (-2,)),
    "a reshape of no elements to an extent of -2": lambda: xp.reshape(of([]), (-2,)),
    "a variance with a complex correction": lambda: xp.var(VECTOR, correction=1j),
    "a deviation with a complex correction": lambda: xp.std(VECTOR, correction=1j),
    "a norm of a complex order": lambda: xp.linalg.vector_norm(VECTOR, ord=1j),
}


@pytest.mark.parametrize("call", REFUSED.values(), ids=REFUSED)
def test_undefined_behaviour_raises_argument_error(call: Any):
    with pytest.raises(ArgumentError, match=r"^array::"):
        call()


HUGE = {
    "repeat": lambda: xp.repeat(of([1, 2, 3, 4]), 2**62),
    "repeat along an axis": lambda: xp.repeat(of([[1, 2]] * 4), 2**62, axis=0),
    "repeat in numbers that are given": lambda: xp.repeat(of([1] * 4), of([2**62] * 4, "int64")),
    "repeat in one number that is given": lambda: xp.repeat(of([1] * 4), of([2**62], "uint64")),
    "tile": lambda: xp.tile(of([[1], [2], [3], [4]]), (1, 2**62)),
    "arange": lambda: xp.arange(2**63 - 1),
    "arange of floats": lambda: xp.arange(0.0, 2.0**63),
    "arange downwards": lambda: xp.arange(2**62, -(2**62), -1),
    "linspace": lambda: xp.linspace(0, 1, 2**63 - 1),
}


@pytest.mark.parametrize("call", HUGE.values(), ids=HUGE)
def test_a_size_that_no_array_has_is_refused(call: Any):
    """NumPy's sizes wrap around there: what came of it was empty, or the end of the process."""
    with pytest.raises(ArgumentError, match=r"^array::.* more elements than an array can have$"):
        call()


def test_large_repeat_of_an_empty_array_is_empty():
    assert xp.repeat(of([]), 2**62).shape == xp.repeat(of([]), of([2**62], "int64")).shape == (0,)
    assert xp.tile(of([]), (2**40,)).shape == (0,)
    assert xp.arange(0, 2**63 - 1, 2**62).shape == (2,)
    with pytest.raises(ArgumentError, match="a dimension has at most 9223372036854775807"):
        xp.repeat(of([1, 2]).to("meta"), 2**62)


def test_a_difference_of_a_high_order_is_empty_at_once():
    for n in (3, 2**62):
        assert xp.diff(MATRIX, n=n).shape == (2, 0)
        assert xp.diff(MATRIX, n=n, axis=0, prepend=MATRIX).shape == (4 - min(n, 4), 2)


@pytest.mark.parametrize("transform", [xp.fft.fftn, xp.fft.rfftn, xp.fft.irfftn])
@pytest.mark.parametrize("s", [(-1,), (2, -1), (-1, 3)])
def test_all_of_an_axis_is_transformed_for_minus_one(transform: Any, s: tuple[int, ...]):
    axes = tuple(range(len(s)))
    expected = getattr(np.fft, transform.__name__.removeprefix("fft_"))(MATRIX.array, s, axes)
    np.testing.assert_allclose(transform(MATRIX, s=s, axes=axes), expected, atol=1e-12)


@pytest.mark.parametrize(
    "call",
    [
        lambda: xp.where(BYTES > 1, 300, BYTES),
        lambda: xp.where(BYTES > 1, BYTES, -1),
    ],
)
def test_a_number_is_not_wrapped_around_by_where(call: Any):
    with pytest.raises(OverflowError, match="out of bounds for uint8"):
        call()


def test_where_accepts_numbers_that_fit_the_dtype():
    np.testing.assert_array_equal(xp.where(BYTES > 1, 255, BYTES), [1, 255])
    assert xp.where(BYTES > 1, True, BYTES > 0).dtype == xp.bool
    assert xp.where(VECTOR > 1, 2j, VECTOR).dtype == xp.complex128
    np.testing.assert_array_equal(xp.where(VECTOR > 1, math.inf, VECTOR), [1, math.inf])


def test_clip_leaves_its_bounds_as_they_were():
    low, high = np.array([-1000, 0]), np.array([1000, 5])
    clipped = xp.clip(of([-100, 100], "int8"), Tensor(low), Tensor(high))
    np.testing.assert_array_equal(clipped, [-100, 5])
    assert clipped.dtype == xp.int8
    np.testing.assert_array_equal([low, high], [[-1000, 0], [1000, 5]])


@pytest.mark.parametrize(
    ("dtype", "bound", "expected"),
    [
        ("int16", of(2**62, "int64"), 32767),
        ("int16", of([2**62], "int64"), 32767),
        ("int16", of([-(2**62)], "int64"), 3),
        ("int8", of([200], "uint8"), 127),
        ("uint32", of([2], "uint16"), 3),
        ("float32", of([3.5]), 3.5),
    ],
)
def test_clip_takes_bounds_of_other_types(dtype: str, bound: Tensor, expected: float):
    """They are the nearest numbers of the array's type: NumPy would wrap them around."""
    bound.array.flags.writeable = False
    clipped = xp.clip(of([3], dtype), bound)
    assert clipped.dtype == dtype
    np.testing.assert_array_equal(clipped, [expected])


def test_clip_takes_bounds_that_cannot_be_written_to():
    x, bound = of([-1, 0, 5], "int32"), of([1, 1, 2], "int32")
    bound.array.flags.writeable = False
    for clipped, expected in (
        (xp.clip(x, bound), [1, 1, 5]),
        (xp.clip(x, None, bound), [-1, 0, 2]),
        (xp.clip(x, 0, bound), [0, 0, 2]),
        (xp.clip(x, bound, 3), [1, 1, 3]),
    ):
        np.testing.assert_array_equal(clipped, expected)


@pytest.mark.parametrize("dtype", [">i4", ">f4", ">c8"])
def test_clip_takes_either_byte_order(dtype: str):
    x, low, high = of([-1, 0, 5], dtype), of([0, 0, 0], dtype), of([3], dtype[1:])
    if dtype == ">i4":
        low = of([0], ">i2")
    assert xp.clip(x).dtype == dtype[1:]
    for bounds in ((low, high), (0, high), (low, 3), (0, 3)):
        clipped = xp.clip(x, *bounds)
        np.testing.assert_array_equal(clipped, [0, 0, 3])
        without = [each.to("meta") if isinstance(each, Tensor) else each for each in bounds]
        assert clipped.dtype == xp.clip(x.to("meta"), *without).dtype == dtype[1:]


@pytest.mark.parametrize(("dtype", "bound"), [("int64", 1.5), ("float32", True), ("bool", 0)])
def test_clip_refuses_numbers_of_another_kind(dtype: str, bound: complex):
    """An integer array would be clipped to the integer below 1.5."""
    for x in (of([0, 1], dtype), of([0, 1], dtype).to("meta")):
        for bounds in ((bound, None), (None, bound)):
            with pytest.raises(ArgumentError, match=f"an array of {dtype} and the"):
                xp.clip(x, *bounds)


def test_a_diagonal_beyond_a_matrix_is_empty():
    for offset in (2**31, -(2**40), 2**62):
        assert xp.linalg.diagonal(MATRIX, offset=offset).shape == (0,)
        assert xp.linalg.trace(MATRIX, offset=offset) == 0


def _grid_of(x: Any, *, device: str | None = None) -> Any:
    return xp.meshgrid(xp.asarray(x, device=device), xp.arange(3.0, device=device))


@pytest.mark.parametrize(
    "call",
    [
        lambda: _grid_of(np.ones((2, 2))),
        lambda: _grid_of(np.ones((2, 2)), device="meta"),
        lambda: vmap(_grid_of)(np.ones((4, 2, 2))),
        lambda: func.jvp(_grid_of, (np.ones((2, 2)),), (np.ones((2, 2)),)),
    ],
)
def test_meshgrid_refuses_matrices(call: Any):
    with pytest.raises(ArgumentError, match="meshgrid takes arrays of one dimension, not of shape"):
        call()


def test_clip_allocates_its_result_alone():
    """A second temporary costs page faults, which are most of its time in a fresh process."""
    x = Tensor(np.zeros(100_000))
    xp.clip(x, -1.0, 1.0)
    tracemalloc.start()
    try:
        xp.clip(x, -1.0, 1.0)
        assert tracemalloc.get_traced_memory()[1] < 1.1 * x.array.nbytes
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "call",
    [
        lambda x: xp.diff(x, n=0),
        lambda x: xp.linalg.matrix_power(x, 1),
        lambda x: xp.fft.fftn(x, axes=()),
        lambda x: xp.meshgrid(x[0])[0],
    ],
)
def test_no_op_functions_return_copies(call: Any):
    x = of([[1.0, 2.0], [3.0, 4.0]])
    assert not np.shares_memory(call(x).array, x.array)


def test_broadcast_arrays_are_views_whose_versions_are_their_arrays():
    x = Tensor(np.array([1.0, 2.0]), requires_grad=True)
    doubled = x * 2
    squares = xp.sum(doubled * doubled)
    whole, column = xp.broadcast_arrays(doubled, of([[0.0], [0.0]]))
    assert whole.shape == column.shape == (2, 2)
    (same,) = xp.broadcast_arrays(doubled)
    same[0] = 100.0
    assert doubled[0].item() == 100.0
    with pytest.raises(AutogradError, match="version"):
        squares.backward()
    with pytest.raises(ValueError, match=r"\(2,\).*\(3,\)"):
        xp.broadcast_arrays(doubled, of([1, 2, 3]))
    with pytest.raises(ArgumentError, match="expected Tensor"):
        xp.broadcast_arrays(doubled, 1)


@pytest.mark.parametrize("name", ["fftn", "ifftn", "rfftn", "irfftn"])
def test_extents_without_axes_are_of_the_last_ones(name: str):
    """Warnings are errors in tests, and NumPy's is to become one."""
    transform = getattr(xp.fft, name)
    x = of([[1.0, 2.0, 4.0], [3.0, 4.0, 0.0]])
    np.testing.assert_array_equal(transform(x, s=(2,)), transform(x, s=(2,), axes=(-1,)))


def test_asarray_has_the_types_of_the_standard():
    swapped = np.array([1, 2, 3], ">i4")
    x = xp.asarray(swapped)
    assert x.dtype == xp.int32
    np.testing.assert_array_equal(x, [1, 2, 3])
    for value in ([1, 2], swapped, x):
        assert xp.asarray(value, dtype=swapped.dtype).dtype == xp.int32
    assert xp.zeros(2, dtype=swapped.dtype).dtype == xp.int32
    with pytest.raises(ValueError, match="must be copied"):
        xp.asarray(swapped, copy=False)


@pytest.mark.parametrize("value", ["1", ["1", "2"], b"12", [["1"], [2.0]]])
def test_texts_are_no_numbers_though_they_look_like_some(value: Any):
    with pytest.raises(ArgumentError, match="array::asarray does not take arrays of"):
        xp.asarray(value, dtype=xp.float32)


@pytest.mark.parametrize("value", [1j, [1.0, 1j], [np.complex64(1j)], [[2], [np.array(1j)]]])
@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_complex_numbers_are_no_real_ones_in_lists_either(value: Any, dtype: str):
    """NumPy drops the imaginary parts of its own scalars."""
    with pytest.raises(ArgumentError, match=f"complex.* {dtype}"):
        xp.asarray(value, dtype=dtype)
    assert xp.asarray(value, dtype="complex64").dtype == xp.complex64


@pytest.mark.parametrize("value", [1, [1.0], of([1.0])])
@pytest.mark.parametrize("dtype", ["toaster", 3, [], "f4,nope"])
def test_a_type_of_elements_is_one(value: Any, dtype: Any):
    with pytest.raises(ArgumentError, match="asarray takes an element type or its name, not"):
        xp.asarray(value, dtype=dtype)


def test_none_is_no_type():
    for ask in (xp.finfo, xp.result_type, lambda none: xp.can_cast(xp.float32, none)):
        with pytest.raises(ArgumentError, match="None is neither"):
            ask(None)


def test_a_device_is_a_text():
    for make in (lambda: xp.asarray([1], device=3), lambda: of(1.0).to(None)):  # type: ignore[arg-type]
        with pytest.raises(DeviceError, match="there is no device"):
            make()


def test_the_host_has_a_number_too():
    x = of([1.0])
    for made in (xp.zeros(1, device="cpu:0"), xp.full((1,), 0.0, device="cpu:0")):
        assert (made.device, made.shape) == ("cpu", (1,))
    assert xp.zeros_like(x, device="cpu:0").device == xp.astype(x, x.dtype, device="cpu:0").device


@pytest.mark.parametrize("dtype", ["float32", "float64", "int8"])
@pytest.mark.parametrize("low", [None, 1, 3, math.nan])
@pytest.mark.parametrize("high", [None, 2, math.inf])
def test_clip_to_numbers_is_numpys(dtype: str, low: float | None, high: float | None):
    if dtype == "int8":  # floats for integers are refused
        low, high = (each if type(each) is int else None for each in (low, high))
    for values in ([1, 2, 3], [], 2, [[0, 9]]):
        x = np.array(values, dtype)
        clipped = xp.clip(Tensor(x), low, high)
        assert clipped.dtype == dtype
        assert not np.shares_memory(clipped.array, x)
        np.testing.assert_array_equal(clipped, np.clip(x, low, high))


@pytest.mark.parametrize(
    "find",
    [
        xp.linalg.svd,
        xp.linalg.svdvals,
        xp.linalg.pinv,
        xp.linalg.matrix_rank,
        lambda x: xp.linalg.pinv(x, rtol=of(0.1)),
        lambda x: xp.linalg.matrix_rank(x, rtol=of(0.1)),
    ],
)
@pytest.mark.parametrize("dtype", ["float32", "complex128"])
@pytest.mark.parametrize("element", [math.inf, -math.inf, math.nan])
def test_singular_values_of_infinities_are_refused_where_lapack_never_ends(
    find: Any, dtype: str, element: float
):
    x = of([[element, 3, 0], [0, -math.inf, 1e30], [1, -1.5, 1e30]], dtype)
    with pytest.raises(np.linalg.LinAlgError, match=r"of \[2, 3, 3\]: there is an infinity or NaN"):
        find(xp.stack([xp.zeros_like(x), x]))


@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (2, 0, 0), (0, 0, 2)])
def test_a_matrix_without_elements_has_the_rank_zero(shape: tuple[int, ...]):
    for x in (Tensor(np.ones(shape)), Tensor(np.ones(shape)).to("meta")):
        ranks = xp.linalg.matrix_rank(x)
        assert (ranks.shape, ranks.dtype) == (shape[:-2], xp.int64)
        assert ranks.device == "meta" or not xp.any(ranks)


@pytest.mark.parametrize("ord", [1, -1, 2, -2, "nuc", "fro", math.inf])
@pytest.mark.parametrize("shape", [(0, 0, 2), (0, 2, 0), (0, 0, 0), (0, 2, 2), (2, 0, 2)])
def test_norms_without_elements_are_there_or_not_on_meta_as_well(shape: tuple[int, ...], ord: Any):
    x = Tensor(np.ones(shape))
    try:
        norms = xp.linalg.matrix_norm(x, ord=ord)
    except ValueError:
        with pytest.raises(ArgumentError):
            xp.linalg.matrix_norm(x.to("meta"), ord=ord)
    else:
        assert xp.linalg.matrix_norm(x.to("meta"), ord=ord).shape == norms.shape


@pytest.mark.parametrize("transform", [xp.fft.irfft, xp.fft.hfft, xp.fft.irfftn])
def test_no_points_that_are_filled_up_are_zeros(transform: Any):
    """NumPy's results have what was in memory before."""
    for shape in ((3, 0), (0,), (2, 3, 0)):
        size = {"s": (64,)} if transform is xp.fft.irfftn else {"n": 64}
        for _ in range(3):
            np.full((*shape[:-1], 64), 7.0)
            result = transform(of(np.ones(shape), "complex128"), **size)
            np.testing.assert_array_equal(result, np.zeros((*shape[:-1], 64)))
    if transform is not xp.fft.irfftn:
        result = transform(of(np.ones((0, 3)), "complex64"), n=5, axis=0)
        np.testing.assert_array_equal(result, np.zeros((5, 3), np.float32))


def test_a_number_can_be_shifted_along_no_axes():
    for x in (of(3.0), of(3.0).to("meta")):
        for shifted in (
            *(xp.roll(x, 1, axis=()), xp.roll(x, 1), xp.fft.fftshift(x)),
            *(xp.fft.ifftshift(x, axes=()), xp.fft.fftshift(x, axes=None)),
        ):
            assert shifted.shape == ()
            assert shifted.device == "meta" or (shifted == 3 and shifted.array is not x.array)
        with pytest.raises((ArgumentError, np.exceptions.AxisError)):
            xp.roll(x, 1, axis=0)


@pytest.mark.parametrize("dtype", ["uint8", "uint64", ">u8", ">i8"])
def test_repetitions_are_integers_of_any_type(dtype: str):
    np.testing.assert_array_equal(xp.repeat(VECTOR, of([2, 1], dtype)), [1, 1, 2])


@pytest.mark.parametrize("transform", [xp.fft.fftn, xp.fft.ifftn])
@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "int8"])
def test_a_transform_along_no_axes_is_complex(transform: Any, dtype: str):
    wanted = xp.fft.fft(of([1], dtype)).dtype
    for x in (of([1, 2], dtype), of(1, dtype), of([], dtype)):
        result = transform(x, axes=())
        assert result.dtype == transform(x.to("meta"), axes=()).dtype == wanted
        assert not np.shares_memory(result.array, x.array)
        np.testing.assert_array_equal(result, x)
