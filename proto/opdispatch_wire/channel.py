"""The options of all gRPC channels and servers: sizes, keepalive."""

from __future__ import annotations

from opdispatch_wire.addresses import is_loopback
from opdispatch_wire.message_size import MAX_MESSAGE_BYTES_DEFAULT, MAX_MESSAGE_BYTES_HIGHEST

MAX_METADATA_BYTES = 64 * 1024
"""Headers and trailers of one call. Our statuses are far below gRPC's own limit of 8 KiB."""

_KEEPALIVE_MS = 30_000
_KEEPALIVE_TIMEOUT_MS = 10_000
# Less than the clients' interval, or the server would treat their pings as an attack.
_SHORTEST_PING_INTERVAL_MS = 20_000


def channel_options(
    max_message_bytes: int = MAX_MESSAGE_BYTES_DEFAULT, *, address: str | None = None
) -> list[tuple[str, int]]:
    """Return the options of a client's channel to ``address``.

    A proxy from the environment is used only for an address on another machine. Raises
    AddressError, and ValueError if the size is not between 1 and 2**31 - 1.
    """
    beyond_this_machine = address is not None and not is_loopback(address)
    return [
        *_size_options(max_message_bytes),
        ("grpc.keepalive_time_ms", _KEEPALIVE_MS),
        ("grpc.keepalive_timeout_ms", _KEEPALIVE_TIMEOUT_MS),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        # So that a restarted daemon is found soon; gRPC would wait up to two minutes.
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.max_reconnect_backoff_ms", 2_000),
        ("grpc.enable_http_proxy", int(beyond_this_machine)),
        # Otherwise a new session inherits the connections and the backoff of older ones.
        ("grpc.use_local_subchannel_pool", 1),
    ]


def server_options(
    max_message_bytes: int = MAX_MESSAGE_BYTES_DEFAULT,
) -> list[tuple[str, int]]:
    """Return the options of a server. Raises ValueError as ``channel_options`` does."""
    return [
        *_size_options(max_message_bytes),
        ("grpc.keepalive_time_ms", _KEEPALIVE_MS),
        ("grpc.keepalive_timeout_ms", _KEEPALIVE_TIMEOUT_MS),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.http2.min_ping_interval_without_data_ms", _SHORTEST_PING_INTERVAL_MS),
        # A port in use is an error, and is not shared with its owner.
        ("grpc.so_reuseport", 0),
    ]


def _size_options(max_message_bytes: int) -> list[tuple[str, int]]:
    if not 1 <= max_message_bytes <= MAX_MESSAGE_BYTES_HIGHEST:
        raise ValueError(
            f"the message limit is {max_message_bytes} bytes; expected 1 to "
            f"{MAX_MESSAGE_BYTES_HIGHEST}"
        )
    return [
        ("grpc.max_send_message_length", max_message_bytes),
        ("grpc.max_receive_message_length", max_message_bytes),
        ("grpc.max_metadata_size", MAX_METADATA_BYTES),
    ]
