"""The operators of ``examples/signal_processing``, beside the functions of ``scipy.signal``."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy  # scipy.signal is imported where it is first used

from opdispatch import MetaArray, Tensor, capture_dispatch_trace, ops

LIBRARY = Path(__file__).resolve().parents[2] / "examples/signal_processing/signal_processing.py"
RNG = np.random.default_rng(0)
STEREO = RNG.normal(size=(2, 5001))
TAPS = RNG.normal(size=31)
SPECTRUM = RNG.normal(size=(2, 65, 20)) + 1j * RNG.normal(size=(2, 65, 20))
CALLS = [
    ("oaconvolve", (STEREO, TAPS), {"mode": "same"}),
    ("stft", (STEREO,), {"fs": 100.0, "nperseg": 128}),
    ("istft", (SPECTRUM,), {}),
    ("welch", (STEREO,), {"window": "blackman"}),
    ("hilbert", (STEREO,), {}),
    ("envelope", (STEREO,), {}),
    ("resample", (STEREO, 777), {}),
]


@pytest.fixture(scope="module", autouse=True)
def library() -> Iterator[None]:
    spec = importlib.util.spec_from_file_location("signal_processing", LIBRARY)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield
    module.lib.close()


def parts(result: Any) -> list[Any]:
    return list(result) if isinstance(result, tuple | list) else [result]


def close(result, expected, tolerance=1e-10):
    assert (result.shape, result.dtype) == (expected.shape, expected.dtype)
    np.testing.assert_allclose(result, expected, rtol=0, atol=tolerance * abs(expected).max())


@pytest.mark.parametrize("window", ["hamming", "hann", "blackman", "boxcar"])
@pytest.mark.parametrize(
    ("numtaps", "cutoff", "pass_zero"),
    [
        (101, [10.0], True),
        (101, [10.0], False),
        (64, [5.0, 20.0], False),
        (65, [5.0, 20.0], True),
        (32, [15.0], True),
        (101, [5.0, 10.0, 25.0, 30.0], True),
        (1, [15.0], True),
    ],
)
def test_filters_are_designed_as_scipys(numtaps, cutoff, pass_zero, window):
    options = {"pass_zero": pass_zero, "window": window, "fs": 100.0}
    expected = scipy.signal.firwin(numtaps, cutoff, **options)
    close(ops.signal.firwin(numtaps, cutoff, **options), expected)
    short = ops.signal.firwin(numtaps, cutoff, dtype=np.float32, **options)
    close(short, expected.astype(np.float32), 1e-6)


@pytest.mark.parametrize("samples", [1, 2, 100, 4096, 4097, 20000])
@pytest.mark.parametrize("taps", [1, 2, 101, 5000])
def test_filtered_block_by_block_it_is_the_convolution(samples, taps):
    x, h = RNG.normal(size=(2, samples)), RNG.normal(size=taps)
    full = scipy.signal.oaconvolve(x, h[np.newaxis], axes=1)
    close(ops.signal.oaconvolve(x, h), full)
    middle = (taps - 1) // 2
    close(ops.signal.oaconvolve(x, h, mode="same"), full[:, middle : middle + samples])
    if taps <= samples:
        close(ops.signal.oaconvolve(x, h, mode="valid"), full[:, taps - 1 : samples])


@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float64, 1e-10), (np.float32, 1e-5)])
@pytest.mark.parametrize("samples", [256, 1000, 5001])
@pytest.mark.parametrize(
    ("nperseg", "noverlap"), [(256, None), (128, 96), (64, 0), (255, 170), (100, 30)]
)
def test_spectra_are_scipys(dtype, tolerance, samples, nperseg, noverlap):
    x = STEREO[:, :samples].astype(dtype)
    options = {"fs": 100.0, "nperseg": nperseg, "noverlap": noverlap}
    for name in ("stft", "welch"):
        result = getattr(ops.signal, name)(x, **options)
        expected = getattr(scipy.signal, name)(x, **options)
        for ours, theirs in zip(result, expected, strict=True):
            close(ours, theirs, tolerance)


@pytest.mark.parametrize("samples", [256, 1000, 5001])
@pytest.mark.parametrize(("nperseg", "noverlap"), [(256, None), (128, 96), (255, 170)])
def test_a_signal_is_put_together_again(samples, nperseg, noverlap):
    x = STEREO[:, :samples]
    options = {"fs": 100.0, "nperseg": nperseg, "noverlap": noverlap}
    spectrum = ops.signal.stft(x, **options)[2]
    times, again = ops.signal.istft(spectrum, **options)
    close(again, scipy.signal.istft(spectrum, **options)[1])
    close(again[:, :samples], x)
    close(times, np.arange(again.shape[1]) / 100)


@pytest.mark.parametrize("samples", [1, 2, 7, 8, 100, 101])
def test_analytic_signals_and_other_rates_are_scipys(samples):
    x = STEREO[:, :samples]
    close(ops.signal.hilbert(x), scipy.signal.hilbert(x))
    close(ops.signal.envelope(x), abs(scipy.signal.hilbert(x)))
    for num in (1, 2, 5, 8, 50, 99, 100, 101, 150, 200):
        close(ops.signal.resample(x, num), scipy.signal.resample(x, num, axis=-1))


def test_integers_count_as_float64():
    whole = np.arange(300, dtype=np.int16)
    close(ops.signal.hilbert(whole), scipy.signal.hilbert(whole.astype(np.float64)))


@pytest.mark.parametrize(("name", "args", "kwargs"), CALLS)
def test_tensors_give_tensors_and_arrays_without_elements_shapes(name, args, kwargs):
    operator = getattr(ops.signal, name)

    def call(convert):
        given = (convert(arg) if isinstance(arg, np.ndarray) else arg for arg in args)
        return parts(operator(*given, **kwargs))

    plain, tensors = call(np.asarray), call(Tensor)
    shapes = call(lambda array: MetaArray(array.shape, array.dtype))
    for array, tensor, meta in zip(plain, tensors, shapes, strict=True):
        assert (type(array), type(tensor), type(meta)) == (np.ndarray, Tensor, MetaArray)
        np.testing.assert_array_equal(tensor.array, array)
        assert (meta.shape, meta.dtype) == (array.shape, array.dtype)


def test_all_that_is_calculated_is_operators():
    with capture_dispatch_trace() as lines:
        ops.signal.envelope(STEREO)
    called = {str(line.operator).partition(".")[0] for line in lines}
    assert {"signal::envelope", "array::fft_fft", "array::multiply", "array::abs"} <= called


@pytest.mark.parametrize(
    ("name", "args", "message"),
    [
        ("hilbert", (np.float64(1),), r"of float64 with the shape \(\)"),
        ("hilbert", (np.zeros((3, 0)),), r"the shape \(3, 0\)"),
        ("hilbert", (SPECTRUM,), "of complex128"),
        ("oaconvolve", (STEREO, STEREO), r"taps of shape \(2, 5001\)"),
        ("oaconvolve", (STEREO, np.float64(2)), r"of float64 with the shape \(\)"),
        ("stft", (STEREO[:, :100],), "nperseg is from 1 to 100"),
        ("welch", (STEREO[:, :100],), "nperseg is from 1 to 100"),
        ("resample", (STEREO, 0), "num is at least 1"),
        ("firwin", (11, [0.5, 0.2]), r"cutoff rises, .* and is \[0.5, 0.2\]"),
        ("firwin", (11, [1.0]), "between 0 and fs / 2 = 1"),
        ("firwin", (11, []), "cutoff rises"),
        ("firwin", (0, [0.5]), "not 0"),
    ],
)
def test_invalid_signal_raises_value_error(name, args, message):
    with pytest.raises(ValueError, match=message):
        getattr(ops.signal, name)(*args)


def test_invalid_option_error_lists_the_choices():
    with pytest.raises(ValueError, match="odd number of taps, not 10"):
        ops.signal.firwin(10, [0.5], pass_zero=False)
    with pytest.raises(ValueError, match="hann, hamming, blackman, and not 'kaiser'"):
        ops.signal.welch(STEREO, window="kaiser")
    with pytest.raises(ValueError, match="noverlap is from 0"):
        ops.signal.stft(STEREO, noverlap=256)
    with pytest.raises(ValueError, match="128 samples, 100 apart"):
        ops.signal.istft(SPECTRUM, noverlap=28)
    with pytest.raises(ValueError, match="with mode 'most'"):
        ops.signal.oaconvolve(STEREO, TAPS, mode="most")
    with pytest.raises(ValueError, match="with mode 'valid'"):
        ops.signal.oaconvolve(STEREO[:, :9], TAPS, mode="valid")


@pytest.mark.gpu
@pytest.mark.parametrize(("name", "args", "kwargs"), CALLS)
def test_operators_give_the_same_on_a_gpu(cupy, name, args, kwargs):
    operator = getattr(ops.signal, name)
    given = (cupy.asarray(arg) if isinstance(arg, np.ndarray) else arg for arg in args)
    result = parts(operator(*given, **kwargs))
    for ours, expected in zip(result, parts(operator(*args, **kwargs)), strict=True):
        assert type(ours) is cupy.ndarray
        close(ours.get(), expected)


@pytest.mark.gpu
def test_a_filter_is_designed_on_a_gpu(cupy):
    taps = ops.signal.firwin(101, [0.5], device="cuda")
    assert type(taps) is cupy.ndarray
    close(taps.get(), ops.signal.firwin(101, [0.5]))
