"""Runs of suspected operators, with nothing else in their interpreters."""

from __future__ import annotations

from typing import Any

from opdispatch_server.daemon.calls.alone_runs import AloneRuns
from opdispatch_server.daemon.calls.interpreter_queue import QueueLimits
from opdispatch_server.daemon.calls.interpreter_queues import InterpreterQueues
from tests.unit.test_direct_routes import Session, routes_of


class QueuedSession(Session):
    """An interpreter that never ends, with a queue of calls."""

    name = "worker-1"

    def at_end(self, callback: Any) -> None:
        pass


def is_full(queue: Any) -> bool:
    return queue.try_enter(1, 1, "ns::op") is None


async def test_no_other_call_begins_beside_one_that_runs_alone():
    session: Any = QueuedSession()
    routes, queues = routes_of(session), InterpreterQueues(QueueLimits(10, 1000))
    alone = AloneRuns(queues, routes, lambda session: False)
    routes.renew()
    async with alone.at(session):
        assert is_full(queues.queue_of(session))
        routes.renew()  # as any change of the registry does meanwhile
        assert session.told[-1] == 0
    assert session.told[-1] > session.told[0]
    assert not is_full(queues.queue_of(session))


async def test_interpreter_without_direct_callers_is_sent_nothing_for_a_run_alone():
    session: Any = QueuedSession()
    alone = AloneRuns(
        InterpreterQueues(QueueLimits(10, 1000)), routes_of(session), lambda session: True
    )
    async with alone.at(session):
        pass
    assert not session.told
