"""The examples' libraries in a real daemon, and their READMEs: commands print what they say."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import scipy  # its modules are imported where they are first used
from PIL import Image

import opdispatch_client as oc
from tests.service.running_daemon import RunningDaemon
from tests.service.test_readme import commands, promised_output, run_python

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
FILTERS = EXAMPLES / "image_filters"
SIGNALS = EXAMPLES / "signal_processing"
RNG = np.random.default_rng(0)
PICTURE = RNG.integers(0, 256, (60, 80, 3), np.uint8)
NOISE = RNG.normal(size=(2, 20000))


def blocks(example: Path, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (example / "README.md").read_text(), re.DOTALL)


def run_command(command: str, folder: Path, address: str) -> str:
    """Return the output, with errors, as on a terminal."""
    completed = subprocess.run(
        command,
        shell=True,
        cwd=folder,
        env={
            **os.environ,
            "OPDISPATCH_ADDRESS": address,
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=60,
    )
    return completed.stdout


@pytest.mark.parametrize("example", [FILTERS, SIGNALS], ids=lambda example: example.name)
def test_the_readme_shows_what_its_commands_print(
    example: Path, shared_daemon: RunningDaemon, shared: oc.Session, tmp_path: Path
):
    if example is SIGNALS:
        pytest.importorskip("matplotlib")
    folder = tmp_path / "example"
    shutil.copytree(example, folder)
    shown = [pair for block in blocks(example, "console") for pair in commands(block)]
    assert len(shown) >= 5
    for command, output in shown:
        if not command.startswith("opdispatch serve"):
            assert run_command(command, folder, shared_daemon.address) == output, command


@pytest.mark.parametrize("example", [FILTERS, SIGNALS], ids=lambda example: example.name)
def test_the_python_of_the_readme_prints_what_it_says(
    example: Path, shared_daemon: RunningDaemon, shared: oc.Session
):
    for block in blocks(example, "python"):
        assert run_python(block, example, shared_daemon.address) == promised_output(block) != []


def test_pictures_are_filtered_where_they_are(shared: oc.Session):
    library = shared.load(FILTERS / "image_filters.py", interpreters=2)
    assert len(library.operators) == 8
    blurred = scipy.ndimage.gaussian_filter(PICTURE / 255, (2, 2, 0))
    result = shared.ops.filters.gaussian_blur(PICTURE, 2.0)
    assert result.dtype == np.uint8
    assert abs(result - blurred * 255).max() < 0.501
    small = shared.call("filters::resize", PICTURE, [30, 40], method="area", remote=True)
    means = PICTURE.reshape(30, 2, 40, 2, 3).mean(axis=(1, 3))
    assert abs(small.numpy() - means).max() < 0.501
    mean = float(shared.call("filters::grayscale", small).mean())
    assert abs(mean - np.asarray(Image.fromarray(PICTURE).convert("L")).mean()) < 1
    # Many at a time, in both interpreters.
    with shared.map("filters::median", ((PICTURE, size) for size in (1, 3, 5, 7))) as results:
        for size, result in zip((1, 3, 5, 7), results, strict=True):
            expected = scipy.ndimage.median_filter(PICTURE, (size, size, 1))
            np.testing.assert_array_equal(result, expected)


def test_signals_stay_where_they_are(shared: oc.Session):
    shared.load(SIGNALS / "signal_processing.py")
    remote = shared.with_options(remote=True).ops.signal
    x = shared.put(NOISE)
    taps = remote.firwin(101, [0.2, 0.4], pass_zero=False)
    clean = remote.oaconvolve(x, taps, mode="same")
    again = remote.istft(remote.stft(clean)[2])[1]
    assert {type(each) for each in (taps, clean, again)} == {oc.RemoteTensor}
    expected = scipy.signal.firwin(101, [0.2, 0.4], pass_zero=False)
    expected = scipy.signal.oaconvolve(NOISE, expected[np.newaxis], mode="same", axes=1)
    np.testing.assert_allclose(clean.numpy(), expected, atol=1e-10)
    np.testing.assert_allclose(again.numpy()[:, : NOISE.shape[1]], expected, atol=1e-10)

    @shared.as_program
    def power(x):
        return shared.ops.signal.welch(shared.ops.signal.oaconvolve(x, taps, mode="same"))

    for ours, theirs in zip(power(x), scipy.signal.welch(expected), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-10)
    envelope = shared.ops.signal.envelope(clean)
    np.testing.assert_allclose(envelope, abs(scipy.signal.hilbert(expected)), atol=1e-10)


def test_both_are_loaded_together_and_say_what_is_wrong(shared: oc.Session):
    for example in (FILTERS / "image_filters.py", SIGNALS / "signal_processing.py"):
        shared.load(example, interpreter="worker-1")
    with pytest.raises(oc.KernelError, match="ValueError: size is 1, 3, 5 or 7, and not 2"):
        shared.ops.filters.median(PICTURE, 2)
    with pytest.raises(oc.KernelError, match="ValueError: a signal has real numbers"):
        shared.ops.signal.envelope(NOISE + 1j)
    np.testing.assert_allclose(shared.ops.signal.envelope(NOISE), abs(scipy.signal.hilbert(NOISE)))
    for library in ("image_filters", "signal_processing"):
        shared.unload(library)
    assert shared.operators() == []
