"""Finds a chirp in noise with a running daemon, and draws what it did.

    opdispatch serve &
    python run.py [-o spectrogram.png]

The signal goes there once. What is calculated on the way stays there; only what is drawn comes
back. The figure needs matplotlib, which ``opdispatch[demo]`` installs.
"""

import argparse
from pathlib import Path

import numpy as np

import opdispatch_client as oc

LIBRARY = Path(__file__).with_name("signal_processing.py")
RATE = 8000.0
SECONDS = 4.0
CHIRP = (500.0, 1500.0)
"""Hertz, at the beginning and at the end."""
HUM = 2500.0
PASS = [400.0, 1600.0]


def make_signal():
    """Return a chirp that swells and fades, with noise, and a hum that is stronger than it."""
    rng = np.random.default_rng(0)
    time = np.arange(int(RATE * SECONDS)) / RATE
    start, end = CHIRP
    chirp = np.sin(2 * np.pi * (start * time + (end - start) / (2 * SECONDS) * time**2))
    chirp *= np.sin(np.pi * time / SECONDS) ** 2
    noisy = chirp + 1.5 * np.sin(2 * np.pi * HUM * time) + 0.4 * rng.normal(size=time.size)
    return chirp, noisy.astype(np.float32)


def analyse(session, noisy):
    """Return the filtered signal, and what is to be drawn: everything by operators, on a worker."""
    remote = session.with_options(remote=True).ops
    x = session.put(noisy)
    taps = remote.signal.firwin(201, PASS, pass_zero=False, fs=RATE, dtype=np.float32)
    clean = remote.signal.oaconvolve(x, taps, mode="same")
    print(f"{x}, {taps} -> {clean}")
    results = {"clean": clean.numpy()}
    for name, signal in {"before": x, "after": clean}.items():
        frequencies, times, spectrum = remote.signal.stft(signal, fs=RATE, nperseg=256)
        # Of the library ``array``: what is fetched is half as large as the spectrum.
        results[name] = session.call("array::abs", spectrum)
        results[f"density {name}"] = session.ops.signal.welch(signal, fs=RATE, nperseg=256)[1]
    # How strong it is, a few times a second: fewer samples are a low pass, too.
    envelope = remote.signal.envelope(clean)
    results["envelope"] = session.ops.signal.resample(envelope, int(SECONDS * 10))
    return results | {"frequencies": frequencies.numpy(), "times": times.numpy()}


def draw(results, path):
    from matplotlib import colormaps
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 5), layout="constrained")
    places = figure.subplot_mosaic(
        [["before", "after"], ["density", "envelope"]], height_ratios=[3, 2]
    )
    frequencies, times = results["frequencies"], results["times"]
    steps = {"cmap": colormaps["viridis"].resampled(7), "vmin": -70, "vmax": 0}
    for name in ("before", "after"):
        decibels = 20 * np.log10(np.maximum(results[name], 1e-5))
        mesh = places[name].pcolormesh(times, frequencies, decibels, **steps)
        places[name].set(title=f"{name} filtering", xlabel="seconds", ylabel="hertz")
        places["density"].semilogy(frequencies, results[f"density {name}"], label=name)
    figure.colorbar(mesh, ax=places["after"], label="decibels")
    places["density"].set(title="power density", xlabel="hertz", ylim=(1e-9, 1e-1))
    places["density"].legend(loc="lower right")
    for name, width in {"clean": 0.2, "envelope": 2.0}.items():
        seconds = np.arange(results[name].size) * (SECONDS / results[name].size)
        places["envelope"].plot(seconds, results[name], linewidth=width)
    places["envelope"].set(title="after filtering, and its envelope", xlabel="seconds")
    figure.savefig(path, dpi=75)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("-o", "--output", type=Path, default=Path("spectrogram.png"))
    options = parser.parse_args()
    chirp, noisy = make_signal()
    with oc.connect() as session:
        place = session.load(LIBRARY).interpreters[0]
        # Where the other one is, so that nothing has to move.
        session.load("opdispatch.array_library", interpreter=place)
        results = analyse(session, noisy)
    for name, signal in {"before": noisy, "after": results["clean"]}.items():
        ratio = np.sum(chirp**2) / np.sum((signal - chirp) ** 2)
        print(f"signal to noise {name}: {10 * np.log10(ratio):.1f} dB")
    draw(results, options.output)
    print(f"wrote {options.output}")


if __name__ == "__main__":
    main()
