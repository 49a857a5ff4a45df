"""Casts by autocast: by policy, once for each leaf, and for operators of one's own."""

import ml_dtypes
import numpy as np
import pytest

from opdispatch import (
    ArgumentError,
    DispatchKey,
    Library,
    MetaArray,
    OperatorNotFoundError,
    Tensor,
    autocast,
    clear_autocast_cache,
    inference_mode,
    is_autocast_cache_enabled,
    is_autocast_enabled,
    no_grad,
    ops,
    register_autocast,
)
from opdispatch import array_api as xp
from opdispatch.functionalities.autocast import (
    cast_inputs,
    fp32,
    fp32_set_opt_dtype,
    lower_precision_fp,
    make_autocast_kernel,
    promote,
)

BF16, F16 = np.dtype(ml_dtypes.bfloat16), np.dtype(np.float16)
F32, F64 = np.dtype(np.float32), np.dtype(np.float64)


def tensor(dtype=F32, requires_grad=False, extent=2):
    return Tensor(np.ones((extent, extent), dtype), requires_grad=requires_grad)


@pytest.fixture
def seen():
    """Return a list of the arguments' dtypes in each call of the operator below."""
    return []


@pytest.fixture
def define_cast(define, seen):
    """``define_cast(policy, schema)``: an operator that notes its dtypes, with that policy."""

    def define_cast(policy, schema="t::f(Tensor x, Tensor? y=None) -> ()"):
        def note(*args):
            seen.append([None if each is None else each.dtype for each in args])

        return define(schema, CPU=note, AutocastCPU=make_autocast_kernel(policy, "cpu"))

    return define_cast


# -- policies ------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [F32, F16, BF16])
def test_lower_precision_fp_casts_to_the_dtype_of_the_block(define_cast, seen, caller, dtype):
    op = define_cast(lower_precision_fp)
    with autocast("cpu", dtype=dtype if dtype != F32 else None):
        op(tensor(), tensor(F16))
    expected = BF16 if dtype == F32 else dtype
    assert seen == [[expected, expected]]


@pytest.mark.parametrize("dtype", [F64, np.dtype(np.int64), np.dtype(bool), np.dtype("c8")])
@pytest.mark.parametrize("policy", [lower_precision_fp, fp32, promote, cast_inputs(F16)])
def test_float64_and_what_is_not_floating_point_is_left_alone(define_cast, seen, policy, dtype):
    op = define_cast(policy)
    with autocast("cpu"):
        op(tensor(dtype))
    assert seen == [[dtype, None]]


def test_float8_is_floating_point(define_cast, seen):
    op = define_cast(fp32)
    with autocast("cpu"):
        op(tensor(ml_dtypes.float8_e4m3fn), tensor(ml_dtypes.int4))
    assert seen == [[F32, np.dtype(ml_dtypes.int4)]]


def test_fp32_casts_to_float32(define_cast, seen):
    op = define_cast(fp32)
    with autocast("cpu"):
        op(tensor(BF16), tensor(F16))
    assert seen == [[F32, F32]]


@pytest.mark.parametrize(
    ("given", "asked", "expected"),
    [(BF16, None, F32), (F32, None, F32), (BF16, F64, F64), (F64, None, None)],
)
def test_fp32_set_opt_dtype_asks_for_float32_where_nothing_is_asked_for(
    define, given, asked, expected
):
    seen = []
    op = define(
        "t::sum(Tensor x, *, ScalarType? dtype=None) -> ()",
        CPU=lambda x, *, dtype: seen.append((x.dtype, dtype)),
        AutocastCPU=make_autocast_kernel(fp32_set_opt_dtype, "cpu"),
    )
    with autocast("cpu"):
        op(tensor(given), dtype=asked)
    assert seen == [(given, expected)]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ((F32, BF16), F32),
        ((BF16, F32), F32),
        ((F16, F32), F32),
        ((BF16, BF16), BF16),
        ((F64, BF16), BF16),
        ((F64, F32), F32),
    ],
)
def test_promote_casts_to_the_widest(define_cast, seen, given, expected):
    op = define_cast(promote)
    with autocast("cpu"):
        op(*map(tensor, given))
    assert seen == [[F64 if dtype == F64 else expected for dtype in given]]


