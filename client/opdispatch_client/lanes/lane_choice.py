"""Choose the kinds of lanes to the daemon and to interpreters. No I/O.

A session tries the kinds of lanes to its daemon in the order of ``KINDS`` and takes the first that
works, or insists on one of them. Its direct calls take lanes of the same kind.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal

from opdispatch.errors import OpdispatchError
from opdispatch_client.endpoint import Endpoint
from opdispatch_wire.lanes.lane_messages import LaneClosedError

LaneKind = Literal["local", "stream", "grpc"]

KINDS: Final[tuple[LaneKind, ...]] = ("local", "stream", "grpc")
"""The kinds of lanes, fastest first; the last, a gRPC request for each call, always works."""

UNUSABLE: Final[Mapping[LaneKind, tuple[type[Exception], ...]]] = {
    "local": (OSError, OpdispatchError),
    "stream": (LaneClosedError,),
    "grpc": (),
}
"""The errors after which the next kind of lane is tried, by the kind that failed to open."""


def kinds_to_try(endpoint: Endpoint) -> tuple[LaneKind, ...]:
    """Return the kinds of lanes to the daemon to try, in order; one if the session requires it."""
    return KINDS if endpoint.lane == "auto" else (endpoint.lane,)


def direct_kind(endpoint: Endpoint, daemon: LaneKind) -> Literal["local", "stream"] | None:
    """Return the kind of the direct lanes, which depends on that of the lane to the daemon.

    None if all calls have to go through the daemon.
    """
    if not endpoint.direct:
        return None
    if daemon == "local":
        return "local"
    # Interpreters listen at ports of the daemon's host, which the address of a unix socket lacks.
    return "stream" if daemon == "stream" and endpoint.has_ports else None
