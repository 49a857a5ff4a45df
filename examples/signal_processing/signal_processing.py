"""Signals, as a kernel library: the operators of ``signal::``, named as those of ``scipy.signal``.

    opdispatch load signal_processing.py
    opdispatch call signal::firwin 101 '[300, 1200]' pass_zero=false fs=8000 -o taps.npy
    opdispatch call signal::oaconvolve @noisy.npy @taps.npy mode=same -o clean.npy

Time is the last dimension; those before it are channels. Signals are real: of a floating type, or
integers, which count as float64. Anything else is a ValueError.

Every operator is made of others, those of the library ``array``: there is one kernel for each, for
the key CompositeImplicitAutograd, and it serves NumPy's arrays, CuPy's and arrays without elements.
"""

import functools
import math

from opdispatch import Library, Tensor
from opdispatch import array_api as xp

# Nothing here is shared between calls.
max_concurrency = 4

lib = Library("signal", "DEF")


def composite(schema):
    """Register a function of tensors as the operator; plain arrays give plain arrays."""

    def decorate(function):
        @functools.wraps(function)
        def kernel(*args, **kwargs):
            given = [arg for arg in args if hasattr(arg, "dtype")]
            is_plain = not any(isinstance(arg, Tensor) for arg in given)
            result = function(
                *(Tensor(arg) if hasattr(arg, "dtype") else arg for arg in args), **kwargs
            )
            if not is_plain:
                return result
            return (
                tuple(each.array for each in result) if isinstance(result, tuple) else result.array
            )

        lib.impl(lib.define(schema), kernel)
        return kernel

    return decorate


# -- pieces of signals -----------------------------------------------------------------------------


def as_signal(x):
    """Return a signal of a floating type. Raises ValueError for other arrays."""
    if x.ndim == 0 or x.shape[-1] == 0 or not xp.isdtype(x.dtype, ("integral", "real floating")):
        raise ValueError(
            f"a signal has real numbers along its last dimension, and this is of {x.dtype} with "
            f"the shape {x.shape}"
        )
    return x if xp.isdtype(x.dtype, "real floating") else xp.astype(x, xp.float64)


def part(x, start, stop):
    """``x[..., start:stop]``, as an operator."""
    return xp.take(x, xp.arange(start, stop, device=x.device), axis=-1)


def pad(x, before, after):
    """Zeros in front of the signal and behind it."""
    pieces = [
        xp.zeros((*x.shape[:-1], count), dtype=x.dtype, device=x.device)
        for count in (before, after)
    ]
    return xp.concat([pieces[0], x, pieces[1]], axis=-1)


def cut(x, length, hop):
    """Frames of ``length`` samples, one beginning each ``hop``: (..., frames, length)."""
    count = (x.shape[-1] - length) // hop + 1
    starts = xp.arange(count, device=x.device) * hop
    places = xp.expand_dims(starts, axis=1) + xp.arange(length, device=x.device)
    frames = xp.take(x, xp.reshape(places, (-1,)), axis=-1)
    return xp.reshape(frames, (*x.shape[:-1], count, length))


def overlap_add(frames, hop):
    """Return the signal of which ``cut`` cuts frames that add up to it.

    ``hop`` divides their length.
    """
    *channels, count, length = frames.shape
    parts = length // hop
    pieces = xp.unstack(xp.reshape(frames, (*channels, count, parts, hop)), axis=-2)
    total = xp.zeros(
        (*channels, (count + parts - 1) * hop), dtype=frames.dtype, device=frames.device
    )
    for late, piece in enumerate(pieces):
        flat = xp.reshape(piece, (*channels, count * hop))
        total = total + pad(flat, late * hop, (parts - 1 - late) * hop)
    return total


# A window is a sum of cosines with these factors, whose signs alternate.
WINDOWS = {
    "boxcar": (1.0,),
    "hann": (0.5, 0.5),
    "hamming": (0.54, 0.46),
    "blackman": (0.42, 0.5, 0.08),
}


def make_window(name, length, dtype, device, *, is_periodic=True):
    if name not in WINDOWS:
        raise ValueError(f"window is one of {', '.join(WINDOWS)}, and not {name!r}")
    turns = xp.arange(length, dtype=xp.float64, device=device) * (
        2 * math.pi / max(length if is_periodic else length - 1, 1)
    )
    cosines = (
        xp.cos(turns * order) * (factor * (-1) ** order)
        for order, factor in enumerate(WINDOWS[name if length > 1 else "boxcar"])
    )
    return xp.astype(functools.reduce(xp.add, cosines), dtype)


