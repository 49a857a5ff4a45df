"""The filters of ``examples/image_filters``, beside those of SciPy, Pillow and NumPy."""

from __future__ import annotations

import ctypes
import importlib.util
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from PIL import Image
from scipy import ndimage

from opdispatch import MetaArray, Tensor, ops
from tests.waits import LONGEST_WAIT

LIBRARY = Path(__file__).resolve().parents[2] / "examples/image_filters/image_filters.py"
RNG = np.random.default_rng(0)
COLOUR = RNG.random((31, 44, 3), np.float32)
GRAY = RNG.random((17, 9), np.float32)
BYTES = RNG.integers(0, 256, (31, 44, 3), np.uint8)
PICTURES = [COLOUR, GRAY, BYTES, COLOUR[:, :, :1], COLOUR[:1, :1], GRAY.astype(np.float64)]
TONE = {"exposure": 0.3, "contrast": 1.2, "saturation": 1.4, "gamma": 0.8, "vignette": 0.5}
CALLS = [
    ("grayscale", (), {}),
    ("gaussian_blur", (1.5,), {"mode": "mirror"}),
    ("gaussian_blur", (0.0,), {}),
    ("unsharp_mask", (), {"sigma": 2.0, "amount": 1.5, "threshold": 0.05}),
    ("sobel", (), {"mode": "wrap"}),
    ("median", (5,), {"mode": "nearest"}),
    ("equalize", (), {}),
    ("resize", ([7, 60],), {}),
    ("resize", ([7, 60],), {"method": "area"}),
    ("tone", (), TONE),
]


@pytest.fixture(scope="module", autouse=True)
def library() -> Iterator[ModuleType]:
    spec = importlib.util.spec_from_file_location("image_filters", LIBRARY)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    module.lib.close()


def close(result, expected, tolerance=2e-6):
    assert result.dtype == np.float32
    np.testing.assert_allclose(result, expected, rtol=0, atol=tolerance)


@pytest.mark.parametrize("mode", ["reflect", "mirror", "nearest", "wrap"])
@pytest.mark.parametrize("sigma", [0.3, 1.0, 7.0])
def test_blur_and_median_are_scipys_at_every_border(mode: str, sigma: float):
    blurred = ndimage.gaussian_filter(COLOUR, (sigma, sigma, 0), mode=mode)
    close(ops.filters.gaussian_blur(COLOUR, sigma, mode=mode), blurred)
    close(
        ops.filters.gaussian_blur(GRAY, sigma, mode=mode),
        ndimage.gaussian_filter(GRAY, sigma, mode=mode),
    )
    for size in (1, 3, 5, 7):
        middle = ndimage.median_filter(COLOUR, (size, size, 1), mode=mode)
        np.testing.assert_array_equal(ops.filters.median(COLOUR, size, mode=mode), middle)
    down, across = (ndimage.sobel(GRAY, axis, mode=mode) / 4 for axis in (0, 1))
    close(ops.filters.sobel(GRAY, mode=mode), np.sqrt((down**2 + across**2) / 2))


def test_an_unsharp_mask_adds_what_a_blur_takes_away():
    lost = COLOUR - ndimage.gaussian_filter(COLOUR, (2, 2, 0))
    result = ops.filters.unsharp_mask(COLOUR, sigma=2.0, amount=0.7)
    close(result, np.clip(COLOUR + 0.7 * lost, 0, 1))
    result = ops.filters.unsharp_mask(COLOUR, sigma=2.0, threshold=0.1)
    # Where the difference is as large as the threshold itself, rounding decides.
    clear = abs(abs(lost) - 0.1) > 1e-5
    expected = np.clip(np.where(abs(lost) >= 0.1, COLOUR + lost, COLOUR), 0, 1)
    close(result[clear], expected[clear])


def test_gray_is_pillows():
    expected = np.asarray(Image.fromarray(BYTES).convert("L"), np.int16)
    result = ops.filters.grayscale(BYTES)
    assert result.dtype == np.uint8
    assert abs(result - expected).max() <= 1