def test_promote_refuses_what_is_neither(define_cast):
    op = define_cast(promote)
    with (
        autocast("cpu"),
        pytest.raises(ArgumentError, match="t::f was given tensors of float16 under autocast"),
    ):
        op(tensor(F16))


def test_lists_are_cast_tensor_by_tensor(define):
    seen = []
    op = define(
        "t::f(Tensor[] xs, Tensor?[] ys) -> ()",
        CPU=lambda xs, ys: seen.append([getattr(each, "dtype", None) for each in (*xs, *ys)]),
        AutocastCPU=make_autocast_kernel(lower_precision_fp, "cpu"),
    )
    with autocast("cpu"):
        op([tensor(), tensor(F64)], [None, tensor(F16)])
    assert seen == [[BF16, F64, None, BF16]]


def test_tensors_elsewhere_and_plain_arrays_among_tensors(define):
    """Of the key's device type are plain arrays, too; without a tensor, nothing is cast."""
    seen = []

    def note(x, y):
        seen.append((x.dtype, y.dtype))

    kernel = make_autocast_kernel(lower_precision_fp, "cpu")
    op = define("t::f(Tensor x, Tensor y) -> ()", CPU=note, Meta=note, AutocastCPU=kernel)
    with autocast("cpu"):
        op(tensor(), np.ones(2, np.float32))
        op(np.ones(2, np.float32), np.ones(2, np.float32))
        op(tensor(), Tensor(MetaArray((2,), F32)))
    assert seen == [(BF16, BF16), (F32, F32), (BF16, F32)]


def test_the_key_is_off_while_the_operator_runs(define_cast, seen, define):
    inner = define_cast(lower_precision_fp)
    enabled = []

    def outer(x):
        enabled.append(is_autocast_enabled("cpu"))
        inner(tensor())

    op = define(
        "t::g(Tensor x) -> ()",
        CPU=outer,
        AutocastCPU=make_autocast_kernel(lower_precision_fp, "cpu"),
    )
    with autocast("cpu"):
        op(tensor())
        assert is_autocast_enabled("cpu")
    assert (enabled, seen) == ([False], [[F32, None]])


def test_an_error_of_the_operator_leaves_the_block_as_it_was(define):
    def fail(x):
        raise ZeroDivisionError

    op = define("t::f(Tensor x) -> ()", CPU=fail, AutocastCPU=make_autocast_kernel(fp32, "cpu"))
    with autocast("cpu"):
        with pytest.raises(ZeroDivisionError):
            op(tensor())
        assert is_autocast_enabled("cpu")
    assert not is_autocast_enabled("cpu")


# -- the block -----------------------------------------------------------------------------------


def test_blocks_in_blocks():
    x = tensor()
    with autocast("cpu"):
        assert xp.matmul(x, x).dtype == BF16
        with autocast("cpu", enabled=False):
            assert xp.matmul(x, x).dtype == F32
            with autocast("cpu", dtype=F16):
                assert xp.matmul(x, x).dtype == F16
        with autocast("cuda"):
            assert xp.matmul(x, x).dtype == BF16
    assert xp.matmul(x, x).dtype == F32


@pytest.mark.parametrize("dtype", [F32, F64, np.int32])
def test_a_dtype_that_is_not_cast_to_is_warned_about(dtype):
    with pytest.warns(UserWarning, match="casts to bfloat16 or float16, not to"):
        block = autocast("cpu", dtype=dtype)
    with block:
        assert not is_autocast_enabled("cpu")
        assert xp.matmul(tensor(), tensor()).dtype == F32
    autocast("cuda", dtype=F32)  # no warning
    autocast("cpu", dtype=F32, enabled=False)


