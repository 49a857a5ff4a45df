"""The filter of a listening port: whose new connections are dropped."""

from __future__ import annotations

import contextlib
import random
import socket
from collections.abc import Iterator
from ipaddress import IPv4Network, IPv6Network

import pytest

from opdispatch_server.serving.address_filter import EVERYONE, MOST_NETWORKS, listening, shut_out
from tests.waits import LONGEST_WAIT, accept

LOOPBACK = "127.0.0.1"
ALL_V4 = IPv4Network("0.0.0.0/0")


@pytest.fixture(params=["0.0.0.0", "::"])
def listener(request: pytest.FixtureRequest) -> Iterator[socket.socket]:
    """Yield a port that hears IPv4, as its own family or as one of IPv6."""
    family = socket.AF_INET6 if request.param == "::" else socket.AF_INET
    with socket.socket(family) as found:
        if family == socket.AF_INET6:
            found.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        found.bind((request.param, 0))
        found.listen()
        yield found


def port_of(listener: socket.socket) -> int:
    port: int = listener.getsockname()[1]
    return port


def is_open(listener: socket.socket, source: str) -> bool:
    """Return whether a connection from a loopback address can be made at once."""
    is_v6 = ":" in source
    with socket.socket(socket.AF_INET6 if is_v6 else socket.AF_INET) as client:
        client.bind((source, 0))
        client.setblocking(False)
        client.connect_ex(("::1" if is_v6 else LOOPBACK, port_of(listener)))
        try:
            client.getpeername()
        except OSError:
            return False
        accept(listener).close()
        return True


@contextlib.contextmanager
def connected_from(
    listener: socket.socket, *sources: str
) -> Iterator[list[tuple[socket.socket, socket.socket]]]:
    """Yield connections from these loopback addresses, both ends of each."""
    with contextlib.ExitStack() as stack:
        ends = []
        for source in sources:
            to = (LOOPBACK, port_of(listener))
            client = socket.create_connection(to, LONGEST_WAIT, source_address=(source, 0))
            ends.append((stack.enter_context(client), stack.enter_context(accept(listener))))
        yield ends


def test_networks_are_shut_out_and_no_others(listener: socket.socket):
    shut_out(port_of(listener), {IPv4Network("127.0.0.2"), IPv4Network("127.1.0.0/16")})
    sources = ("127.0.0.1", "127.0.0.2", "127.0.0.3", "127.1.0.2", "127.2.0.2")
    assert [is_open(listener, each) for each in sources] == [1, 0, 1, 0, 1]
    shut_out(port_of(listener), set())
    assert all(is_open(listener, each) for each in sources)
    shut_out(port_of(listener), set())


@pytest.mark.parametrize(
    ("network", "is_shut"),
    [("::/64", True), ("::/0", True), ("0:0:0:1::/64", False), ("1::/64", False)],
)
@pytest.mark.parametrize("listener", ["::"], indirect=True)
def test_v6_networks_are_distinguished(listener: socket.socket, network: str, is_shut: bool):
    try:
        assert is_open(listener, "::1")
    except OSError as error:
        pytest.skip(f"no IPv6 here: {error}")
    shut_out(port_of(listener), {IPv4Network("10.0.0.0/8"), IPv6Network(network)})
    assert is_open(listener, "::1") != is_shut
    assert is_open(listener, LOOPBACK)


def test_everyone_is_shut_out(listener: socket.socket):
    shut_out(port_of(listener), EVERYONE)
    assert not is_open(listener, LOOPBACK)
    shut_out(port_of(listener), EVERYONE - {ALL_V4})
    assert is_open(listener, LOOPBACK)


@pytest.mark.parametrize("listener", ["0.0.0.0"], indirect=True)
def test_most_networks_fit(listener: socket.socket):
    hosts = random.Random(1).sample(range(2, 250), MOST_NETWORKS + 1)
    *shut, other = (f"127.0.0.{host}" for host in hosts)
    others = {IPv6Network((index << 64, 64)) for index in range(1, MOST_NETWORKS)}
    for networks in ({*map(IPv4Network, shut)}, {IPv4Network(shut[0]), *others}):
        shut_out(port_of(listener), networks)
        assert not is_open(listener, shut[0])
        assert is_open(listener, other)
    shut_out(port_of(listener), {*map(IPv4Network, shut)})
    assert not any(is_open(listener, each) for each in shut)


def test_sockets_that_are_found_stay_their_owners(listener: socket.socket):
    assert [found.fileno() for found in listening(port_of(listener))] == [listener.fileno()]
    assert is_open(listener, LOOPBACK)
