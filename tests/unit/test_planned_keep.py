"""Results that a planned call keeps: how they are named, made and given up."""

from __future__ import annotations

from typing import Any

import numpy as np

from opdispatch_client.planned_keep import PlannedKeep
from opdispatch_client.value_lease import Lease
from opdispatch_wire.remote_values import RemoteFacts, value_id
from opdispatch_wire.v1 import values_pb2


def test_each_call_has_a_prefix_of_its_own_and_lets_go_of_it():
    released: list[bytes] = []

    def new(number: bytes, facts: RemoteFacts, interpreter: str) -> Any:
        return number, facts, interpreter

    lease = Lease(b"s" * 16, released.append)
    one, two = PlannedKeep(lease, lambda _: new), PlannedKeep(lease, lambda _: new)
    assert one.prefix != two.prefix
    assert (one.message().session, one.message().prefix) == (b"s" * 16, one.prefix)
    facts = RemoteFacts.of(np.ones(3), at="$")
    message = values_pb2.RemoteTensor(id=value_id(one.prefix, 0), interpreter="w")
    facts.write_to(message)
    assert one.make(message, "$", True) == (message.id, facts, "w")
    one.abandon()
    assert released == [one.prefix]
