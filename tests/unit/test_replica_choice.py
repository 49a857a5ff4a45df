"""Which interpreter takes a call of a library that several hold."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from opdispatch_server.daemon.calls.replica_choice import choose_replica
from opdispatch_server.daemon.environments.import_source import LibrarySource
from opdispatch_server.daemon.libraries.replica import Replica, ReplicaState
from opdispatch_server.daemon.libraries.version import LibraryVersion


class Session:
    def __init__(self, number: int, *, calls: int = 0, direct: int = 0, is_fit: bool = True):
        self.number = number
        self.is_fit = is_fit
        self.calls_in_flight = calls
        self.heartbeat = SimpleNamespace(direct_calls_in_flight=direct)


def held_by(*sessions: Any) -> LibraryVersion:
    version = LibraryVersion("image", 1, 1, LibrarySource("image.py", "0"))
    for each in sessions:
        version.add_replica(each, ReplicaState.SERVING)
    return version


def replica_of(version: LibraryVersion, number: int) -> Replica:
    return next(each for each in version.replicas if each.session.number == number)


def test_no_replica_takes_a_call_when_none_serves():
    assert choose_replica(held_by()) is None
    assert choose_replica(held_by(Session(1, is_fit=False))) is None
    version = held_by(Session(1))
    assert choose_replica(version, excluding=[version.replicas[0].session]) is None


def test_the_replica_with_the_fewest_calls_of_the_library_takes_a_call():
    version = held_by(Session(1), Session(2, calls=5))
    replica_of(version, 1).begin_call()
    assert choose_replica(version) is replica_of(version, 2)


def test_direct_calls_count_between_replicas_of_equal_load():
    version = held_by(Session(1, direct=2), Session(2, calls=1))
    assert choose_replica(version) is replica_of(version, 2)


def test_the_replica_that_has_rested_longest_takes_a_call_among_equals():
    version = held_by(Session(1), Session(2), Session(3))
    for number in (2, 1, 3):
        replica_of(version, number).begin_call()
        replica_of(version, number).end_call()
    assert choose_replica(version) is replica_of(version, 2)


def test_a_preferred_session_takes_a_call_unless_it_has_just_failed_one():
    version = held_by(Session(1), Session(2))
    replica_of(version, 2).begin_call()
    assert choose_replica(version, preferred=2) is replica_of(version, 2)
    replica_of(version, 2).note_failure()
    assert choose_replica(version, preferred=2) is replica_of(version, 1)


def test_the_home_of_most_bytes_takes_a_call_before_a_preferred_session():
    version = held_by(Session(1), Session(2), Session(3))
    homes = {replica_of(version, number).session: number for number in (2, 3)}
    assert choose_replica(version, preferred=1, homes=homes) is replica_of(version, 3)
    excluding = [replica_of(version, 3).session]
    assert choose_replica(version, excluding, 1, homes) is replica_of(version, 2)
