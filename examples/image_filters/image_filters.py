"""Filters for pictures, as a kernel library: the operators of ``filters::``.

    opdispatch load image_filters.py
    opdispatch call filters::gaussian_blur @photograph.jpg 2.0 -o blurred.png

A picture is an array of shape (height, width) or (height, width, channels) with 1 or 3 channels,
of uint8 from 0 to 255 or of a floating type from 0 to 1. Filters of uint8 give uint8, all others
float32. Anything else is a ValueError.

Each filter is written once, for the array API standard, and registered for CPU and for CUDA: its
arrays are NumPy's or CuPy's, and say themselves which functions there are for them. ``tone`` has
a kernel of its own for CUDA as well, written in CUDA C++.
"""

import functools
import math
from contextlib import nullcontext

import numpy as np
from array_api_compat import array_namespace, device

from opdispatch import Library, MetaArray, Tensor

# Nothing here is shared between calls.
max_concurrency = 4

lib = Library("filters", "DEF")

# -- pictures --------------------------------------------------------------------------------------

MODES = ("reflect", "mirror", "nearest", "wrap")
BRIGHTNESS = (0.299, 0.587, 0.114)
"""How much red, green and blue count, by ITU-R BT.601."""


def check_picture(x):
    shape, dtype = tuple(x.shape), np.dtype(x.dtype)
    if not (len(shape) == 2 or (len(shape) == 3 and shape[2] in (1, 3))) or 0 in shape:
        raise ValueError(
            f"a picture has the shape (height, width) or (height, width, 1 or 3), and this has "
            f"{shape}" + ("; leave out alpha, x[..., :3]" if shape[2:] == (4,) else "")
        )
    if dtype != np.uint8 and dtype.kind != "f":
        raise ValueError(f"a picture is of uint8 or of a floating type, and this is of {dtype}")


def on_device_of(x):
    """Return a block in which the array's own GPU is the current one."""
    place = device(x)
    return place if hasattr(place, "__enter__") else nullcontext()


def on_pictures(function):
    """Make a kernel for every picture of a function for float32 from 0 to 1."""

    @functools.wraps(function)
    def kernel(x, *args, **kwargs):
        check_picture(x)
        xp = array_namespace(x)
        with on_device_of(x):
            if x.dtype != xp.uint8:
                return function(xp.astype(x, xp.float32, copy=False), *args, **kwargs)
            result = function(xp.astype(x, xp.float32) / 255, *args, **kwargs)
            return xp.astype(xp.round(result * 255), xp.uint8)

    return kernel


def register(schema, function, shape=lambda x, *args, **kwargs: x.shape, *, cuda=None):
    """Define an operator, with kernels for CPU, CUDA and Meta."""

    def meta(x, *args, **kwargs):
        check_picture(x)
        dtype = np.uint8 if np.dtype(x.dtype) == np.uint8 else np.float32
        result = MetaArray(tuple(shape(x, *args, **kwargs)), dtype)
        return Tensor(result) if isinstance(x, Tensor) else result

    kernel = on_pictures(function)
    name = lib.define(schema)
    lib.impl(name, kernel, "CPU")
    lib.impl(name, cuda or kernel, "CUDA")
    lib.impl(name, meta, "Meta")


def pad(x, axis, width, mode):
    """Return the picture with ``width`` more rows or columns on both sides.

    Modes as in scipy.ndimage.
    """
    xp = array_namespace(x)
    size = x.shape[axis]
    places = np.arange(-width, size + width)
    match mode:
        case "reflect":  # c b a | a b c | c b a
            places %= 2 * size
            places = np.minimum(places, 2 * size - 1 - places)
        case "mirror":  # c b | a b c | b a
            period = max(2 * size - 2, 1)
            places %= period
            places = np.minimum(places, period - places) % size
        case "nearest":  # a a | a b c | c c
            places = np.clip(places, 0, size - 1)
        case "wrap":  # b c | a b c | a b
            places %= size
        case _:
            raise ValueError(f"mode is one of {', '.join(MODES)}, and not {mode!r}")
    return xp.take(x, xp.asarray(places, device=device(x)), axis=axis)


