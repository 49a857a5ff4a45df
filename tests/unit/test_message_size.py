"""Message limits, and what client and server must agree on."""

import pytest

from opdispatch_wire.channel import channel_options, server_options
from opdispatch_wire.errors import MessageTooLargeError
from opdispatch_wire.message_size import (
    MAX_MESSAGE_BYTES_DEFAULT,
    check_message_size,
    serialize_message,
)
from opdispatch_wire.v1 import values_pb2


def test_a_message_over_the_limit_says_which_and_what_to_do():
    message = values_pb2.Value(text="x" * 100)
    size = message.ByteSize()
    check_message_size(message, size, "the call")
    assert serialize_message(message, size, "the call") == message.SerializeToString()
    with pytest.raises(MessageTooLargeError) as caught:
        check_message_size(message, size - 1, "the call of a::b")
    assert (
        caught.value.message
        == f"the call of a::b has {size} bytes, and the limit is {size - 1} bytes"
    )
    assert caught.value.facts == {"size": str(size), "limit": str(size - 1)}
    assert "--max-message-bytes" in caught.value.hint


@pytest.mark.parametrize("options", [channel_options, server_options])
def test_the_limit_is_the_same_both_ways(options):
    assert MAX_MESSAGE_BYTES_DEFAULT == 64 * 1024 * 1024
    for limit in (1, MAX_MESSAGE_BYTES_DEFAULT, 2**31 - 1):
        chosen = dict(options(limit))
        assert chosen["grpc.max_send_message_length"] == limit
        assert chosen["grpc.max_receive_message_length"] == limit
    for limit in (0, -1, 2**31):
        with pytest.raises(ValueError, match=f"limit is {limit} bytes"):
            options(limit)


def test_a_client_never_pings_more_often_than_a_server_allows():
    interval = dict(channel_options())["grpc.keepalive_time_ms"]
    assert interval > dict(server_options())["grpc.http2.min_ping_interval_without_data_ms"]
