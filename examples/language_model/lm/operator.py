"""How an operator of ``lm`` is registered, and what all of them check and calculate alike."""

import functools

import ml_dtypes
import numpy as np
from array_api_compat import array_namespace, is_numpy_array

from opdispatch import Library, MetaArray, Tensor
from opdispatch.errors import ArgumentError, DeviceError

lib = Library("lm", "DEF")

FLOATS = frozenset(
    np.dtype(each) for each in (np.float64, np.float32, np.float16, ml_dtypes.bfloat16)
)


def operator(schema, check, *, cuda=None):
    """Register a function of plain arrays as the kernel of an operator, for CPU and CUDA.

    ``check`` has the operator's arguments, too; it raises ArgumentError, or returns the shape and
    the dtype of the result. ``cuda`` is another function for arrays on a GPU.
    """

    def register(compute):
        name = lib.define(schema)
        kernels = {
            "CPU": make_kernel(compute, check),
            "CUDA": on_the_gpu(name, make_kernel(cuda or compute, check)),
            "Meta": lambda *args, **kwargs: MetaArray(*check(*args, **kwargs)),
        }
        for key, kernel in kernels.items():
            lib.impl(name, functools.update_wrapper(kernel, compute), key)
        return compute

    return register


def make_kernel(compute, check):
    """Take arrays and tensors; a tensor among them makes the result one."""

    def kernel(*args, **kwargs):
        if Tensor in map(type, (*args, *kwargs.values())):
            named = {name: plain(value) for name, value in kwargs.items()}
            return Tensor(kernel(*map(plain, args), **named))
        shape, dtype = check(*args, **kwargs)
        if 0 in shape:
            return array_namespace(args[0]).zeros(shape, dtype=dtype)
        with np.errstate(invalid="ignore"):  # what is not a number stays so, in silence
            return compute(*args, **kwargs)

    return kernel


def on_the_gpu(name, kernel):
    """Run it on the GPU of the arguments. Only integers may be in host memory: they are few."""

    def run(*args, **kwargs):
        arrays = [plain(a) for a in (*args, *kwargs.values()) if hasattr(a, "dtype")]
        host = [a for a in arrays if is_numpy_array(a)]
        if any(a.dtype.kind not in "iu" for a in host):
            raise DeviceError(f"lm::{name} expected its tensors on one GPU, got one on the CPU")
        with next(a for a in arrays if not is_numpy_array(a)).device:
            return kernel(*args, **kwargs)

    return run


def plain(value):
    return value.array if type(value) is Tensor else value


def widened(x):
    """Return an array in the dtype in which to calculate."""
    xp = array_namespace(x)
    return x if x.dtype in (xp.float32, xp.float64) else xp.astype(x, xp.float32)


def narrowed(x, dtype):
    return x if x.dtype == dtype else array_namespace(x).astype(x, dtype)


def fail(name, expected, **arrays):
    got = " and ".join(f"{what} {list(array.shape)}" for what, array in arrays.items())
    raise ArgumentError(f"lm::{name} expected {expected}, got {got}")


def check_floating(name, **arrays):
    dtypes = [np.dtype(array.dtype) for array in arrays.values()]
    if len(set(dtypes)) > 1 or dtypes[0] not in FLOATS:
        raise ArgumentError(
            f"lm::{name} expected floating-point elements of one dtype, got "
            + " and ".join(f"{what} {dtype}" for what, dtype in zip(arrays, dtypes, strict=True))
        )


def check_integers(name, **arrays):
    for what, array in arrays.items():
        if np.dtype(array.dtype).kind not in "iu":
            raise ArgumentError(f"lm::{name} expected integers in {what}, got {array.dtype}")
