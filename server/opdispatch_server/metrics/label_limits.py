"""The bounds of labels: how many series and clients are distinguished, and how long names are.

All further ones count as ``OTHER``, so that no caller can make a page of metrics grow for ever.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

OTHER: Final = "other"

MOST_SERIES: Final = 16384
"""The rows of an interpreter's counters; the last one counts all further series."""
LABEL_BYTES: Final = (136, 32, 64, 20)
"""Longest operator, key, library and version of a series, in bytes."""

MOST_CLIENTS: Final = 100
"""How many clients are counted individually."""
LONGEST_CLIENT: Final = 80
"""The longest name of a client, in characters."""


def cut_label(text: str, size: int) -> bytes:
    """Return the text in UTF-8, cut to at most ``size`` bytes between two characters."""
    data = text.replace("\0", " ").encode(errors="replace")
    return data if len(data) <= size else data[:size].decode(errors="ignore").encode()


def add_calls(total: Counter[str], client: str, calls: int) -> None:
    """Add calls of a client to a total of at most ``MOST_CLIENTS`` and the others."""
    known = client in total or len(total) < MOST_CLIENTS
    total[client if known else OTHER] += calls
