"""Which lanes a session tries, and which of them its direct calls take."""

from typing import Literal

import pytest

from opdispatch_client.endpoint import Endpoint, LaneChoice, resolve_endpoint
from opdispatch_client.lanes.lane_choice import KINDS, LaneKind, direct_kind, kinds_to_try


def endpoint(
    lane: LaneChoice = "auto", address: str = "127.0.0.1:1", *, direct: bool = True
) -> Endpoint:
    return resolve_endpoint(address, timeout=None, max_message_bytes=None, lane=lane, direct=direct)


def test_a_session_tries_all_kinds_the_fastest_first_or_insists_on_one() -> None:
    assert kinds_to_try(endpoint()) == ("local", "stream", "grpc")
    for kind in KINDS:
        assert kinds_to_try(endpoint(kind)) == (kind,)


@pytest.mark.parametrize(
    ("daemon", "over_tcp", "over_a_unix_socket"),
    [("local", "local", "local"), ("stream", "stream", None), ("grpc", None, None)],
)
def test_direct_calls_take_lanes_of_the_kind_of_that_to_the_daemon(
    daemon: LaneKind,
    over_tcp: Literal["local", "stream"] | None,
    over_a_unix_socket: Literal["local", "stream"] | None,
) -> None:
    assert direct_kind(endpoint(), daemon) == over_tcp
    assert direct_kind(endpoint(address="unix:///run/daemon"), daemon) == over_a_unix_socket
    assert direct_kind(endpoint(direct=False), daemon) is None