@pytest.mark.parametrize("dtype", ["half a float", "f4,", object(), "O", "M8[s]"])
@pytest.mark.parametrize("device_type", ["cpu", "cuda"])
def test_autocast_refuses_non_numeric_dtype(device_type, dtype):
    with pytest.raises(ArgumentError, match="which is not a numeric dtype"):
        autocast(device_type, dtype=dtype)


# -- the cache -----------------------------------------------------------------------------------


@pytest.fixture
def casts(define):
    """``casts(x)``: the node that has cast ``x``, or None; equal ones mean one cast."""

    def note(x):
        return x

    op = define(
        "t::f(Tensor x) -> Tensor",
        CompositeImplicitAutograd=note,
        AutocastCPU=make_autocast_kernel(lower_precision_fp, "cpu"),
    )
    return lambda x: op(x).grad_fn


def test_a_leaf_that_requires_gradients_is_cast_once_in_the_outermost_block(casts):
    x = tensor(requires_grad=True)
    with autocast("cpu"):
        first = casts(x)
        with autocast("cpu"):
            assert casts(x) is first
        assert casts(x) is first
    with autocast("cpu"):
        assert casts(x) is not first


def test_only_casts_of_float32_leaves_are_cached(casts):
    x = tensor(requires_grad=True)
    with autocast("cpu"):
        for each in (x * 1.0, x[0], tensor(F16, requires_grad=True)):
            assert casts(each) is not casts(each)


def test_the_cache_can_be_switched_off_and_cleared(casts):
    x = tensor(requires_grad=True)
    with autocast("cpu", cache_enabled=False):
        assert not is_autocast_cache_enabled()
        assert casts(x) is not casts(x)
        with autocast("cpu"):
            assert not is_autocast_cache_enabled()
    assert is_autocast_cache_enabled()
    clear_autocast_cache()  # outside of all blocks there is none
    with autocast("cpu"):
        first = casts(x)
        clear_autocast_cache()
        assert casts(x) is not first


def test_another_dtype_inside_is_cast_to_and_not_taken_from_the_cache():
    """PyTorch 2.13 gives what the outer block has cast."""
    x = tensor(requires_grad=True)
    with autocast("cpu"):
        assert xp.matmul(x, x).dtype == BF16
        with autocast("cpu", dtype=F16):
            assert xp.matmul(x, x).dtype == F16


def test_a_leaf_that_was_written_to_is_cast_anew():
    """PyTorch 2.13 gives the product of what it was before."""
    x = tensor(requires_grad=True)
    with autocast("cpu"):
        assert xp.matmul(x, x)[0, 0].item() == 2
        with no_grad():
            x[...] = 2.0
        assert xp.matmul(x, x)[0, 0].item() == 8


@pytest.mark.parametrize("mode", [no_grad, inference_mode])
def test_cast_cached_under_no_grad_is_not_used_for_recording(casts, mode):
    x = tensor(requires_grad=True)
    with autocast("cpu"):
        with mode():
            assert casts(x) is None
        assert casts(x) is not None


def test_gradients_go_through_the_casts(define):
    x, y = tensor(requires_grad=True), tensor(BF16, requires_grad=True)
    with autocast("cpu"):
        joined = xp.concat([x, y])
    assert joined.dtype == F32
    xp.sum(joined * 3.0).backward()
    assert (x.grad.dtype, y.grad.dtype) == (F32, BF16)
    assert x.grad.array.tolist() == y.grad.array.tolist() == [[3, 3], [3, 3]]


# -- the operators of array ----------------------------------------------------------------------


def test_products_of_16_bit_numbers_are_added_up_in_float32():
    ones = Tensor(np.ones(1000, np.float32))
    with autocast("cpu"):
        for result in (xp.vecdot(ones, ones), xp.tensordot(ones, ones, axes=1), ones @ ones):
            assert result.dtype == BF16
            assert float(result) == 1000


