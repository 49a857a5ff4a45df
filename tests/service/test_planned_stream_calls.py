"""Calls over gRPC streams to interpreters follow plans, and give what the general way gives."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

import opdispatch_client as oc
from opdispatch_wire.calls import call_request, result_of_reply
from opdispatch_wire.lanes.stream_tensors import CALL_STREAM
from opdispatch_wire.planned_requests import RequestForm
from opdispatch_wire.v1 import execution_pb2
from tests.service.openings import Openings
from tests.service.planned_library import (
    ARRAYS,
    KINDS,
    LIBRARY,
    ONES,
    OPERATORS,
    Call,
    held,
    outcome,
)
from tests.service.running_daemon import RunningDaemon, wait_for

# The same tests as of local lanes, with the session of this module.
from tests.service.test_planned_calls import (
    test_a_planned_call_runs_the_new_version,
    test_a_planned_call_that_waits_can_be_cancelled,
    test_arguments_that_are_converted_by_value_are_looked_at_in_every_call,
    test_calls_follow_a_plan_once_one_has_gone_directly,
    test_calls_that_are_all_of_other_shapes_leave_no_plans,
    test_constants_of_planned_calls_are_those_of_others,
    test_errors_of_planned_calls_are_those_of_their_futures,
    test_every_kind_of_call_is_planned_and_gives_what_the_general_way_gives,
    test_other_calls_take_the_general_way,
    test_planned_calls_give_what_others_give,
    test_planned_calls_of_many_threads_get_their_own_results,
    test_planned_calls_under_way_run_one_version_or_the_next,
    test_submitted_calls_follow_a_plan_and_make_one,
)
from tests.waits import LONGEST_WAIT, join

__all__ = [
    "test_a_planned_call_runs_the_new_version",
    "test_a_planned_call_that_waits_can_be_cancelled",
    "test_arguments_that_are_converted_by_value_are_looked_at_in_every_call",
    "test_calls_follow_a_plan_once_one_has_gone_directly",
    "test_calls_that_are_all_of_other_shapes_leave_no_plans",
    "test_constants_of_planned_calls_are_those_of_others",
    "test_errors_of_planned_calls_are_those_of_their_futures",
    "test_every_kind_of_call_is_planned_and_gives_what_the_general_way_gives",
    "test_other_calls_take_the_general_way",
    "test_planned_calls_give_what_others_give",
    "test_planned_calls_of_many_threads_get_their_own_results",
    "test_planned_calls_under_way_run_one_version_or_the_next",
    "test_submitted_calls_follow_a_plan_and_make_one",
]

TCP = "127.0.0.1:0"
Planned = tuple[oc.Session, list[int]]


@pytest.fixture(scope="module")
def shared_daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningDaemon]:
    daemon = RunningDaemon(tmp_path_factory.mktemp("tcp"), workers=1, listen=[TCP])
    try:
        daemon.wait_until_ready()
        yield daemon
    finally:
        daemon.clean_up()


@contextmanager
def streaming(
    daemon: RunningDaemon, folder: Path, openings: Openings, **options: Any
) -> Iterator[oc.Session]:
    """A session with the library, and an open stream to the interpreter that has it."""
    (folder / "planned.py").write_text(LIBRARY)
    with daemon.connect(lane="stream", **options) as session:
        session.load(folder / "planned.py")
        session.call("planned::none", ONES)
        assert openings.next().startswith("calls go to interpreter")
        yield session


@pytest.fixture
def planned(
    lent_daemon: RunningDaemon, openings: Openings, numbers: list[int], tmp_path: Path
) -> Iterator[Planned]:
    """A session with the library, and the ids of the calls that follow a plan."""
    with streaming(lent_daemon, tmp_path, openings) as session:
        yield session, numbers


def test_results_in_chunks_are_those_of_the_general_way(planned: Planned):
    session, numbers = planned
    size = 300_000  # 2.4 MB
    for _ in range(4):
        session.call("planned::up_to", np.full(1, 2))
    before = len(numbers)
    for _ in range(20):  # more often than another form of reply is looked at
        assert session.call("planned::up_to", np.full(1, size)).sum() == size * (size - 1) // 2
        future = session.submit("planned::up_to", np.full(1, size))
        assert future.result().sum() == size * (size - 1) // 2
    assert session.call("planned::up_to", np.full(1, 3)).tolist() == [0, 1, 2]
    assert len(numbers) == before + 41


def test_awaited_calls_are_planned(planned: Planned, openings: Openings):
    session, numbers = planned

    async def calls() -> None:
        async with oc.aio.connect(session.address, lane="stream") as there:
            await there.call("planned::none", ONES)
            await asyncio.to_thread(openings.next)
            for _ in range(4):
                assert (await there.call("planned::positive", ONES)).tolist() == [2.0] * 4
                assert len(await there.call("planned::up_to", np.full(1, 3))) == 3
            before = len(numbers)
            assert before
            with pytest.raises(oc.KernelError, match="negative"):
                await there.call("planned::positive", -ONES)
            assert len(await there.call("planned::up_to", np.full(1, 300_000))) == 300_000
            results = await asyncio.gather(
                *(there.call("planned::positive", np.full(4, float(n))) for n in range(50))
            )
            assert [each[0] for each in results] == [n + 1.0 for n in range(50)]
            assert len(numbers) == before + 52

    asyncio.run(calls())


def test_a_call_keeps_its_deadline(
    lent_daemon: RunningDaemon, openings: Openings, numbers: list[int], tmp_path: Path
):
    with streaming(lent_daemon, tmp_path, openings, timeout=1.0) as session:
        for _ in range(4):
            assert session.call("planned::wait", ONES).tolist() == [1.0] * 4
        before = len(numbers)
        with held(lent_daemon):
            with pytest.raises(oc.DeadlineExceededError):
                session.call("planned::wait", -ONES)
            with pytest.raises(oc.DeadlineExceededError):
                session.submit("planned::wait", ONES).result()
        assert len(numbers) == before + 2


def test_a_call_that_ends_its_interpreter_is_blamed(
    start_daemon: Any, openings: Openings, numbers: list[int], tmp_path: Path
):
    daemon = start_daemon(workers=1, listen=[TCP])
    daemon.expects_errors = True
    with streaming(daemon, tmp_path, openings, retry=False) as session:
        for _ in range(4):
            assert session.call("planned::die", ONES).tolist() == [1.0] * 4
        before = len(numbers)
        with pytest.raises(oc.InterpreterDiedError, match="planned::die"):
            session.call("planned::die", -ONES)
        assert len(numbers) == before + 1


def test_every_call_on_a_stream_that_is_lost_reports_its_own_interpreter_death(
    start_daemon: Any, openings: Openings, numbers: list[int], tmp_path: Path
):
    daemon = start_daemon(workers=1, listen=[TCP])
    daemon.expects_errors = True
    with streaming(daemon, tmp_path, openings, retry=False) as session:
        for _ in range(4):
            session.call("planned::die", ONES)
            session.call("planned::wait", ONES)
        errors: dict[str, Exception] = {}

        def call(name: str) -> None:
            try:
                session.call(f"planned::{name}", -ONES)
            except oc.OpdispatchError as error:
                errors[name] = error

        with held(daemon):
            waiting = threading.Thread(target=call, args=("wait",))
            waiting.start()
            assert wait_for(lambda: any(each.calls_in_flight for each in session.interpreters()))
            dying = threading.Thread(target=call, args=("die",))
            dying.start()
            assert wait_for(lambda: sum(i.calls_in_flight for i in session.interpreters()) == 2)
        join(dying)
        join(waiting)
        assert all(isinstance(each, oc.InterpreterDiedError) for each in errors.values())
        assert sorted(errors) == ["die", "wait"]


@pytest.fixture(params=["stream", "local"])
def relayed(
    lent_daemon: RunningDaemon,
    numbers: list[int],
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> Iterator[Planned]:
    """A session that calls no interpreter directly, and the ids of the calls that follow a plan."""
    (tmp_path / "planned.py").write_text(LIBRARY)
    with lent_daemon.connect(lane=request.param, direct=False) as session:
        session.load(tmp_path / "planned.py")
        yield session, numbers


@pytest.mark.parametrize(("operator", "calls"), KINDS.values(), ids=KINDS)
def test_every_kind_of_call_through_the_daemon_is_planned(
    relayed: Planned, operator: str, calls: list[Call]
):
    session, numbers = relayed
    name = f"planned::{operator}"
    general = session.with_options(retry=True)
    before = 0
    for _ in range(5):
        before = len(numbers)
        for args, kwargs in calls:
            mine = outcome(lambda: session.call(name, *args, **kwargs), ONES)  # noqa: B023
            late = outcome(lambda: session.submit(name, *args, **kwargs).result(), ONES)  # noqa: B023
            other = outcome(lambda: general.call(name, *args, **kwargs), ONES)  # noqa: B023
            assert str(mine) == str(late) == str(other)  # no number equals none
    assert len(numbers) == before + 2 * len(calls)


def test_submitted_calls_through_the_daemon_are_planned(
    relayed: Planned, lent_daemon: RunningDaemon
):
    session, numbers = relayed
    x, y = np.ones(4, np.float32), np.ones((2, 2))
    for _ in range(4):
        assert session.submit("planned::total", x, y).result() == 8
    before = len(numbers)
    assert before
    futures = [session.submit("planned::total", x, y) for _ in range(20)]
    x[:] = 7.0  # what was submitted is what was there then
    assert [future.result() for future in futures] == [8.0] * 20
    assert list(session.map("planned::total", [(x, y)] * 20)) == [32.0] * 20
    for _ in range(4):
        session.call("planned::positive", ONES)
    with pytest.raises(oc.KernelError, match="negative"):
        session.submit("planned::positive", -ONES).result()
    with held(lent_daemon):
        waiting = session.submit("planned::wait", -ONES)
        assert waiting.cancel()
    assert session.call("planned::positive", ONES).tolist() == [2.0] * 4
    assert len(numbers) >= before + 41


@pytest.mark.parametrize("operator", OPERATORS)
def test_planned_calls_through_the_daemon_give_what_others_give(relayed: Planned, operator: str):
    session, _ = relayed
    name = f"planned::{operator}"
    general = session.with_options(retry=True)
    for array in ARRAYS.values():
        for step in (0, 1, 2, -9, 3):
            x, y = array.copy() + array.dtype.type(step), array.copy() + array.dtype.type(step)
            mine = outcome(lambda x=x: session.call(name, x), x)  # type: ignore[misc]
            other = outcome(lambda y=y: general.call(name, y), y)  # type: ignore[misc]
            assert mine == other, step


def test_planned_calls_through_the_daemon_run_the_new_version(relayed: Planned, tmp_path: Path):
    session, numbers = relayed
    for version in (1, 2, 3):
        text = LIBRARY.replace("return x + 1", f"return x + {version}")
        (tmp_path / "planned.py").write_text(text)
        session.load(tmp_path / "planned.py")
        for _ in range(4):
            assert session.call("planned::positive", ONES).tolist() == [1.0 + version] * 4
    assert numbers
    session.unload("planned")
    with pytest.raises(oc.OperatorNotFoundError):
        session.call("planned::positive", ONES)
    session.load(tmp_path / "planned.py")


def test_a_planned_call_through_the_daemon_keeps_its_deadline(
    relayed: Planned, lent_daemon: RunningDaemon
):
    _, numbers = relayed
    with lent_daemon.connect(lane="stream", direct=False, timeout=1.0) as session:
        for _ in range(4):
            assert session.call("planned::wait", ONES).tolist() == [1.0] * 4
        before = len(numbers)
        with held(lent_daemon), pytest.raises(oc.DeadlineExceededError, match="wait"):
            session.call("planned::wait", -ONES)
        assert len(numbers) == before + 1


def test_a_planned_call_through_the_daemon_runs_again_where_another_has_ended_its_interpreter(
    start_daemon: Any, numbers: list[int], tmp_path: Path
):
    daemon = start_daemon(workers=1, listen=[TCP])
    daemon.expects_errors = True
    (tmp_path / "planned.py").write_text(LIBRARY)
    with daemon.connect(lane="stream", direct=False) as session:
        session.load(tmp_path / "planned.py")
        for _ in range(4):
            session.call("planned::die", ONES)
        before = len(numbers)
        with pytest.raises(oc.InterpreterDiedError, match="planned::die"):
            session.call("planned::die", -ONES)
        assert len(numbers) == before + 1
        assert session.call("planned::die", ONES).tolist() == [1.0] * 4


def test_planned_calls_wait_for_a_daemon_that_restarts(
    start_daemon: Any, numbers: list[int], tmp_path: Path
):
    daemon = start_daemon(workers=1, listen=[TCP])
    (tmp_path / "planned.py").write_text(LIBRARY)
    with daemon.connect(lane="stream", direct=False, wait=LONGEST_WAIT) as session:
        session.load(tmp_path / "planned.py")
        for _ in range(4):
            session.call("planned::positive", ONES)
        before = len(numbers)
        assert before
        assert daemon.stop() == 0
        start_daemon(workers=1, listen=[daemon.address])
        assert session.submit("planned::positive", ONES).result().tolist() == [2.0] * 4
        assert session.call("planned::positive", ONES).tolist() == [2.0] * 4
        assert len(numbers) > before


def test_changed_bytes_of_a_planned_request_harm_no_interpreter(
    relayed: Planned, lent_daemon: RunningDaemon
):
    session, _ = relayed
    args = (ONES, 3, 0.5)
    form = RequestForm.of(call_request("planned::scaled", args, {}), args)
    assert form is not None
    payloads = [form.write(args, 10.0, number) for number in (1, 2, 3)]
    size = len(payloads[0])
    with grpc.insecure_channel(lent_daemon.address) as channel:
        for place in range(size):
            for bit in (0, 7):
                changed = bytearray(form.write(args, 10.0, 4))
                changed[place] ^= 1 << bit
                stream = channel.stream_stream(CALL_STREAM)(iter([*payloads, bytes(changed)]))
                replies = []
                with contextlib.suppress(grpc.RpcError):  # it may make no sense
                    replies += map(execution_pb2.CallReply.FromString, stream)
                for reply in replies:
                    if reply.id in (1, 2, 3):
                        assert result_of_reply(reply, args, {}).tolist() == [3.0] * 4
    assert session.call("planned::scaled", *args).tolist() == [3.0] * 4


def test_calls_of_a_session_that_reaches_no_interpreter_are_planned(
    start_daemon: Any, openings: Openings, numbers: list[int], tmp_path: Path
):
    daemon = start_daemon("--direct-ports", "none", workers=1, listen=[TCP])
    (tmp_path / "planned.py").write_text(LIBRARY)
    with daemon.connect(lane="stream") as session:
        session.load(tmp_path / "planned.py")
        # The daemon is asked for a route now and then, in a call of the general way.
        assert wait_for(lambda: session.call("planned::positive", ONES)[0] == 2.0 and numbers)
        assert not openings.has_next()
