"""The daemon's events in a profile: the time of a call in the daemon, and in a queue."""

from __future__ import annotations

import threading
from time import monotonic_ns as now

from opdispatch_wire.v1 import execution_pb2, profile_pb2


def note_received(request: execution_pb2.CallRequest) -> None:
    """Record a call's arrival, if it asks for a profile."""
    if request.HasField("profile"):
        request.profile.received = now()
        request.profile.sent = 0


def note_sent(request: execution_pb2.CallRequest) -> None:
    """Record that a call is sent to an interpreter, for the first time or again."""
    if request.HasField("profile"):
        request.profile.sent = now()


def add_daemon_events(request: execution_pb2.CallRequest, reply: execution_pb2.CallReply) -> None:
    """Nest the interpreter's events, and that of the wait, in the daemon's own event.

    A call that failed here may have only these two, or only the first.
    """
    if not request.HasField("profile"):
        return
    # Imported by the first profile: the daemon needs nothing else of the profiler.
    from opdispatch.profiler.recorder import this_process

    asked, profile = request.profile, reply.profile
    told = list(profile.events)
    del profile.events[:]
    here = this_process("daemon")
    number = len(profile.processes)
    profile.processes.add(name=here.name, pid=here.pid, machine=here.machine)
    name = request.operator if request.program else request.operator.partition(".")[0]
    failed = reply.HasField("error")
    _add(profile, f"daemon {name}", "daemon", number, asked.received, now(), failed=failed)
    if asked.sent:
        _add(profile, f"queue {name}", "queue", number, asked.received, asked.sent, parent=1)
    added = len(profile.events)
    for event in told:
        event.parent = event.parent + added if event.parent else 1
    profile.events.extend(told)


def _add(
    profile: profile_pb2.Profile,
    name: str,
    kind: str,
    process: int,
    begin: int,
    end: int,
    parent: int = 0,
    failed: bool = False,
) -> None:
    profile.events.add(
        name=name[:256],
        kind=kind,
        process=process,
        thread=threading.get_native_id(),
        begin=begin,
        duration=max(end - begin, 0),
        parent=parent,
        failed=failed,
    )
