"""Kinds and headers of the local lane's frames; see ``lane.proto``.

Imports nothing else of this package, for commands that make a single call.
"""

from __future__ import annotations

import struct
from enum import IntEnum

HEADER = struct.Struct("<IB3s")
PADDING = bytes(3)


class FrameKind(IntEnum):
    """Kind of a frame's payload."""

    HELLO = 1
    WELCOME = 2
    REFUSAL = 3
    CALL = 4
    CANCEL = 5
    REPLY = 6
    REGION = 7
    DROP = 8
    RELEASE = 9
    KEEP = 10

    __hash__ = int.__hash__  # that of Enum is a Python function


def frame_header(kind: FrameKind, size: int) -> bytes:
    """Return the header of a payload of ``size`` bytes."""
    return HEADER.pack(size, kind, PADDING)
