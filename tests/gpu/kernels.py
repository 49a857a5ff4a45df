"""Kernel libraries for a GPU, as users write them."""

from __future__ import annotations

# CuPy's own functions, and a kernel in CUDA C++; `up` needs no CuPy in the client.
VECTORS = r'''
import cupy
import numpy as np

from opdispatch import Library

SAXPY = cupy.RawKernel(
    """
    extern "C" __global__
    void saxpy(float a, const float* x, const float* y, float* out, long long size) {
        long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
        if (i < size) out[i] = a * x[i] + y[i];
    }
    """,
    "saxpy",
)


def saxpy(a, x, y):
    x, y = cupy.ascontiguousarray(x), cupy.ascontiguousarray(y)
    out = cupy.empty_like(x)
    grid, block = ((x.size + 255) // 256,), (256,)
    SAXPY(grid, block, (np.float32(a), x, y, out, np.int64(x.size)))
    return out


lib = Library("vectors", "DEF")
lib.define("up(Tensor x) -> Tensor")
lib.define("add(Tensor x, Tensor y) -> Tensor")
lib.define("scale_(Tensor(a!) x, float by) -> Tensor(a!)")
lib.define("saxpy(float a, Tensor x, Tensor y) -> Tensor")
lib.impl("up", lambda x: cupy.asarray(x), "CPU")
lib.impl("add", lambda x, y: x + y, "CUDA")
lib.impl("scale_", lambda x, by: x.__imul__(by), "CUDA")
lib.impl("saxpy", saxpy, "CUDA")
'''

# Results that are not there yet when their kernel returns.
SLOW = r'''
import cupy
import numpy as np

from opdispatch import Library

SLOW = cupy.RawKernel(
    """
    extern "C" __global__
    void slow(const float* x, float* out, long long size, long long cycles) {
        long long begin = clock64();
        while (clock64() - begin < cycles) {}
        for (long long i = 0; i < size; ++i) out[i] = x[i] + 1;
    }
    """,
    "slow",
)
CYCLES = 200_000_000  # a tenth of a second or so


def slow(x):
    x = cupy.ascontiguousarray(x)
    out = cupy.zeros_like(x)
    SLOW((1,), (1,), (x, out, np.int64(x.size), np.int64(CYCLES)))
    return out


def on_a_stream(x):
    with cupy.cuda.Stream():
        return slow(x)


def left_behind(x):
    stream = cupy.cuda.Stream(non_blocking=True)
    stream.wait_event(cupy.cuda.get_current_stream().record())
    stream.use()
    return slow(x)


def waited_for(x):
    default = cupy.cuda.get_current_stream()
    stream = cupy.cuda.Stream(non_blocking=True)
    stream.wait_event(default.record())
    with stream:
        out = slow(x)
    default.wait_event(stream.record())
    return out


max_concurrency = 4
lib = Library("slow", "DEF")
for kernel in (slow, on_a_stream, left_behind, waited_for):
    lib.define(f"{kernel.__name__}(Tensor x) -> Tensor")
    lib.impl(kernel.__name__, kernel, "CUDA")
'''

# Kernels that go wrong.
FAULTS = r"""
import cupy
import numpy as np

from opdispatch import Library

WILD = cupy.RawKernel(
    'extern "C" __global__ void wild(float* x) { x[threadIdx.x] = 1; }', "wild"
)


def wild(x, waits):
    WILD((1,), (1,), (np.uint64(64),))
    if waits:
        cupy.cuda.Device().synchronize()
    return x


lib = Library("faults", "DEF")
lib.define("wild(Tensor x, bool waits) -> Tensor")
lib.impl("wild", wild, "CUDA")
lib.define("huge(Tensor x) -> Tensor")
lib.impl("huge", lambda x: cupy.empty(1 << 48, np.uint8), "CUDA")
lib.define("wrong(Tensor x) -> Tensor")
lib.impl("wrong", lambda x: cupy.RawKernel("no C++", "wrong")((1,), (1,), ()), "CUDA")
"""

# What the driver says of this process: cuda.h, cuDevicePrimaryCtxGetState.
CONTEXTS = """
import ctypes

from opdispatch import Library


def has_context(x):
    driver = ctypes.CDLL("libcuda.so.1")
    flags, active = ctypes.c_uint(), ctypes.c_int()
    assert driver.cuInit(0) == 0
    assert driver.cuDevicePrimaryCtxGetState(0, ctypes.byref(flags), ctypes.byref(active)) == 0
    return bool(active.value)


lib = Library("contexts", "DEF")
lib.define("has_context(Tensor x) -> bool")
lib.impl("has_context", has_context, "CPU")
"""