@pytest.mark.parametrize("dtype", [BF16, F16])
def test_a_product_is_that_of_float32_rounded_once(dtype):
    random = np.random.default_rng(0)
    x, y = (random.standard_normal((40, 40)).astype(dtype) for _ in range(2))
    exact = (x.astype(F32) @ y.astype(F32)).astype(dtype)
    assert np.array_equal(ops.array.matmul(x, y), exact)
    meta = ops.array.matmul(MetaArray(x.shape, dtype), MetaArray(y.shape, dtype))
    assert meta.dtype == ops.array.matmul(x, y).dtype == dtype


REDUCTIONS = ("sum", "mean", "std", "var", "prod", "cumulative_sum", "cumulative_prod")


@pytest.mark.parametrize("name", REDUCTIONS)
def test_bfloat16_is_added_up_in_float32(name):
    x = (np.arange(600) % 7 / 8 + 0.7).astype(BF16)
    function = getattr(xp, name)
    result = function(Tensor(x))
    expected = function(Tensor(x.astype(F32))).array.astype(BF16)
    assert result.dtype == function(Tensor(MetaArray(x.shape, BF16))).dtype == BF16
    assert np.array_equal(result.array, expected)
    if name in ("sum", "prod", "cumulative_sum", "cumulative_prod"):
        assert function(Tensor(x), dtype=F64).dtype == F64


def test_norms_and_bounds_of_bfloat16_are_bfloat16():
    x = Tensor(np.ones((3, 3), BF16))
    results = [
        xp.linalg.vector_norm(x),
        xp.linalg.matrix_norm(x),
        xp.linalg.trace(x),
        xp.linalg.matrix_power(x, 2),
        xp.clip(x, 0.0, 0.5),
    ]
    assert [each.dtype for each in results] == [BF16] * 5
    assert [float(xp.sum(each)) for each in results] == [3, 3, 3, 27, 4.5]


# -- operators of one's own ----------------------------------------------------------------------


@pytest.fixture
def library(dispatcher):
    made = Library("mine", "DEF", dispatcher=dispatcher)
    made.define("scale(Tensor x, *, Tensor by) -> Tensor")
    made.impl("scale", lambda x, *, by: x.array * by.array, "CPU")
    return made


def test_an_operator_of_ones_own_is_cast_for(library, dispatcher, caller):
    handle = register_autocast("mine::scale", "cpu", np.float16, lib=library)
    op = dispatcher.get_schema("mine::scale")
    with autocast("cpu"):  # whatever the block's dtype is
        assert op(tensor(), by=tensor()).dtype == F16
    assert op(tensor(), by=tensor()).dtype == F32
    handle.close()
    with autocast("cpu"):
        assert op(tensor(), by=tensor()).dtype == F32


def test_register_autocast_accepts_several_devices_and_a_handle(library, dispatcher):
    op = dispatcher.get_schema("mine::scale")
    for device_type in ("cpu", "cuda", "privateuseone"):
        register_autocast(op, device_type, "float32", lib=library)
    keys = {kernel.key for kernel in op.kernels()}
    assert keys == {
        *(DispatchKey.CPU, DispatchKey.AutocastCPU, DispatchKey.AutocastCUDA),
        DispatchKey.AutocastPrivateUse1,
    }


def test_without_a_library_it_stays():
    with Library("stays", "DEF") as library:
        library.define("f(Tensor x) -> Tensor")
        library.impl("f", lambda x: x, "CPU")
        register_autocast("stays::f", "cpu", F16).close()
        with register_autocast(ops.stays.f.default, "cpu", F16), autocast("cpu"):
            assert ops.stays.f(tensor()).dtype == F16


def test_register_autocast_refuses_unknown_device_operator_or_dtype(library):
    with pytest.raises(ArgumentError, match="no device type 'meta'"):
        register_autocast("mine::scale", "meta", F16, lib=library)
    with pytest.raises(OperatorNotFoundError, match="mine::shift"):
        register_autocast("mine::shift", "cpu", F16, lib=library)
    with pytest.raises(
        ArgumentError, match="cannot cast to 'half a float', which is not a numeric dtype"
    ):
        register_autocast("mine::scale", "cpu", "half a float", lib=library)
