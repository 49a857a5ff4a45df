"""A client at its quota is refused, and others notice nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import opdispatch_client as oc
from tests.service.doors import Doors, door_library
from tests.service.libraries import IMAGE
from tests.service.running_daemon import RunningDaemon, wait_for
from tests.service.tokens import Tokens
from tests.waits import LONGEST_WAIT

X = np.arange(3.0)


@pytest.fixture
def limited(tmp_path: Path) -> Iterator[tuple[RunningDaemon, str, str]]:
    tokens = Tokens(tmp_path)
    alice, bob = tokens.add("call", name="alice"), tokens.add("call", name="bob")
    options = ("--tokens", str(tokens.path), "--quota-calls", "2", "--quota-sessions", "1")
    options = (*options, "--quota-values", "2", "--quota-value-bytes", "1000000")
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


def test_the_values_of_an_identity_have_a_quota_and_others_keep_theirs(
    limited: tuple[RunningDaemon, str, str],
):
    daemon, alice, bob = limited
    with (
        oc.connect(daemon.address, token=alice) as one,
        oc.connect(daemon.address, token=bob) as other,
    ):
        kept = [one.put(X), one.put(X)]
        with pytest.raises(oc.QueueFullError, match=r"\(alice\) keeps 2 remote values") as caught:
            one.put(X)
        assert caught.value.facts["started"] == "no"
        np.testing.assert_array_equal(other.put(X).numpy(), X)
        with pytest.raises(oc.QueueFullError, match="its quota is 2 values and 1000000 bytes"):
            other.put(np.zeros(200_000))
        del kept[0]
        assert wait_for(lambda: _puts(one))
        np.testing.assert_array_equal(kept[0].numpy(), X)


def _puts(session: oc.Session) -> bool:
    try:
        return session.put(X) is not None
    except oc.QueueFullError:
        return False


def test_a_share_of_the_queue_leaves_room_for_others(tmp_path: Path, doors: Doors):
    tokens = Tokens(tmp_path)
    alice, bob = tokens.add("call", name="alice"), tokens.add("call", name="bob")
    options = ("--tokens", str(tokens.path), "--queue", "4", "--quota-queue-share", "50")
    listen = ["127.0.0.1:0", f"unix://{tmp_path}/daemon.sock"]
    daemon = RunningDaemon(tmp_path, *options, workers=1, listen=listen)
    try:
        daemon.wait_until_ready()
        (tmp_path / "door.py").write_text(door_library("door", max_concurrency=1))
        with (
            oc.connect(daemon.addresses[1]) as owner,
            oc.connect(daemon.address, token=alice) as one,
            oc.connect(daemon.address, token=bob) as other,
        ):
            owner.load(tmp_path / "door.py")
            mine = [one.submit("door::enter", X, doors.folder, "alice") for _ in range(20)]
            words = r"\(alice\) has 2 calls waiting for interpreter worker-1"
            with pytest.raises(oc.QueueFullError, match=words):
                mine[-1].result(LONGEST_WAIT)
            theirs = other.submit("door::enter", X, doors.folder, "bob")
            doors.let_out(30)
            assert theirs.result(LONGEST_WAIT) == "bob"
            errors = [each.exception(LONGEST_WAIT) for each in mine]
            assert {type(each) for each in errors} == {type(None), oc.QueueFullError}
            assert owner.check_invariants() == []
    finally:
        daemon.clean_up()
