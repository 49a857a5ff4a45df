"""Autocast beside PyTorch's, where it is installed: the dtypes of results, and who has a policy."""

import contextlib
import itertools

import ml_dtypes
import numpy as np
import pytest

from opdispatch import Tensor, autocast, get_autocast_dtype, is_autocast_enabled
from opdispatch import array_api as xp
from opdispatch.functionalities.autocast import lower_precision_fp, promote
from opdispatch.native.array import autocast as array_autocast
from opdispatch.native.array.operators.functions import FUNCTIONS

torch = pytest.importorskip("torch")
LA = torch.linalg

DTYPES = {
    torch.float32: np.dtype(np.float32),
    torch.float16: np.dtype(np.float16),
    torch.bfloat16: np.dtype(ml_dtypes.bfloat16),
    torch.float64: np.dtype(np.float64),
    torch.int64: np.dtype(np.int64),
    torch.complex64: np.dtype(np.complex64),
    torch.complex128: np.dtype(np.complex128),
}
F32, F16, BF16, F64, I64, *_ = DTYPES
MATRIX = [[4.0, 1.0, 0.0], [1.0, 3.0, 1.0], [0.0, 1.0, 2.0]]

# By the names of array: the same function in both, and how many tensors it is given.
SAME_NAME = """
abs acos acosh asin asinh atan atanh ceil cos cosh exp expm1 floor log log1p log2 log10 negative
reciprocal round sign sin sinh sqrt square tan tanh trunc
"""
SAME_NAME_OF_TWO = (
    "add atan2 divide hypot logaddexp maximum minimum multiply pow remainder subtract"
)
FUNCTIONS_OF_ONE = {
    **{name: (getattr(xp, name), getattr(torch, name)) for name in SAME_NAME.split()},
    "clip": (lambda x: xp.clip(x, 0.0, 1.0), lambda x: torch.clip(x, 0.0, 1.0)),
    "cumulative_prod": (lambda x: xp.cumulative_prod(x, axis=0), lambda x: torch.cumprod(x, 0)),
    "cumulative_sum": (lambda x: xp.cumulative_sum(x, axis=0), lambda x: torch.cumsum(x, 0)),
    "linalg_cholesky": (xp.linalg.cholesky, LA.cholesky),
    "linalg_diagonal": (xp.linalg.diagonal, LA.diagonal),
    "linalg_eig": (lambda x: xp.linalg.eig(x)[1], lambda x: LA.eig(x)[1]),
    "linalg_eigvals": (xp.linalg.eigvals, LA.eigvals),
    "linalg_eigh": (lambda x: xp.linalg.eigh(x)[1], lambda x: LA.eigh(x)[1]),
    "linalg_eigvalsh": (xp.linalg.eigvalsh, LA.eigvalsh),
    "linalg_inv": (xp.linalg.inv, LA.inv),
    "linalg_matrix_norm": (xp.linalg.matrix_norm, LA.matrix_norm),
    "linalg_matrix_norm.ord": (
        lambda x: xp.linalg.matrix_norm(x, ord=1),
        lambda x: LA.matrix_norm(x, ord=1),
    ),
    "linalg_matrix_rank": (xp.linalg.matrix_rank, LA.matrix_rank),
    "linalg_qr": (lambda x: xp.linalg.qr(x)[0], lambda x: LA.qr(x)[0]),
    "linalg_svd": (lambda x: xp.linalg.svd(x)[0], lambda x: LA.svd(x)[0]),
    "linalg_svdvals": (xp.linalg.svdvals, LA.svdvals),
    "linalg_trace": (xp.linalg.trace, torch.trace),
    "linalg_vector_norm": (xp.linalg.vector_norm, LA.vector_norm),
    "max": (xp.max, torch.amax),
    "mean": (xp.mean, torch.mean),
    "pow.Scalar": (lambda x: xp.pow(x, 2.5), lambda x: torch.pow(x, 2.5)),
    "pow.ScalarFirst": (lambda x: xp.pow(2.5, x), lambda x: torch.pow(2.5, x)),
    "prod": (xp.prod, torch.prod),
    "std": (xp.std, lambda x: torch.std(x, correction=0)),
    "sum": (xp.sum, torch.sum),
    "tril": (xp.tril, torch.tril),
    "var": (xp.var, lambda x: torch.var(x, correction=0)),
    **{
        f"fft_{name}": (getattr(xp.fft, name), getattr(torch.fft, name))
        for name in (
            *("fft", "ifft", "rfft", "irfft", "hfft", "ihfft"),
            *("fftn", "ifftn", "rfftn", "irfftn"),
        )
    },
}
FUNCTIONS_OF_TWO = {
    **{name: (getattr(xp, name), getattr(torch, name)) for name in SAME_NAME_OF_TWO.split()},
    "concat": (lambda x, y: xp.concat([x, y]), lambda x, y: torch.cat([x, y])),
    "linalg_solve": (xp.linalg.solve, LA.solve),
    "matmul": (xp.matmul, torch.matmul),
    "stack": (lambda x, y: xp.stack([x, y]), lambda x, y: torch.stack([x, y])),
    "tensordot": (
        lambda x, y: xp.tensordot(x, y, axes=1),
        lambda x, y: torch.tensordot(x, y, 1),
    ),
    "tensordot.dims": (
        lambda x, y: xp.tensordot(x, y, axes=([0], [1])),
        lambda x, y: torch.tensordot(x, y, ([0], [1])),
    ),
    "vecdot": (xp.vecdot, LA.vecdot),
    "where": (lambda x, y: xp.where(x > 0, x, y), lambda x, y: torch.where(x > 0, x, y)),
}
CASES = {**FUNCTIONS_OF_ONE, **FUNCTIONS_OF_TWO}

