"""The protocol version, which must be the same at both ends of a connection."""

from __future__ import annotations

PROTOCOL_VERSION = 1
"""The version of ``proto/opdispatch/v1`` that this code speaks (``GetServerInfo``)."""
