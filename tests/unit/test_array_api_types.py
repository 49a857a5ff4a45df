"""``opdispatch.array_api``: types, what arrays are made of, devices, and what is refused."""

from __future__ import annotations

import itertools
import math
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from opdispatch import (
    ArgumentError,
    CpuFallbackWarning,
    DeviceError,
    Library,
    MetaArray,
    NoKernelError,
    ScalarRangeError,
    Tensor,
    cpu_fallback,
    numpy_dtype_promotion,
    ops,
    register_backend,
)
from opdispatch import array_api as xp
from tests.simulated_accelerator import Accelerator, AcceleratorArray


def test_types_and_what_is_asked_of_them():
    assert xp.result_type(xp.int8, xp.uint8) == xp.int16
    assert xp.result_type(xp.ones(2, dtype=xp.float32), 1.0) == xp.float32
    assert xp.can_cast(xp.int8, xp.int64)
    assert xp.isdtype(xp.float32, "real floating")
    assert xp.finfo(xp.ones(1)).bits == xp.iinfo(xp.int64).bits == 64
    info = xp.__array_namespace_info__()
    assert info.devices()[0] == info.default_device() == "cpu"
    assert set(info.dtypes(kind="complex floating")) == {"complex64", "complex128"}
    assert info.default_dtypes()["real floating"] == xp.float64
    assert math.isnan(xp.nan)
    assert (xp.pi, xp.e, xp.inf, xp.newaxis) == (math.pi, math.e, math.inf, None)


def test_arrays_without_dimensions_stand_for_numbers():
    one = xp.asarray(1.5)
    assert xp.full(2, one).array.tolist() == [1.5, 1.5]
    assert xp.full_like(xp.ones(1), np.float32(2.5)).array.tolist() == [2.5]
    assert xp.linspace(one, xp.asarray(2.5), 2).array.tolist() == [1.5, 2.5]
    assert xp.arange(xp.asarray(3)).array.tolist() == [0, 1, 2]


def test_arrays_out_of_other_objects():
    assert xp.asarray([[1, 2], [3, 4]]).shape == (2, 2)
    assert xp.asarray([xp.asarray(1.0), 2.0]).dtype == xp.float64
    x = np.ones(2)
    assert xp.asarray(x).array is x
    assert xp.asarray(x, copy=True).array is not x
    assert xp.asarray(xp.asarray(x), dtype=xp.float32).dtype == xp.float32
    assert np.shares_memory(xp.from_dlpack(x).array, x)
    assert not np.shares_memory(xp.from_dlpack(x, copy=True).array, x)
    for obj, dtype in (([1, 2], None), (xp.ones(2), xp.int8)):
        with pytest.raises(ValueError, match=r"must (copy|be copied)"):
            xp.asarray(obj, dtype=dtype, copy=False)
    with pytest.raises(ArgumentError, match="from_dlpack requires an object with __dlpack__"):
        xp.from_dlpack([1])


@pytest.mark.parametrize(
    ("one", "other"),
    [("int32", "float32"), ("uint64", "int64"), ("bool", "int8"), ("int8", "complex64")],
)
def test_types_without_a_common_one_are_refused(one: str, other: str):
    x, y = xp.ones(2, dtype=getattr(xp, one)), xp.ones(2, dtype=getattr(xp, other))
    for call in (lambda: x + y, lambda: xp.result_type(y, x), lambda: ops.array.add(x, y)):
        with pytest.raises(ArgumentError, match="has no common type"):
            call()


@pytest.mark.parametrize("order", list(itertools.permutations(["uint8", "uint64", "int8"])))
def test_nor_need_three_have_one_of_which_the_first_has_one_with_each(order: tuple[str, ...]):
    arrays = [np.ones(2, dtype) for dtype in order]
    for call in (ops.array.concat, ops.array.stack, lambda values: ops.array.clip(*values)):
        for values in (arrays, [Tensor(each).to("meta") for each in arrays]):
            with pytest.raises(ArgumentError, match="has no common type"):
                call(values)