def find_hop(nperseg, noverlap, samples):
    """Return the distance of frames. Raises ValueError unless frames fit, and overlap."""
    noverlap = nperseg // 2 if noverlap is None else noverlap
    if not 1 <= nperseg <= samples:
        raise ValueError(f"nperseg is from 1 to {samples}, the signal's length, and not {nperseg}")
    if not 0 <= noverlap < nperseg:
        raise ValueError(f"noverlap is from 0 to nperseg - 1, and not {noverlap}")
    return nperseg - noverlap


# -- operators -------------------------------------------------------------------------------------


@composite(
    'firwin(int numtaps, float[] cutoff, *, str window="hamming", bool pass_zero=True, '
    "float fs=2.0, ScalarType? dtype=None, Device? device=None) -> Tensor"
)
def firwin(numtaps, cutoff, *, window="hamming", pass_zero=True, fs=2.0, dtype=None, device=None):
    """Return the taps of a linear-phase FIR filter, by the window method.

    ``fs`` is the sampling rate.

    ``pass_zero`` is whether frequencies below the first of ``cutoff`` pass; at each that changes.
    """
    edges = [2 * each / fs for each in cutoff]
    if not edges or edges[0] <= 0 or edges[-1] >= 1 or sorted({*edges}) != edges:
        raise ValueError(f"cutoff rises, between 0 and fs / 2 = {fs / 2:g}, and is {cutoff}")
    if pass_zero:
        edges = [0.0, *edges]
    if passes_highest := len(edges) % 2 == 1:
        edges = [*edges, 1.0]
    if numtaps < 1 or (passes_highest and numtaps % 2 == 0):
        raise ValueError(f"a filter that lets fs / 2 pass has an odd number of taps, not {numtaps}")
    place = xp.arange(numtaps, dtype=xp.float64, device=device) - (numtaps - 1) / 2
    taps = functools.reduce(
        xp.add,
        (
            sinc(place, right) * right - sinc(place, left) * left
            for left, right in zip(edges[::2], edges[1::2], strict=True)
        ),
    )
    taps = taps * make_window(window, numtaps, xp.float64, device, is_periodic=False)
    # In the middle of the first band that passes, the gain is one.
    low, high = edges[:2]
    middle = 0.0 if low == 0 else 1.0 if high == 1 else (low + high) / 2
    taps = taps / xp.sum(taps * xp.cos(place * (math.pi * middle)))
    return taps if dtype is None else xp.astype(taps, dtype)


def sinc(place, frequency):
    angle = place * (math.pi * frequency)
    is_zero = xp.equal(angle, 0.0)
    angle = xp.where(is_zero, 1.0, angle)
    return xp.where(is_zero, 1.0, xp.sin(angle) / angle)


