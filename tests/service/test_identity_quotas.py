"""A client at its quota is refused, and others notice nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import opdispatch_client as oc
from tests.service.doors import Doors, door_library
from tests.service.libraries import IMAGE
from tests.service.running_daemon import RunningDaemon
from tests.service.tokens import Tokens

X = np.arange(3.0)


@pytest.fixture
def limited(tmp_path: Path) -> Iterator[tuple[RunningDaemon, str, str]]:
    tokens = Tokens(tmp_path)
    alice, bob = tokens.add("call", name="alice"), tokens.add("call", name="bob")
    options = ("--tokens", str(tokens.path), "--quota-calls", "2", "--quota-sessions", "1")
    listen = ["127.0.0.1:0", f"unix://{tmp_path}/daemon.sock"]
    daemon = RunningDaemon(tmp_path, *options, workers=2, listen=listen)
    try:
        daemon.wait_until_ready()
        yield daemon, alice, bob
    finally:
        daemon.clean_up()


@pytest.mark.parametrize("lane", ["stream", "grpc"])
def test_a_client_at_its_quota_is_refused_and_others_are_not(
    limited: tuple[RunningDaemon, str, str], doors: Doors, tmp_path: Path, lane: str
):
    daemon, alice, bob = limited
    (tmp_path / "image.py").write_text(IMAGE)
    with oc.connect(daemon.addresses[1]) as owner:
        owner.load(tmp_path / "image.py")
        (tmp_path / "door.py").write_text(door_library("door", max_concurrency=4))
        owner.load(tmp_path / "door.py")
    with (
        oc.connect(daemon.address, token=alice, lane=lane) as one,
        oc.connect(daemon.address, token=alice, lane=lane) as two,
        oc.connect(daemon.address, token=bob, lane=lane) as other,
    ):
        waiting = [
            session.submit("door::enter", X, doors.folder, label)
            for session, label in ((one, "first"), (two, "second"))
        ]
        assert {doors.next_inside(), doors.next_inside()} == {"first", "second"}
        for session in (one, two):
            with pytest.raises(oc.QueueFullError, match=r"\(alice\) has 2 calls under way"):
                session.ops.image.pipeline(X)
        np.testing.assert_array_equal(other.ops.image.pipeline(X), 1 - X * 3)
        doors.let_out(2)
        for each in waiting:
            each.result()
        np.testing.assert_array_equal(one.ops.image.pipeline(X), 1 - X * 3)
        kept = one.put(X)
        with pytest.raises(oc.OpdispatchError, match=r"\(alice\) has 1 sessions with values"):
            two.put(X)
        other.put(X)
        np.testing.assert_array_equal(kept.numpy(), X)
    with oc.connect(daemon.addresses[1]) as owner:
        assert owner.check_invariants() == []
