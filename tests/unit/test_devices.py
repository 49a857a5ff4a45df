"""Which interpreters have a device."""

from __future__ import annotations

import pytest

from opdispatch_client.library_source import load_request
from opdispatch_server.devices import find_devices


def test_every_interpreter_has_a_cpu():
    devices = find_devices()
    assert devices[0] == "cpu"
    assert devices[1:] == [f"cuda:{number}" for number in range(len(devices) - 1)]


@pytest.mark.parametrize(
    ("on", "interpreter", "device"),
    [
        ("cpu", "", "cpu"),
        ("cuda", "", "cuda"),
        ("cuda:1", "", "cuda:1"),
        ("worker-1", "worker-1", ""),
        ("cuda-box", "cuda-box", ""),
        (None, "", ""),
    ],
)
def test_a_place_is_a_device_or_an_interpreter(on: str | None, interpreter: str, device: str):
    request = load_request("package.kernels", on=on)
    assert (request.interpreter, request.device) == (interpreter, device)


def test_a_library_needs_an_interpreter():
    with pytest.raises(ValueError, match="interpreters is 0; expected 1 or more"):
        load_request("package.kernels", interpreters=0)