@composite('oaconvolve(Tensor x, Tensor h, *, str mode="full") -> Tensor')
def oaconvolve(x, h, *, mode="full"):
    """Return the signal, filtered with taps by the FFT, block by block.

    Mode: full, same or valid.
    """
    x, h = as_signal(x), as_signal(h)
    samples, taps = x.shape[-1], h.shape[0]
    if h.ndim != 1 or mode not in ("full", "same", "valid") or (mode == "valid" and taps > samples):
        raise ValueError(
            f"{taps} taps of shape {h.shape} do not filter {samples} samples with mode {mode!r}"
        )
    # Blocks of that length, and twice it for the transforms: what a block leaves goes into the
    # next one, and no farther.
    block = max(1 << (taps - 1).bit_length(), min(4096, 1 << (samples - 1).bit_length()))
    count = -(-samples // block)
    blocks = xp.reshape(pad(x, 0, count * block - samples), (*x.shape[:-1], count, block))
    spectra = xp.fft.rfft(blocks, n=2 * block) * xp.fft.rfft(h, n=2 * block)
    result = overlap_add(xp.fft.irfft(spectra, n=2 * block), block)
    if mode == "same":
        return part(result, (taps - 1) // 2, (taps - 1) // 2 + samples)
    if mode == "valid":
        return part(result, taps - 1, samples)
    return part(result, 0, samples + taps - 1)


FRAMES = 'float fs=1.0, str window="hann", int nperseg=256, int? noverlap=None'


@composite(f"stft(Tensor x, *, {FRAMES}) -> (Tensor f, Tensor t, Tensor Zxx)")
def stft(x, *, fs=1.0, window="hann", nperseg=256, noverlap=None):
    """Return the short-time Fourier transform: frequencies, times, and (..., frequencies, times).

    As ``scipy.signal.stft``: half a frame of zeros at both ends, scaled to amplitudes.
    """
    x = as_signal(x)
    hop = find_hop(nperseg, noverlap, x.shape[-1])
    padded = pad(x, nperseg // 2, nperseg // 2)
    padded = pad(padded, 0, -(padded.shape[-1] - nperseg) % hop)
    weights = make_window(window, nperseg, x.dtype, x.device)
    frames = cut(padded, nperseg, hop) * (weights / xp.sum(weights))
    times = xp.arange(frames.shape[-2], dtype=xp.float64, device=x.device) * (hop / fs)
    spectra = xp.moveaxis(xp.fft.rfft(frames), -1, -2)
    return xp.fft.rfftfreq(nperseg, d=1 / fs, device=x.device), times, spectra


@composite(
    'istft(Tensor Zxx, *, float fs=1.0, str window="hann", int? nperseg=None, int? noverlap=None)'
    " -> (Tensor t, Tensor x)"
)
def istft(Zxx, *, fs=1.0, window="hann", nperseg=None, noverlap=None):  # noqa: N803
    """Return the signal of a short-time Fourier transform, and its times.

    As ``scipy.signal.istft``.

    Frames begin at a whole fraction of their length: ``nperseg - noverlap`` divides ``nperseg``.
    """
    nperseg = 2 * (Zxx.shape[-2] - 1) if nperseg is None else nperseg
    hop = find_hop(nperseg, noverlap, nperseg)
    if nperseg % hop or Zxx.shape[-2] != nperseg // 2 + 1:
        raise ValueError(
            f"frames of {nperseg} samples, {hop} apart, cannot be put together from "
            f"{Zxx.shape[-2]} frequencies"
        )
    frames = xp.fft.irfft(xp.moveaxis(Zxx, -2, -1), n=nperseg)
    weights = make_window(window, nperseg, frames.dtype, frames.device)
    total = overlap_add(frames * (weights * xp.sum(weights)), hop)
    count = frames.shape[-2]
    squares = xp.broadcast_to(weights * weights, (count, nperseg))
    gain = overlap_add(squares, hop)
    gain = xp.where(gain > 1e-10, gain, 1.0)
    samples = (count - 1) * hop + nperseg - 2 * (nperseg // 2)
    x = part(total / gain, nperseg // 2, nperseg // 2 + samples)
    return xp.arange(samples, dtype=xp.float64, device=x.device) / fs, x


@composite(f"welch(Tensor x, *, {FRAMES}) -> (Tensor f, Tensor Pxx)")
def welch(x, *, fs=1.0, window="hann", nperseg=256, noverlap=None):
    """Return the power spectral density by Welch's method, one-sided. As ``scipy.signal.welch``."""
    x = as_signal(x)
    frames = cut(x, nperseg, find_hop(nperseg, noverlap, x.shape[-1]))
    frames = frames - xp.mean(frames, axis=-1, keepdims=True)
    weights = make_window(window, nperseg, x.dtype, x.device)
    spectra = xp.fft.rfft(frames * weights)
    power = xp.square(xp.real(spectra)) + xp.square(xp.imag(spectra))
    order = xp.arange(nperseg // 2 + 1, device=x.device)
    # Negative frequencies are counted with the positive ones, of which all but two have one.
    sides = 1.0 + xp.astype((order > 0) & (order * 2 != nperseg), x.dtype)
    density = xp.mean(power, axis=-2) * sides / (xp.sum(weights * weights) * fs)
    return xp.fft.rfftfreq(nperseg, d=1 / fs, device=x.device), density


@composite("hilbert(Tensor x) -> Tensor")
def hilbert(x):
    """Return the analytic signal: ``x`` and, as imaginary part, its Hilbert transform."""
    x = as_signal(x)
    samples = x.shape[-1]
    order = xp.arange(samples, device=x.device)
    # The mean and the highest frequency stay, others double, and negative ones go.
    factors = xp.astype(order * 2 < samples, x.dtype) + xp.astype(
        (order > 0) & (order * 2 <= samples), x.dtype
    )
    return xp.fft.ifft(xp.fft.fft(x) * factors)


@composite("envelope(Tensor x) -> Tensor")
def envelope(x):
    """Return the amplitude at each moment: the magnitude of the analytic signal."""
    return xp.abs(hilbert(x))


@composite("resample(Tensor x, int num) -> Tensor")
def resample(x, num):
    """``num`` samples of the same time, by the FFT: of a signal that repeats itself."""
    x = as_signal(x)
    samples = x.shape[-1]
    if num < 1:
        raise ValueError(f"num is at least 1, and not {num}")
    fewer = min(num, samples)
    spectrum = part(xp.fft.rfft(x), 0, fewer // 2 + 1)
    if fewer % 2 == 0 and num != samples:
        # Of the highest frequency, either both halves fall together, or one is to become two.
        order = xp.arange(fewer // 2 + 1, device=x.device)
        highest = xp.astype(order * 2 == fewer, x.dtype)
        spectrum = spectrum * (highest * (1.0 if num < samples else -0.5) + 1.0)
    return xp.fft.irfft(spectrum, n=num) * (num / samples)
