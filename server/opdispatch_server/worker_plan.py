"""Which interpreters a daemon starts, and what devices they use."""

from __future__ import annotations

import re

MOST_WORKERS = 256

_PART = re.compile(r"cpu:(?P<count>\d{1,3})|(?P<device>[a-z]+:\d{1,3})")


def parse_workers(text: str) -> tuple[str, ...]:
    """The device of each interpreter; empty: whatever there is.

    ``"3"`` is three interpreters, and ``"cpu:2,cuda:0"`` two that use the CPU alone and one that
    uses the first GPU, too. Raises ValueError.
    """
    plan: list[str] = []
    if text.isdecimal() and len(text) <= 3:
        plan = [""] * int(text)
    else:
        for part in text.split(","):
            found = _PART.fullmatch(part.strip())
            if found is None:
                raise ValueError(
                    f"{text!r} is neither a number of interpreters nor a list such as cpu:2,cuda:0"
                )
            plan += [found["device"]] if found["device"] else ["cpu"] * int(found["count"])
    if len(plan) > MOST_WORKERS:
        raise ValueError(f"{len(plan)} interpreters are too many; expected at most {MOST_WORKERS}")
    return tuple(plan)