@pytest.mark.parametrize(("method", "pillows"), [("bilinear", "BILINEAR"), ("area", "BOX")])
@pytest.mark.parametrize("size", [(31, 44), (10, 11), (5, 90), (62, 88), (1, 1)])
def test_other_sizes_are_pillows(method: str, pillows: str, size: tuple[int, int]):
    expected = [
        np.asarray(
            Image.fromarray(channel).resize(size[::-1], Image.Resampling[pillows]), np.float32
        )
        for channel in np.moveaxis(COLOUR, 2, 0).copy()
    ]
    close(ops.filters.resize(COLOUR, size, method=method), np.stack(expected, axis=2))


def test_equalized_every_brightness_occurs_as_often():
    dark = (GRAY**3 * 255).astype(np.uint8)
    counts = np.cumsum(np.bincount(dark.ravel(), minlength=256))
    curve = (counts - counts[dark.min()]) / (dark.size - counts[dark.min()])
    np.testing.assert_array_equal(ops.filters.equalize(dark), np.rint(curve * 255)[dark])
    plain = np.full((4, 5, 3), 0.25, np.float32)
    assert np.isfinite(ops.filters.equalize(plain)).all()
    # Brightness alone changes: the differences between the channels are what they were.
    muted = (0.4 + 0.2 * COLOUR).astype(np.float32)
    result = ops.filters.equalize(muted)
    unclipped = ((result > 0) & (result < 1)).all(axis=2)
    assert unclipped.sum() > 500
    close(np.diff(result)[unclipped], np.diff(muted)[unclipped])


def test_tone_leaves_alone_what_is_not_asked_for():
    close(ops.filters.tone(COLOUR), COLOUR)
    close(ops.filters.tone(COLOUR, exposure=-1.0), COLOUR / 2)
    close(ops.filters.tone(COLOUR, gamma=2.0), COLOUR**2)
    close(ops.filters.tone(COLOUR, contrast=0.0), np.full_like(COLOUR, 0.5))
    without_colour = ops.filters.tone(COLOUR, saturation=0.0)
    close(without_colour, ops.filters.grayscale(COLOUR)[:, :, np.newaxis].repeat(3, axis=2))
    light = ops.filters.tone(np.ones((101, 101), np.float32), vignette=1.0)
    assert light[50, 50] == 1
    assert light[0, 0] < 0.02
    assert np.isclose(light[50, 0], 0.5, atol=0.01)


@pytest.mark.parametrize(("name", "args", "kwargs"), CALLS)
def test_every_picture_has_its_type_and_shape_in_every_way_of_calling(name, args, kwargs):
    filter_ = getattr(ops.filters, name)
    for picture in PICTURES:
        before = picture.copy()
        result = filter_(picture, *args, **kwargs)
        assert result.dtype == (np.uint8 if picture.dtype == np.uint8 else np.float32)
        assert not np.shares_memory(result, picture)
        np.testing.assert_array_equal(picture, before)
        wrapped = filter_(Tensor(picture), *args, **kwargs)
        assert type(wrapped) is Tensor
        np.testing.assert_array_equal(wrapped.array, result)
        meta = filter_(MetaArray(picture.shape, picture.dtype), *args, **kwargs)
        assert (meta.shape, meta.dtype) == (result.shape, result.dtype)


@pytest.mark.parametrize(
    ("name", "picture", "args", "message"),
    [
        ("sobel", np.zeros(3, np.float32), (), r"this has \(3,\)"),
        ("sobel", np.zeros((0, 3), np.float32), (), r"this has \(0, 3\)"),
        ("sobel", np.zeros((2, 2, 4), np.uint8), (), r"\(2, 2, 4\); leave out alpha"),
        ("sobel", np.zeros((2, 2), np.int64), (), "this is of int64"),
        ("gaussian_blur", GRAY, (-1.0,), "not -1.0"),
        ("gaussian_blur", GRAY, (1e9,), "sigma is from 0"),
        ("median", GRAY, (4,), "not 4"),
        ("resize", GRAY, ([0, 5],), r"not \(0, 5\)"),
    ],
)
def test_filter_refuses_invalid_pictures(name, picture, args, message):
    with pytest.raises(ValueError, match=message):
        getattr(ops.filters, name)(picture, *args)


