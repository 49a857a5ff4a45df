"""The protocol version, which must be the same at both ends of a connection."""

from __future__ import annotations

PROTOCOL_VERSION = 1
"""The version of ``proto/opdispatch/v1`` that this code speaks (``GetServerInfo``)."""

SAME_VERSION_HINT = "install the same version of opdispatch on both sides"


def describe_mismatch(version: int, peer: str, here: str) -> str:
    """Return the message of the error for a ``peer`` that speaks another version.

    ``here`` is this end of the connection, in words.
    """
    return f"{peer} speaks protocol version {version}, {here} version {PROTOCOL_VERSION}"
