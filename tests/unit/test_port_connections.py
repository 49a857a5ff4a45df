"""The connections of a port, as the system has them."""

from __future__ import annotations

import socket
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network

import pytest

from opdispatch_server.serving.port_connections import Connection, port_connections
from tests.unit.test_address_filter import LOOPBACK, connected_from, listener, port_of
from tests.waits import LONGEST_WAIT

__all__ = ["listener"]


def test_connections_are_listed_whether_accepted_or_waiting(listener: socket.socket):
    with connected_from(listener, "127.0.0.2", "127.0.0.3") as ends:
        waiting = socket.create_connection((LOOPBACK, port_of(listener)), LONGEST_WAIT)
        with waiting:
            clients = [*(client for client, _ in ends), waiting]
            expected = {
                Connection(IPv4Address(host), port)
                for host, port in (client.getsockname() for client in clients)
            }
            assert {*port_connections(port_of(listener))} == expected


def test_connections_of_other_ports_are_left_out(listener: socket.socket):
    with socket.socket() as other:
        other.bind((LOOPBACK, 0))
        other.listen()
        with connected_from(other, LOOPBACK):
            assert list(port_connections(port_of(listener))) == []


def test_more_connections_than_one_answer_holds_are_listed(listener: socket.socket):
    listener.listen(500)
    with connected_from(listener, *["127.0.0.2"] * 400):
        assert len({*port_connections(port_of(listener))}) == 400


def test_connections_are_not_listed_by_a_system_without_netlink(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delattr(socket, "AF_NETLINK")
    with pytest.raises(OSError, match="sock_diag"):
        list(port_connections(1))


@pytest.mark.parametrize(
    ("address", "network"),
    [
        (IPv4Address("192.0.2.7"), IPv4Network("192.0.2.7/32")),
        (IPv6Address("2001:db8:0:7::9"), IPv6Network("2001:db8:0:7::/64")),
    ],
)
def test_network_is_what_one_customer_has(
    address: IPv4Address | IPv6Address, network: IPv4Network | IPv6Network
):
    assert Connection(address, 1).network == network
