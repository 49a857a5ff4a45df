"""Which of the interpreters that hold a library takes a call."""

from __future__ import annotations

from collections.abc import Container, Mapping
from types import MappingProxyType

from opdispatch_server.daemon.interpreters.session import InterpreterSession
from opdispatch_server.daemon.libraries.replica import Replica
from opdispatch_server.daemon.libraries.version import LibraryVersion

NO_HOMES: Mapping[InterpreterSession, int] = MappingProxyType({})


def choose_replica(
    library: LibraryVersion,
    excluding: Container[InterpreterSession] = (),
    preferred: int = 0,
    homes: Mapping[InterpreterSession, int] = NO_HOMES,
) -> Replica | None:
    """Return the replica that takes the next call, among those that serve; None if none does.

    ``homes`` says where the call's remote arguments are, and how many bytes of them: the one that
    has most comes first, since these need not move then. Else one that has failed no call just
    now, then the session with the number ``preferred``, then the one with the fewest calls, queued
    ones included, of the library and then of all, and at last the one that has rested longest.
    """
    for home in sorted(homes, key=lambda home: homes[home], reverse=True):
        replica = library.find_replica(home)
        if replica is not None and replica.is_serving and home not in excluding:
            return replica
    serving = [r for r in library.replicas if r.is_serving and r.session not in excluding]
    return min(serving, key=lambda replica: _load_of(replica, preferred), default=None)


def _load_of(replica: Replica, preferred: int) -> tuple[bool, bool, int, int, int]:
    session = replica.session
    others = session.calls_in_flight + session.heartbeat.direct_calls_in_flight
    is_other = session.number != preferred
    return replica.is_distrusted, is_other, replica.calls_in_flight, others, replica.last_call
