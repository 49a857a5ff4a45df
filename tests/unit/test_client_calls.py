"""The calls of each client."""

from __future__ import annotations

import os
import socket
import unicodedata

from hypothesis import given
from hypothesis import strategies as st

from opdispatch_server.metrics.client_calls import (
    ClientCalls,
    local_client,
    remote_client,
    sum_calls,
)
from opdispatch_server.metrics.label_limits import LONGEST_CLIENT, MOST_CLIENTS, OTHER


def test_connections_of_one_client_add_up_and_are_kept():
    calls = ClientCalls()
    first, second, other = map(calls.begin, ("a", "a", "b"))
    first.calls, second.calls, other.calls = 2, 3, 7
    calls.end(first)
    calls.end(first)
    assert calls.read() == {"a": 5, "b": 7}
    assert sum_calls([calls.read(), {"a": 1}]) == {"a": 6, "b": 7}


def test_beyond_the_first_clients_are_the_others():
    calls = ClientCalls()
    for number in range(MOST_CLIENTS + 5):
        connection = calls.begin(f"client {number}")
        connection.calls = 1
        calls.end(connection)
    found = calls.read()
    assert len(found) == MOST_CLIENTS + 1
    assert found[OTHER] == 5


@given(st.text(max_size=300))
def test_names_are_one_line_of_limited_length(name: str):
    calls = ClientCalls()
    calls.begin(name).calls = 1
    [known] = calls.read()
    assert len(known) <= LONGEST_CLIENT
    assert not any(unicodedata.category(each) == "Cc" for each in known)


def test_a_client_is_its_process_its_token_or_its_machine():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        assert local_client(ours).endswith(f"[{os.getpid()}]")
    assert remote_client("alice", "ipv4:10.0.0.1:4711") == "alice"
    assert remote_client("", "ipv4:10.0.0.1:4711") == "ipv4:10.0.0.1"
    assert remote_client("", "ipv6:%5B::1%5D:4711") == "ipv6:%5B::1%5D"
    assert remote_client("", "unix:") == "unix:"
