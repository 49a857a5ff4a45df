"""Connections between interpreters, over which one asks another one for values."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from opdispatch_server.values.peer_values import PeerValues
from opdispatch_wire import lane_socket
from opdispatch_wire.errors import RemoteValueGoneError
from opdispatch_wire.frames import FrameKind
from opdispatch_wire.v1 import execution_pb2, values_pb2
from opdispatch_wire.values import value_to_proto
from tests.open_descriptors import open_descriptors
from tests.unit.lane_peer import LIMIT, Peer

X = np.arange(3.0)


@pytest.fixture
def values() -> Iterator[PeerValues]:
    with contextlib.closing(PeerValues(LIMIT)) as values:
        yield values


@contextlib.contextmanager
def owner(path: Path) -> Iterator[values_pb2.RemoteTensor]:
    """An interpreter that answers one question, and is gone at the end."""
    with lane_socket.listen(str(path)) as listener:
        peer = Peer(listener)

        def answer() -> None:
            peer.accept()
            reply = execution_pb2.CallReply(id=peer.read_call().id, returns=[value_to_proto(X)])
            peer.write(FrameKind.REPLY, reply.SerializeToString())

        answering = threading.Thread(target=answer)
        answering.start()
        message = values_pb2.RemoteTensor(id=b"1", interpreter=path.name)
        message.source.lane = str(path)
        yield message
        answering.join(10)
        assert peer.connection is not None
        peer.connection.close()


def test_nothing_stays_open_to_interpreters_that_are_gone(values: PeerValues, tmp_path: Path):
    before = open_descriptors()
    for number in range(5):
        with owner(tmp_path / f"{number}") as message:
            np.testing.assert_array_equal(values.fetch(message, 10, "$").value, X)
    opened = open_descriptors() - before
    assert len(opened) == 1  # to the last one, of which nobody has asked since


def test_one_that_is_gone_has_no_values(values: PeerValues, tmp_path: Path):
    with owner(tmp_path / "lane") as message:
        values.fetch(message, 10, "$")
    with pytest.raises(RemoteValueGoneError, match="cannot be had from interpreter lane"):
        values.fetch(message, 10, "$.args[0]")
