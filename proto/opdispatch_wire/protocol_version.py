"""The version of the protocol, which both sides of a connection have to speak."""

from __future__ import annotations

PROTOCOL_VERSION = 1
"""The version of ``proto/opdispatch/v1`` that this code speaks (``GetServerInfo``)."""
