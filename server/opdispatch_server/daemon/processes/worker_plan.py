"""Parse the number of interpreters that a daemon starts, and their devices."""

from __future__ import annotations

import re

from opdispatch.arrays import COMPONENTS

MOST_WORKERS = 256

_PART = re.compile(r"cpu:(?P<count>\d+)|(?P<device>[a-z]+:\d{1,3})")


def parse_workers(text: str) -> tuple[str, ...]:
    """Parse the device of each interpreter; an empty device means all that exist.

    ``"3"`` is three interpreters, and ``"cpu:2,cuda:0"`` two that use only the CPU and one that
    also uses the first GPU. Raises ValueError.
    """
    plan: list[str] = []
    if text.isdecimal():
        plan = [""] * _count(text)
    else:
        for part in text.split(","):
            found = _PART.fullmatch(part.strip())
            if found is None:
                raise ValueError(
                    f"{text!r} is neither a number of interpreters nor a list such as cpu:2,cuda:0"
                )
            if device := found["device"]:
                _check_device(device)
            plan += [device] if device else ["cpu"] * _count(found["count"])
    if len(plan) > MOST_WORKERS:
        raise _too_many(str(len(plan)))
    return tuple(plan)


def _count(text: str) -> int:
    """Return the number. Raises ValueError for one that is too large for a list."""
    digits = text.lstrip("0") or "0"
    if len(digits) > len(str(MOST_WORKERS)):
        raise _too_many(digits[:20])
    return int(digits)


def _too_many(count: str) -> ValueError:
    return ValueError(f"{count} interpreters are too many; expected at most {MOST_WORKERS}")


def _check_device(device: str) -> None:
    """Raise ValueError for an impossible device; which devices exist only interpreters know."""
    kind = device.partition(":")[0]
    if kind not in COMPONENTS or kind == "meta":
        raise ValueError(f"there is no device {device!r} to compute on; expected one as cuda:0")
