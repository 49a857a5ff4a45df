"""``serve --workers``: how many interpreters, and with which devices."""

from __future__ import annotations

import pytest

from opdispatch.errors import DeviceError
from opdispatch_server.daemon.processes.worker_plan import parse_workers
from opdispatch_server.device_discovery import find_devices


@pytest.mark.parametrize(
    ("text", "plan"),
    [
        ("0", ()),
        ("3", ("", "", "")),
        ("cpu:2", ("cpu", "cpu")),
        ("cpu:2,cuda:0", ("cpu", "cpu", "cuda:0")),
        ("cuda:0, cuda:1, cuda:1", ("cuda:0", "cuda:1", "cuda:1")),
    ],
)
def test_a_plan_has_the_device_of_each(text: str, plan: tuple[str, ...]):
    assert parse_workers(text) == plan


@pytest.mark.parametrize("text", ["", "-1", "two", "cuda", "cpu", "cpu:2,", "1,2", "0x1"])
def test_other_text_is_no_plan(text: str):
    with pytest.raises(ValueError, match="neither a number of interpreters nor a list"):
        parse_workers(text)


@pytest.mark.parametrize(
    "text", ["257", "cpu:256,cuda:0", "100000", "cpu:1000", "9" * 30, "9" * 5000], ids=len
)
def test_more_than_256_interpreters_are_refused(text: str):
    with pytest.raises(ValueError, match=r"\d{3,} interpreters are too many; expected at most 256"):
        parse_workers(text)


@pytest.mark.parametrize("device", ["foo:1", "meta:0", "privateuse:0"])
def test_unknown_device_is_named_in_the_error(device: str):
    with pytest.raises(ValueError, match=f"there is no device '{device}'"):
        parse_workers(f"cpu:1,{device}")


def test_one_device_is_used_alone():
    assert find_devices("cpu") == ["cpu"]
    with pytest.raises(DeviceError, match="there is no device cuda:99 here; there is cpu"):
        find_devices("cuda:99")