@pytest.mark.parametrize(
    ("dtype", "scalar"), [("int32", 1.5), ("bool", 1), ("int8", 1j), ("uint8", True)]
)
def test_scalars_without_a_common_type_are_refused(dtype: str, scalar: complex):
    with pytest.raises(ArgumentError, match="has no common type"):
        xp.ones(2, dtype=getattr(xp, dtype)) + scalar


_RECORD = np.dtype((np.record, [("a", int)]))


@pytest.mark.parametrize("dtype", [object, "U3", "M8[s]", [("a", int)], _RECORD])
def test_arrays_of_no_numbers_are_refused(dtype: Any):
    array = np.zeros(2, dtype)
    for call in (xp.asarray, xp.sum, lambda x: xp.add(x, x), lambda x: xp.add(x, 1)):
        with pytest.raises(ArgumentError, match="it takes bool, integers, floating-point and"):
            call(array)


@pytest.mark.parametrize("dtype", ["float32", "int8", "bool", "complex64"])
def test_none_is_no_number(dtype: str):
    for obj in (None, [None], [1, [None]][1:], (1.0, None)):
        with pytest.raises(ArgumentError, match="array::asarray does not take arrays of object"):
            xp.asarray(obj, dtype=dtype)
    assert xp.asarray([2**64, Fraction(1, 2)], dtype=xp.float64).array.tolist() == [2.0**64, 0.5]


@pytest.mark.parametrize("value", [3, [1, 2], "nothing", object()])
def test_type_functions_refuse_other_values(value: Any):
    for ask in (xp.finfo, xp.iinfo, lambda it: xp.can_cast(it, xp.int8)):
        with pytest.raises(ArgumentError, match="is neither an array nor a type"):
            ask(value)


@pytest.mark.parametrize("device", ["foo", "", 1, "CPU"])
def test_dtypes_of_unknown_device_raise_device_error(device: Any):
    info = xp.__array_namespace_info__()
    for ask in (info.dtypes, info.default_dtypes):
        with pytest.raises(DeviceError, match="there is no device"):
            ask(device=device)
    assert info.dtypes(device="privateuseone:1") == info.dtypes()  # that of a remote tensor


def test_types_of_ml_dtypes_are_of_a_kind():
    for name, kind in (
        ("bfloat16", "real floating"),
        ("float8_e5m2", "real floating"),
        ("float8_e4m3fn", "real floating"),
        ("int4", "signed integer"),
        ("uint4", "unsigned integer"),
    ):
        scalar = getattr(ml_dtypes, name)
        for dtype in (scalar, np.dtype(scalar)):
            assert xp.isdtype(dtype, kind)
            assert xp.isdtype(dtype, ("bool", "numeric"))
            assert xp.isdtype(dtype, dtype)
            assert xp.isdtype(dtype, (xp.float32, scalar))
            assert not xp.isdtype(dtype, ("bool", "complex floating", xp.float32))
            assert not xp.isdtype(xp.float32, ("bool", dtype))
            assert xp.isdtype(dtype, "integral") == (not name.startswith(("float", "b")))
        with pytest.raises(ValueError, match="not a known kind"):
            xp.isdtype(scalar, ("numeric", "number"))
        with pytest.raises(TypeError):
            xp.isdtype(scalar, ["numeric"])


def test_a_matrix_of_numpys_is_an_array_of_the_standard():
    matrix = np.arange(6.0).reshape(2, 3).view(np.matrix)
    for x in (xp.asarray(matrix), Tensor(matrix), xp.zeros((2, 3)) + matrix):
        assert type(x.array) is np.ndarray
        assert (x[0].shape, xp.sum(x, axis=0).shape) == ((3,), (3,))
    x = Tensor(matrix)
    x[0] = 7.0
    assert np.shares_memory(x.array, matrix)
    assert matrix[0, 2] == 7.0