# NumPy has no common dtype for the two of 16 bits.
NOT_PROMOTED = [{F16, BF16}]


def arguments_of(name):
    if name in FUNCTIONS_OF_ONE:
        return [(dtype,) for dtype in (F32, BF16, F16, F64)]
    pairs = itertools.product((F32, BF16, F16, F64), repeat=2)
    return [pair for pair in pairs if set(pair) not in NOT_PROMOTED]


def ours(function, dtypes):
    with np.errstate(all="ignore"):
        return function(*(Tensor(np.array(MATRIX, DTYPES[dtype])) for dtype in dtypes)).dtype


def theirs(function, dtypes):
    """PyTorch's answer; None where it refuses."""
    with contextlib.suppress(RuntimeError):
        return DTYPES[function(*(torch.tensor(MATRIX, dtype=dtype) for dtype in dtypes)).dtype]


@pytest.mark.parametrize("lower", [BF16, F16])
@pytest.mark.parametrize("name", CASES)
def test_results_have_the_dtype_that_pytorch_gives_them(name, lower):
    mine, other = CASES[name]
    compared = 0
    for dtypes in arguments_of(name):
        with torch.autocast("cpu", dtype=lower):
            expected = theirs(other, dtypes)
        if expected is None:
            continue
        with autocast("cpu", dtype=DTYPES[lower]):
            assert ours(mine, dtypes) == expected, dtypes
        compared += 1
    assert compared >= 2


def test_modes_in_modes_are_those_of_pytorch():
    """Every nesting of three blocks, with and without a dtype, enabled or not."""
    blocks = [
        {"dtype": dtype, "enabled": enabled, "cache_enabled": cached}
        for dtype in (None, BF16, F16)
        for enabled in (True, False)
        for cached in (None, False)
    ]
    x, y = Tensor(np.array(MATRIX, np.float32)), torch.tensor(MATRIX)
    for nested in itertools.product(blocks, repeat=3):
        with contextlib.ExitStack() as stack:
            for block in nested:
                dtype = block["dtype"]
                stack.enter_context(torch.autocast("cpu", **block))
                named = {**block, "dtype": None if dtype is None else DTYPES[dtype]}
                stack.enter_context(autocast("cpu", **named))
                assert get_autocast_dtype("cpu") == DTYPES[torch.get_autocast_dtype("cpu")]
                assert is_autocast_enabled("cpu") == torch.is_autocast_enabled("cpu")
                assert xp.matmul(x, x).dtype == DTYPES[torch.matmul(y, y).dtype]