def test_filter_error_lists_the_choices():
    with pytest.raises(ValueError, match="reflect, mirror, nearest, wrap, and not 'zero'"):
        ops.filters.median(GRAY, mode="zero")
    with pytest.raises(ValueError, match="bilinear, area, and not 'cubic'"):
        ops.filters.resize(GRAY, [3, 3], method="cubic")
    with pytest.raises(ValueError, match="bins is from 2"):
        ops.filters.equalize(GRAY, bins=1)


ON_THE_HOST = """
#include <cmath>
#define __device__ static
#define __global__
struct Place { unsigned x; };
static Place blockIdx, threadIdx, gridDim = {3}, blockDim = {32};
%s
extern "C" void run(const PIXEL* x, PIXEL* y, int height, int width, int channels,
    float gain, float contrast, float saturation, float gamma, float vignette)
{
    for (blockIdx.x = 0; blockIdx.x < gridDim.x; ++blockIdx.x)
        for (threadIdx.x = 0; threadIdx.x < blockDim.x; ++threadIdx.x)
            tone(x, y, height, width, channels, gain, contrast, saturation, gamma, vignette);
}
"""


@pytest.mark.parametrize("pixel", ["byte", "float"])
def test_the_kernel_in_cuda_says_what_the_one_in_python_says(
    library: ModuleType, tmp_path: Path, pixel: str
):
    """Its code is C++, too: a compiler for the host is enough to see what it calculates."""
    compiler = shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        pytest.skip("no C++ compiler")
    source, compiled = tmp_path / "tone.cpp", tmp_path / "tone.so"
    source.write_text(ON_THE_HOST % library.TONE_SOURCE)
    options = ("-O1", "-shared", "-fPIC", f"-DPIXEL={pixel}", "-o", compiled)
    subprocess.run([compiler, *options, source], check=True, timeout=LONGEST_WAIT)
    run = ctypes.CDLL(str(compiled)).run
    factors = (2.0 ** TONE["exposure"], *list(TONE.values())[1:])
    pictures = [each for each in PICTURES if (each.dtype == np.uint8) == (pixel == "byte")]
    for picture in pictures:
        picture = np.ascontiguousarray(picture, np.uint8 if pixel == "byte" else np.float32)
        result = np.empty_like(picture)
        run(
            *(array.ctypes.data_as(ctypes.c_void_p) for array in (picture, result)),
            *(*picture.shape, 1)[:3],
            *map(ctypes.c_float, factors),
        )
        agree(result, ops.filters.tone(picture, **TONE))


def agree(result, expected):
    """Of uint8, the last step may be rounded the other way."""
    assert (result.shape, result.dtype) == (expected.shape, expected.dtype)
    tolerance = 1 if expected.dtype == np.uint8 else 1e-5
    difference = abs(result.astype(np.float64) - expected)
    assert difference.max() <= tolerance


@pytest.mark.gpu
@pytest.mark.parametrize(("name", "args", "kwargs"), CALLS)
def test_filters_give_the_same_on_a_gpu(cupy, name, args, kwargs):
    filter_ = getattr(ops.filters, name)
    for picture in PICTURES:
        expected = filter_(picture, *args, **kwargs)
        result = filter_(cupy.asarray(picture), *args, **kwargs)
        assert type(result) is cupy.ndarray
        agree(result.get(), expected)
        agree(filter_(Tensor(cupy.asarray(picture)), *args, **kwargs).array.get(), expected)