def test_types_of_ml_dtypes_are_numbers():
    x = Tensor(np.ones(2, ml_dtypes.bfloat16))
    assert (x + x * 2.0).array.tolist() == [3.0, 3.0]
    assert xp.sum(x).dtype == ml_dtypes.bfloat16
    assert xp.add(x, xp.ones(2, dtype=xp.float32)).dtype == xp.float32


@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize("dtype", [np.int8, np.int32, np.uint64, np.bool_])
def test_bfloat16_has_no_common_type_with_integers(device: str, dtype: Any):
    x = Tensor(np.ones((2, 2), ml_dtypes.bfloat16)).to(device)
    other = Tensor(np.ones((2, 2), dtype)).to(device)
    calls = [xp.add, xp.matmul, xp.tensordot, lambda x, y: xp.concat([x, y]), xp.atan2]
    for call in calls:
        for pair in ((x, other), (other, x)):
            with pytest.raises(ArgumentError, match="has no common type"):
                call(*pair)


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_float16_and_bfloat16_are_calculated_in_float32(device: str):
    x = Tensor(np.full((2, 2), 1.5, ml_dtypes.bfloat16)).to(device)
    other = Tensor(np.full((2, 2), 2.0, np.float16)).to(device)
    results = [xp.add(x, other), xp.matmul(x, other), xp.tensordot(x, other, axes=1)]
    assert {each.dtype for each in results} == {xp.float32}
    if device == "cpu":
        assert results[2].array.tolist() == [[6.0, 6.0], [6.0, 6.0]]
    for call in (lambda: xp.concat([x, other]), lambda: xp.where(x == x, x, other)):
        with pytest.raises(ArgumentError, match=r"common|not defined for bool and bfloat16"):
            call()