def test_dtypes_that_are_not_supported_are_warned_about_by_both():
    for dtype, numpy_dtype in DTYPES.items():
        for enabled in (True, False):
            heard = []
            for block in (
                lambda d=dtype, e=enabled: torch.autocast("cpu", dtype=d, enabled=e),
                lambda d=numpy_dtype, e=enabled: autocast("cpu", dtype=d, enabled=e),
            ):
                try:
                    block()
                except UserWarning:
                    heard.append(True)
                else:
                    heard.append(False)
            assert heard[0] == heard[1], (dtype, enabled)


# -- who has a policy: PyTorch says so without the device ----------------------------------------

ATEN = {
    "concat": ["cat"],
    "cumulative_prod": ["cumprod"],
    "cumulative_sum": ["cumsum"],
    "linalg_matrix_norm.ord": ["linalg_matrix_norm"],
    "linalg_matrix_norm": ["linalg_matrix_norm.str_ord"],
    "linalg_matrix_rank.Tensor": ["linalg_matrix_rank.atol_rtol_tensor"],
    "linalg_trace": ["trace"],
    "matmul": ["matmul", "mm", "bmm"],
    "pow.Tensor": ["pow.Tensor_Tensor"],
    "pow.Scalar": ["pow.Tensor_Scalar"],
    "pow.ScalarFirst": ["pow.Scalar"],
    "sum": ["sum", "sum.dim_IntList"],
    "vecdot": ["linalg_vecdot"],
}
MADE_OF_OTHERS = {
    **{(device, "square"): "pow.Tensor_Scalar" for device in array_autocast.POLICIES},
    **{(device, "tensordot.dims"): "tensordot" for device in array_autocast.POLICIES},
    ("cpu", "tensordot"): "mm",
    ("cpu", "tensordot.dims"): "mm",
}
"""Operators of PyTorch by the names of those with kernels."""


@pytest.mark.parametrize("device_type", array_autocast.POLICIES)
def test_operators_have_a_policy_where_pytorch_has_a_kernel(device_type):
    registered = torch._C._dispatch_get_registrations_for_dispatch_key(
        f"Autocast{device_type.upper()}"
    )
    listed = array_autocast.POLICIES[device_type]
    for function in FUNCTIONS:
        name = function.operator
        plain = name.removesuffix(".Tensor")
        inner = MADE_OF_OTHERS.get((device_type, name))
        names = ATEN.get(name, [plain]) if inner is None else [inner]
        has_kernel = all(f"aten::{each}" in registered for each in names)
        assert (name in listed) == has_kernel, name


@pytest.mark.parametrize("name", array_autocast.POLICIES["cuda"])
def test_policies_for_cuda_are_those_of_pytorch(name):
    """Asked of tensors that PyTorch pretends to have on a GPU."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    policy = array_autocast.POLICIES["cuda"][name]
    _, function = CASES[name.removesuffix(".Tensor")]
    given = [F16] if name.removesuffix(".Tensor") in FUNCTIONS_OF_ONE else [F16, F32]
    expected = F16 if policy is lower_precision_fp else F32
    with FakeTensorMode():
        tensors = [torch.empty(3, 3, dtype=dtype, device="cuda") for dtype in given]
        was = torch.is_autocast_enabled("cuda")
        torch.set_autocast_enabled("cuda", True)
        try:
            assert function(*tensors).dtype == expected
            if policy is promote:
                assert function(tensors[0], tensors[0]).dtype == F16
        finally:
            torch.set_autocast_enabled("cuda", was)
