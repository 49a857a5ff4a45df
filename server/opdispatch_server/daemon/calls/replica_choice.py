"""Choose which of the interpreters that hold a library runs a call."""

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

    ``homes`` maps interpreters to the bytes of the call's remote arguments that they hold: the one
    with the most comes first, since those bytes need not move. Then, in order of preference: a
    replica whose last call did not fail, the session with the number ``preferred``, the one with
    the fewest calls of the library and then of all libraries, queued ones included, and finally the
    one idle for longest.
    """
    for home in sorted(homes, key=lambda home: homes[home], reverse=True):
        replica = library.find_replica(home)
        if replica is not None and replica.is_serving and home not in excluding:
            return replica
    serving = [r for r in library.replicas if r.is_serving and r.session not in excluding]
    if len(serving) == 1:
        return serving[0]
    return min(serving, key=lambda replica: _load_of(replica, preferred), default=None)


def _load_of(replica: Replica, preferred: int) -> tuple[bool, bool, int, int, int]:
    session = replica.session
    others = session.calls_in_flight + session.heartbeat.direct_calls_in_flight
    is_other = session.number != preferred
    return replica.is_distrusted, is_other, replica.calls_in_flight, others, replica.last_call