@pytest.mark.parametrize("meta", [False, True])
def test_a_python_float_does_not_change_the_type_of_bfloat16(meta: bool):
    bfloat16 = np.dtype(ml_dtypes.bfloat16)
    x = Tensor(np.array([1.0, 100.0], bfloat16)).to("meta" if meta else "cpu")
    results = [x * 1.003, 1 - x, 2.5 / x, x**2.5, 2.0**x, x // 2, xp.maximum(x, 0.0)]
    results += [xp.where(x > 2.0, x, 0.0), xp.where(x > 2.0, 0.5, x), xp.hypot(1.0, x)]
    assert {each.dtype for each in results} == {bfloat16}
    assert (x > 2.0).dtype == np.bool_
    assert (x * 1j).dtype == np.complex64
    x += 1.0
    assert x.dtype == bfloat16
    assert xp.isin(x, 1.0, invert=True).dtype == bool
    if not meta:
        # The scalar is not rounded first: 1.003 would be 1.
        assert results[0].array.tolist() == [1.0, 100.5]
        assert x.array.tolist() == [2.0, 101.0]
        assert xp.nextafter(x, 0.0).array.tolist() == [1.9921875, 100.5]
    assert (Tensor(np.ones(2, np.float16)) * 1.5).dtype == np.float16
    four_bits = Tensor(np.array([1, 2], ml_dtypes.int4))
    assert (four_bits * 1.5).array.tolist() == [1.5, 3.0]


def test_a_gradient_of_bfloat16_stays_so_beside_scalars():
    x = Tensor(np.array([1.0, 2.0], ml_dtypes.bfloat16), requires_grad=True)
    xp.sum(x * 1.5 + x**2.0).backward()
    assert x.grad.dtype == ml_dtypes.bfloat16
    assert x.grad.array.tolist() == [3.5, 5.5]


@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_factorizations_take_no_16_bits(device: str, dtype: Any):
    x = Tensor(np.eye(2).astype(dtype)).to(device)
    for name in ("inv", "det", "slogdet", "qr", "svd", "eigh", "cholesky", "pinv", "matrix_rank"):
        with pytest.raises(ArgumentError, match=f"{name} was given b?float16; expected .* 32 bits"):
            getattr(xp.linalg, name)(x)


def test_shapes_that_do_not_broadcast_are_both_named():
    with pytest.raises(ValueError, match=r"\(2,3\) \(4,\)"):
        xp.ones((2, 3)) + xp.ones(4)


def test_numbers_that_are_too_large_are_refused():
    with pytest.raises(OverflowError):
        xp.ones(2, dtype=xp.int8) + 1000
    with pytest.raises(ArgumentError, match="array is too big"):
        xp.zeros((2**62, 2**62))


@pytest.mark.parametrize("device", ["cuda:99", "nowhere"])
def test_a_device_that_is_not_there_is_an_error(device: str):
    with pytest.raises((DeviceError, ArgumentError), match=r"GPU|no device|driver|'cpu'"):
        xp.zeros(2, device=device)
    with pytest.raises(DeviceError):
        xp.ones(2).to_device(device)


def test_other_devices_have_the_kernels_of_the_host(recwarn: pytest.WarningsRecorder):
    """If they ask for it."""
    accelerator = Accelerator()
    with closing(register_backend(accelerator)), Library("_", "IMPL") as library:
        device = "privateuseone:1"
        x = xp.ones(3, device=device)
        assert isinstance(x.array, AcceleratorArray)
        with pytest.raises(NoKernelError, match="kernels serve CPU, CUDA, Meta"):
            x + x
        library.fallback(cpu_fallback, "PrivateUse1")
        y = xp.sum(x + 2.0 * x)
        assert (y.device, float(accelerator.to_host(y.array))) == (device, 9.0)
    assert {warning.category for warning in recwarn} <= {CpuFallbackWarning}


def test_meta_tensors_have_shapes_and_no_elements():
    x = xp.zeros((2**20, 2**20), device="meta")
    y = xp.sum(xp.sin(x) + x, axis=0)
    assert isinstance(y.array, MetaArray)
    assert (y.shape, y.dtype, y.device) == ((2**20,), xp.float64, "meta")


@pytest.mark.parametrize(
    ("call", "shapes"),
    [
        (lambda: xp.matmul(xp.zeros((2, 3)), xp.zeros(4)), r"matmul of \[2, 3\] and \[4\]"),
        (lambda: xp.broadcast_to(xp.zeros((2, 3)), (4,)), r"broadcast_to of \[2, 3\] and \[4\]"),
        (lambda: xp.concat([xp.zeros(2), xp.zeros((2, 2))]), r"concat of \[2\] and \[2, 2\]"),
        (lambda: xp.linalg.solve(xp.eye(3), xp.zeros((4, 1))), r"solve of \[3, 3\] and \[4, 1\]"),
        (lambda: xp.reshape(xp.zeros(2), (3,)), r"reshape of \[2\] and \[3\]"),
        (lambda: xp.zeros(2) + xp.zeros(3), r"^operands could not .* shapes \(2,\) \(3,\)"),
    ],
)
def test_shapes_that_do_not_fit_are_both_named(call: Any, shapes: str):
    with pytest.raises(ValueError, match=shapes):
        call()


@pytest.mark.parametrize(
    "call",
    [
        lambda i, f: xp.where(i > 1, i, f),
        lambda i, f: xp.where(i > 1, i, 1.5),
        lambda i, f: xp.concat([f, f, i]),
        lambda i, f: xp.stack([i, f]),
        lambda i, f: xp.clip(i, f),
        lambda i, f: xp.clip(f, 0.0, i),
    ],
)
def test_types_without_a_common_one_are_not_joined(call: Any):
    with pytest.raises(ArgumentError, match="no common type"):
        call(xp.asarray([1, 2]), xp.asarray([1.0, 2.0]))


# -- as NumPy promotes -----------------------------------------------------------------------------

DTYPES = ["bool", "int8", "uint8", "int64", "uint64", "float32", "float64", "complex64"]


@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize("other", DTYPES)
@pytest.mark.parametrize("one", DTYPES)
def test_types_are_promoted_as_numpy_does_where_that_is_asked_for(
    one: str, other: str, device: str
):
    x, y = np.ones(3, one), np.full(3, 2, other)
    a, b = (Tensor(each).to(device) for each in (x, y))
    with numpy_dtype_promotion():
        found = [a + b, xp.multiply(a, b), xp.concat([a, b]), xp.where(a == b, a, b)]
        assert xp.result_type(a, b) == np.result_type(x, y)
    expected = [x + y, x * y, np.concatenate([x, y]), np.where(x == y, x, y)]
    assert [(each.shape, each.dtype) for each in found] == [(e.shape, e.dtype) for e in expected]
    if device == "cpu":
        for each, array in zip(found, expected, strict=True):
            np.testing.assert_array_equal(each.array, array)


@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize("scalar", [True, 3, 1.5, 2j])
@pytest.mark.parametrize("dtype", DTYPES)
def test_numpy_promotion_applies_to_python_scalars(dtype: str, scalar: complex, device: str):
    x = np.ones(3, dtype)
    with numpy_dtype_promotion():
        found = Tensor(x).to(device) * scalar
        assert xp.result_type(found, scalar) == np.result_type((x * scalar).dtype, scalar)
    assert found.dtype == (x * scalar).dtype
    if device == "cpu":
        np.testing.assert_array_equal(found.array, x * scalar)


@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize("number", [np.inf, -0.5, 2j])
def test_numpy_promotion_lets_where_mix_floats_and_integers(number: complex, device: str):
    x = np.asarray([1, 2], np.int8)
    condition, given = (Tensor(each).to(device) for each in (x > 1, x))
    with numpy_dtype_promotion():
        found = [xp.where(condition, given, number), xp.where(condition, number, given)]
    for each, expected in zip(found, ([number, 2], [1, number]), strict=True):
        assert each.dtype == np.asarray(expected).dtype
        if device == "cpu":
            np.testing.assert_array_equal(each.array, expected)


def test_numpy_promotion_refuses_non_numeric_arrays():
    with numpy_dtype_promotion(), pytest.raises(ArgumentError, match="does not take arrays of <U1"):
        ops.array.add(np.ones(2), np.array(["a", "b"]))


def test_numpy_promotion_is_limited_to_its_block_and_task():
    counts, weights = xp.asarray([1, 2]), xp.asarray([0.5, 0.5])

    @numpy_dtype_promotion()
    def mean() -> Tensor:
        return xp.sum(counts * weights)

    assert float(mean()) == 1.5
    with numpy_dtype_promotion():
        with numpy_dtype_promotion(False), pytest.raises(ArgumentError):
            counts * weights
        with ThreadPoolExecutor() as pool, pytest.raises(ArgumentError):
            pool.submit(lambda: counts * weights).result()
        assert (counts * weights).dtype == np.float64
    with pytest.raises(ArgumentError, match="astype, or see numpy_dtype_promotion"):
        counts * weights


def test_gradients_have_the_types_of_what_they_are_of():
    x = Tensor(np.ones(3, np.float32), requires_grad=True)
    with numpy_dtype_promotion():
        y = x * xp.arange(3)
        assert y.dtype == np.float64
        xp.sum(y / 2).backward()
    assert x.grad is not None
    assert (x.grad.dtype, x.grad.array.tolist()) == (np.float32, [0.0, 0.5, 1.0])


Z, BOOLS = np.ones(2, np.complex64), np.ones(2, bool)
NOT_DEFINED = {
    "atan2 is not defined for complex64 and complex64": lambda x, z, b: xp.atan2(z, z),
    "bitwise_and is not defined for float64 and float64": lambda x, z, b: x & x,
    "floor_divide is not defined for complex64 and 2.0": lambda x, z, b: z // 2.0,
    "ceil is not defined for complex64": lambda x, z, b: xp.ceil(z),
    "negative is not defined for bool": lambda x, z, b: -b,
    "positive is not defined for bool": lambda x, z, b: +b,
    "sign is not defined for bool": lambda x, z, b: xp.sign(b),
    "subtract is not defined for bool and bool": lambda x, z, b: b - b,
    "bitwise_left_shift is not defined for 1.5 and float64": lambda x, z, b: 1.5 << x,
}


@pytest.mark.parametrize(("sentence", "call"), NOT_DEFINED.items(), ids=NOT_DEFINED)
def test_types_that_a_function_is_not_for_are_named_on_every_device(sentence: str, call: Any):
    tensors = [Tensor(each) for each in (np.ones(2), Z, BOOLS)]
    for given in (tensors, [each.to("meta") for each in tensors]):
        with pytest.raises(ArgumentError, match=f"^array::{sentence}"):
            call(*given)


TOO_LARGE = {
    "add": lambda x: x + 300,
    "pow": lambda x: 300**x,
    "clip": lambda x: xp.clip(x, 300),
    "clip from above": lambda x: xp.clip(x, None, -129),
    "full": lambda x: xp.full((2,), 300, dtype=x.dtype, device=x.device),
    "full_like": lambda x: xp.full_like(x, 300),
    "where": lambda x: xp.where(x > 0, x, 300),
    "arange": lambda x: xp.arange(300, 302, dtype=x.dtype, device=x.device),
    "asarray": lambda x: xp.asarray([[1, 2], [3, -300]], dtype=x.dtype, device=x.device),
    "setitem": lambda x: x.__setitem__(0, 300),
    "setitem of infinity": lambda x: x.__setitem__(0, math.inf),
    "in place": lambda x: x.__iadd__(300),
}


@pytest.mark.parametrize("call", TOO_LARGE.values(), ids=TOO_LARGE)
def test_a_number_that_is_too_large_for_its_array_is_so_on_every_device(call: Any):
    x = Tensor(np.ones(2, np.int8))
    for each in (x, x.to("meta")):
        with pytest.raises(
            ScalarRangeError,
            match=r"^array::.* was given (-?300|-129|inf), which is out of bounds for int8: its "
            "numbers are -128 to 127$",
        ):
            call(each)
    for each in (x, x.to("meta")):
        assert xp.clip(each, -300, 300).dtype == xp.int8


@pytest.mark.parametrize("dtype", ["float32", "complex64"])
def test_an_int_that_is_more_than_any_float_is_out_of_bounds(dtype: str):
    for number in (10**400, -(10**10_000)):
        with pytest.raises(ScalarRangeError, match=f"a very long int, .* for {dtype}: its numbers"):
            xp.asarray([1.0, number], dtype=dtype)


@pytest.mark.parametrize("bounds", [(1.5, None), (None, 2.5), (1, 2.5), (1j, None), (1, 3)])
@pytest.mark.parametrize("dtype", ["int32", "float32", "bool", "complex64"])
def test_numpy_promotion_applies_to_scalar_bounds_of_clip(dtype: str, bounds: Any):
    """It cut them to integers."""
    x = np.array([0, 4], dtype)
    with numpy_dtype_promotion():
        found = [xp.clip(Tensor(x).to(device), *bounds) for device in ("cpu", "meta")]
    expected = np.clip(x, *bounds)
    assert [each.dtype for each in found] == [expected.dtype] * 2
    np.testing.assert_array_equal(found[0], expected)


def test_numpy_promotion_applies_to_array_bounds_of_clip():
    x, low = np.array([0, 4]), np.array([0.5, 1.5])
    with numpy_dtype_promotion():
        found = [
            xp.clip(Tensor(x).to(device), Tensor(low).to(device), 3) for device in ("cpu", "meta")
        ]
    assert [each.dtype for each in found] == [xp.float64] * 2
    np.testing.assert_array_equal(found[0], [0.5, 3.0])