def shifted(padded, axis, size, by):
    return padded[(slice(None),) * axis + (slice(by, by + size),)]


def correlate(x, weights, axis, mode):
    """Make each pixel a weighted sum of its neighbours along an axis."""
    padded = pad(x, axis, len(weights) // 2, mode)
    parts = (
        shifted(padded, axis, x.shape[axis], place) * weight
        for place, weight in enumerate(weights)
        if weight
    )
    return functools.reduce(lambda total, part: total + part, parts)


def brightness(x):
    """(height, width), of any picture."""
    if x.ndim == 2:
        return x
    if x.shape[2] == 1:
        return x[:, :, 0]
    return sum(x[:, :, channel] * weight for channel, weight in enumerate(BRIGHTNESS))


# -- filters ---------------------------------------------------------------------------------------


def grayscale(x):
    """Return the brightness of each pixel, by ITU-R BT.601: shape (height, width)."""
    return array_namespace(x).asarray(brightness(x), copy=True)


def gaussian_blur(x, sigma, *, mode="reflect", truncate=4.0):
    """Blur the picture by a Gaussian; ``sigma`` in pixels. As ``scipy.ndimage.gaussian_filter``."""
    radius = int(truncate * sigma + 0.5)
    if not 0 <= radius <= 1000 or sigma < 0:
        raise ValueError(f"sigma is from 0 to 1000 / truncate pixels, and not {sigma}")
    if radius == 0:
        return array_namespace(x).asarray(x, copy=True)
    weights = [math.exp(-((place / sigma) ** 2) / 2) for place in range(-radius, radius + 1)]
    total = sum(weights)
    weights = [weight / total for weight in weights]
    return correlate(correlate(x, weights, 0, mode), weights, 1, mode)


def unsharp_mask(x, *, sigma=1.0, amount=1.0, threshold=0.0, mode="reflect"):
    """Sharpened: what a blur takes away is added. Differences below ``threshold`` stay."""
    xp = array_namespace(x)
    lost = x - gaussian_blur(x, sigma, mode=mode)
    if threshold > 0:
        lost = lost * xp.astype(xp.abs(lost) >= threshold, xp.float32)
    return xp.clip(x + lost * amount, 0.0, 1.0)


def sobel(x, *, mode="reflect"):
    """Return how steeply the brightness changes, from 0 to 1: shape (height, width)."""
    xp = array_namespace(x)
    x = brightness(x)
    slope, smooth = (-1.0, 0.0, 1.0), (0.25, 0.5, 0.25)
    down = correlate(correlate(x, slope, 0, mode), smooth, 1, mode)
    across = correlate(correlate(x, slope, 1, mode), smooth, 0, mode)
    return xp.sqrt((down * down + across * across) / 2)


def median(x, size=3, *, mode="reflect"):
    """Return the median of the ``size`` x ``size`` pixels around each: it removes single specks."""
    if size not in (1, 3, 5, 7):
        raise ValueError(f"size is 1, 3, 5 or 7, and not {size}")
    xp = array_namespace(x)
    padded = pad(pad(x, 0, size // 2, mode), 1, size // 2, mode)
    rows = [shifted(padded, 0, x.shape[0], down) for down in range(size)]
    parts = [shifted(row, 1, x.shape[1], across) for row in rows for across in range(size)]
    return xp.sort(xp.stack(parts, axis=-1), axis=-1)[..., size * size // 2]


def equalize(x, *, bins=256):
    """More contrast: every brightness occurs about as often. Colours keep their Cb and Cr."""
    if not 2 <= bins <= 65536:
        raise ValueError(f"bins is from 2 to 65536, and not {bins}")
    xp = array_namespace(x)
    before = brightness(x)
    levels = xp.astype(xp.round(xp.clip(before, 0.0, 1.0) * (bins - 1)), xp.int64)
    levels = xp.reshape(levels, (-1,))
    ordered = xp.sort(levels)
    # How many pixels are of that level or a darker one.
    every = xp.arange(bins, dtype=xp.int64, device=device(x))
    counts = xp.astype(xp.searchsorted(ordered, every, side="right"), xp.float64)
    darkest = xp.take(counts, ordered[:1], axis=0)
    curve = (counts - darkest) / xp.maximum(levels.shape[0] - darkest, 1.0)
    curve = xp.astype(curve, xp.float32)
    after = xp.reshape(xp.take(curve, levels, axis=0), before.shape)
    if x.ndim == 2:
        return after
    return xp.clip(x + xp.expand_dims(after - before, axis=2), 0.0, 1.0)


# How far each method's weights reach, in pixels of the smaller picture, and what they are.
METHODS = {
    "bilinear": (1.0, lambda distance: np.maximum(1 - np.abs(distance), 0)),
    "area": (0.5, lambda distance: ((distance > -0.5) & (distance <= 0.5)).astype(float)),
}


def resize(x, size, *, method="bilinear"):
    """Resize to (height, width). Bilinear, or the mean of the area; does not alias.

    As Pillow's ``BILINEAR`` and ``BOX``: a smaller picture is made of all pixels of the larger one.
    """
    if method not in METHODS:
        raise ValueError(f"method is one of {', '.join(METHODS)}, and not {method!r}")
    if min(size) < 1:
        raise ValueError(f"size is (height, width), and not {tuple(size)}")
    xp = array_namespace(x)
    for axis in (0, 1):
        places, weights = find_sources(x.shape[axis], size[axis], *METHODS[method])
        wide = (-1,) + (1,) * (x.ndim - axis - 1)
        x = sum(
            xp.take(x, xp.asarray(place, device=device(x)), axis=axis)
            * xp.reshape(xp.asarray(weight, dtype=xp.float32, device=device(x)), wide)
            for place, weight in zip(places, weights, strict=True)
        )
    return x


def find_sources(old, new, reach, weigh):
    """Return the pixels of which each new one is made: places and weights, both (how many, new)."""
    scale = old / new
    stretch = max(scale, 1.0)
    centre = (np.arange(new) + 0.5) * scale
    first = np.floor(centre - reach * stretch + 0.5).astype(np.int64)
    places = first + np.arange(math.ceil(2 * reach * stretch) + 1)[:, np.newaxis]
    inside = (places >= 0) & (places < old)
    weights = weigh((places + 0.5 - centre) / stretch) * inside
    return np.clip(places, 0, old - 1), weights / weights.sum(axis=0)


def tone(x, *, exposure=0.0, contrast=1.0, saturation=1.0, gamma=1.0, vignette=0.0):
    """Exposure in stops, contrast and saturation as factors, gamma as exponent, dark corners."""
    xp = array_namespace(x)
    x = (x * 2.0**exposure - 0.5) * contrast + 0.5
    if x.ndim == 3 and x.shape[2] == 3:
        gray = xp.expand_dims(brightness(x), axis=2)
        x = gray + (x - gray) * saturation
    x = xp.clip(x, 0.0, 1.0) ** gamma
    down, across = (
        (xp.arange(n, dtype=xp.float32, device=device(x)) + 0.5) * (2 / n) - 1 for n in x.shape[:2]
    )
    away = (xp.expand_dims(down, axis=1) ** 2 + across**2) / 2  # 0 in the middle, 1 in the corners
    return xp.clip(
        x * xp.reshape(1 - away * vignette, (*x.shape[:2], *[1] * (x.ndim - 2))), 0.0, 1.0
    )


# -- one kernel for the GPU ------------------------------------------------------------------------

# Each thread reads a pixel, does all that ``tone`` does, and writes it: the arithmetic above reads
# and writes the whole picture at every step.
TONE_SOURCE = r"""
typedef unsigned char byte;

__device__ float load(float value) { return value; }
__device__ float load(byte value) { return value / 255.0f; }
__device__ void store(float* place, float value) { *place = value; }
__device__ void store(byte* place, float value) { *place = (byte)rintf(value * 255.0f); }
__device__ float clip(float value) { return fminf(fmaxf(value, 0.0f), 1.0f); }

extern "C" __global__ void tone(
    const PIXEL* x, PIXEL* y, int height, int width, int channels,
    float gain, float contrast, float saturation, float gamma, float vignette)
{
    const long long pixels = (long long)height * width;
    const long long step = (long long)gridDim.x * blockDim.x;
    for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < pixels; i += step) {
        const float down = (i / width + 0.5f) * (2.0f / height) - 1.0f;
        const float across = (i % width + 0.5f) * (2.0f / width) - 1.0f;
        const float light = 1.0f - (down * down + across * across) / 2.0f * vignette;
        float value[3];
        for (int c = 0; c < channels; ++c)
            value[c] = (load(x[i * channels + c]) * gain - 0.5f) * contrast + 0.5f;
        if (channels == 3) {
            const float gray = 0.299f * value[0] + 0.587f * value[1] + 0.114f * value[2];
            for (int c = 0; c < 3; ++c) value[c] = gray + (value[c] - gray) * saturation;
        }
        for (int c = 0; c < channels; ++c)
            store(&y[i * channels + c], clip(powf(clip(value[c]), gamma) * light));
    }
}
"""


@functools.cache
def compile_tone(pixel):
    import cupy

    return cupy.RawKernel(TONE_SOURCE, "tone", options=(f"-DPIXEL={pixel}",))


def tone_in_one_kernel(x, *, exposure=0.0, contrast=1.0, saturation=1.0, gamma=1.0, vignette=0.0):
    """``tone`` for CuPy's arrays: compiled at the first call, queued on the current stream."""
    import cupy

    check_picture(x)
    array = x.array if isinstance(x, Tensor) else x
    pixel = np.uint8 if array.dtype == np.uint8 else np.float32
    extents = (*array.shape[:2], array.shape[2] if array.ndim == 3 else 1)
    factors = (2.0**exposure, contrast, saturation, gamma, vignette)
    with on_device_of(array):
        array = cupy.ascontiguousarray(array, dtype=pixel)
        result = cupy.empty_like(array)
        threads = 256
        blocks = min(-(-array.shape[0] * array.shape[1] // threads), 65535)
        compile_tone("byte" if pixel is np.uint8 else "float")(
            (blocks,),
            (threads,),
            (array, result, *map(np.int32, extents), *map(np.float32, factors)),
        )
    return Tensor(result) if isinstance(x, Tensor) else result


# -- operators -------------------------------------------------------------------------------------


def flat(x, *args, **kwargs):
    return x.shape[:2]


MODE = 'str mode="reflect"'
register("grayscale(Tensor x) -> Tensor", grayscale, flat)
register(
    f"gaussian_blur(Tensor x, float sigma, *, {MODE}, float truncate=4.0) -> Tensor", gaussian_blur
)
register(
    "unsharp_mask(Tensor x, *, float sigma=1.0, float amount=1.0, float threshold=0.0, "
    f"{MODE}) -> Tensor",
    unsharp_mask,
)
register(f"sobel(Tensor x, *, {MODE}) -> Tensor", sobel, flat)
register(f"median(Tensor x, int size=3, *, {MODE}) -> Tensor", median)
register("equalize(Tensor x, *, int bins=256) -> Tensor", equalize)
register(
    'resize(Tensor x, int[2] size, *, str method="bilinear") -> Tensor',
    resize,
    lambda x, size, *, method="bilinear": (*size, *x.shape[2:]),
)
register(
    "tone(Tensor x, *, float exposure=0.0, float contrast=1.0, float saturation=1.0, "
    "float gamma=1.0, float vignette=0.0) -> Tensor",
    tone,
    cuda=tone_in_one_kernel,
)
