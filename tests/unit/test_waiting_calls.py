"""Which direct calls are waited for elsewhere, and how often the daemon is asked for that."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from opdispatch_client.lanes import busy_watch
from opdispatch_client.lanes.busy_watch import BusyWatch
from opdispatch_client.lanes.direct_way import DirectWay
from opdispatch_client.lanes.routes import DirectRoute
from opdispatch_client.lanes.waiting_calls import (
    LOOK_SECONDS,
    WaitingCall,
    WaitingCalls,
    may_move,
    waiting_call,
)
from opdispatch_client.listings import Interpreter, interpreter_from_proto
from opdispatch_wire.v1 import execution_pb2, registry_pb2
from tests.waits import LONGEST_WAIT


def interpreter(name: str, busy: Sequence[str] = ()) -> Interpreter:
    return interpreter_from_proto(registry_pb2.Interpreter(name=name, busy_operators=busy))


@pytest.mark.parametrize(
    ("is_repeatable", "retry", "moves"),
    [(True, None, True), (True, True, True), (True, False, False), (False, None, False)],
)
def test_calls_move_unless_they_must_not_run_twice(is_repeatable, retry, moves):
    target = execution_pb2.RouteTarget(interpreter="worker-1", session=1)
    message = execution_pb2.Route(operator="a::f", targets=[target], is_repeatable=is_repeatable)
    lane: Any = SimpleNamespace(number=1, calls_in_flight=0)
    way = DirectWay(DirectRoute(message), target, lane)
    assert may_move(way, execution_pb2.CallRequest(retry=retry)) is moves
    call = waiting_call(way)
    assert (call.interpreter, call.operator) == ("worker-1", "a::f")


def test_calls_leave_only_interpreters_that_others_keep_busy():
    calls, left = WaitingCalls(), []
    where = [("worker-1", "a::f"), ("worker-1", "b::g"), ("worker-2", "a::f"), ("gone", "a::f")]
    for each in where:
        call = WaitingCall(*each)
        call.give_up = lambda each=each: left.append(each)
        calls.add(call)
    calls.add(WaitingCall("worker-1", "not::begun"))
    listing = [interpreter("worker-1", ["b::g", "b::g.out"]), interpreter("worker-2")]
    for _ in range(2):  # each leaves once
        calls.give_up_where_busy(listing)
        assert left == [("worker-1", "a::f")]


def test_daemon_is_asked_more_rarely_the_longer_a_call_waits():
    calls, call = WaitingCalls(), WaitingCall("worker-1", "a::f")
    calls.add(call)
    looks = [n for n in range(2000) if calls.is_look_due(call.began + n * LOOK_SECONDS)]
    assert looks[:4] == [1, 2, 3, 4]
    assert len(looks) < 50
    assert not WaitingCalls().is_look_due(call.began + 1e9)


def test_watch_asks_once_for_all_calls_and_goes_when_there_are_none(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(busy_watch, "LOOK_SECONDS", 0.01)
    asked, ended = [], [threading.Event() for _ in range(20)]

    def list_interpreters() -> list[Interpreter]:
        asked.append(1)
        return [interpreter("worker-1", ["b::g"])]

    watch = BusyWatch(list_interpreters)
    for _ in range(2):  # it comes again, too
        calls = [WaitingCall("worker-1", "a::f") for _ in ended]
        for call, end in zip(calls, ended, strict=True):
            end.clear()
            call.look_at = 0.0
            watch.add(call)
            watch.begun(call, end.set)
        assert all(end.wait(LONGEST_WAIT) for end in ended)
        for thread in threading.enumerate():
            if thread.name == "busy-watch":
                thread.join(LONGEST_WAIT)
                assert not thread.is_alive()
    assert len(asked) < len(ended)
    watch.stop()


def test_call_that_is_over_keeps_no_way_to_end_it():
    watch, call = BusyWatch(list), WaitingCall("worker-1", "a::f")
    watch.add(call)
    watch.remove(call)
    watch.begun(call, lambda: None)  # its reply came before that
    assert call.give_up is None
    watch.stop()
