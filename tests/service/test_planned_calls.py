"""Calls that follow a plan give what the general way gives, errors included."""

from __future__ import annotations

import weakref
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import opdispatch
import opdispatch_client as oc
from opdispatch import Tensor
from opdispatch.errors import OpdispatchError
from tests.service.planned_library import (
    ARRAYS,
    KINDS,
    LIBRARY,
    ONES,
    OPERATORS,
    Call,
    held,
    outcome,
    planned,
)
from tests.service.running_daemon import RunningDaemon, wait_for

__all__ = ["planned"]

SHARED_WORKERS = WORKERS = 1


@pytest.mark.parametrize("array", ARRAYS.values(), ids=ARRAYS)
def test_planned_calls_give_what_others_give(
    planned: tuple[oc.Session, list[int]], array: np.ndarray[Any, Any]
):
    session, _ = planned
    general = session.with_options(retry=True)
    for operator in OPERATORS:
        name = f"planned::{operator}"
        for step in (0, 1, 2, -9, 3):
            x, y = array.copy() + array.dtype.type(step), array.copy() + array.dtype.type(step)
            mine = outcome(lambda x=x, name=name: session.call(name, x), x)  # type: ignore[misc]
            z = array.copy() + array.dtype.type(step)
            late = outcome(lambda z=z, name=name: session.submit(name, z).result(), z)  # type: ignore[misc]
            assert mine == late, (name, step)
            other = outcome(lambda y=y, name=name: general.call(name, y), y)  # type: ignore[misc]
            assert mine == other, (name, step)


@pytest.mark.parametrize("operator", OPERATORS)
def test_planned_calls_of_tensors_give_what_others_give(
    planned: tuple[oc.Session, list[int]], operator: str
):
    session, _ = planned
    general = session.with_options(retry=True)
    name = f"planned::{operator}"
    for step in (0, 1, 2, -9, 3):
        x, y = (Tensor(np.arange(1.0, 5.0) + step) for _ in range(2))
        mine = outcome(lambda x=x: session.call(name, x), x.array)  # type: ignore[misc]
        other = outcome(lambda y=y: general.call(name, y), y.array)  # type: ignore[misc]
        assert mine == other, step


def test_calls_follow_a_plan_once_one_has_gone_directly(planned: tuple[oc.Session, list[int]]):
    session, numbers = planned
    x, y = np.ones(4, np.float32), np.ones((2, 2))
    for _ in range(10):  # the first ones ask for the route, and leave the plan
        assert session.call("planned::total", x, y) == 8
    assert numbers
    numbers.clear()
    assert session.call("planned::total", x, y) == 8
    assert len(numbers) == 1
    session.call("planned::total", x, np.ones((4, 1)))
    session.with_options(timeout=10).call("planned::total", x, y)
    with opdispatch.no_grad():
        session.call("planned::total", x, y)
    assert len(numbers) == 1
    session.ops.planned.total(x, y)
    assert len(numbers) == 2


@pytest.mark.parametrize(
    ("operator", "args"),
    [
        ("scaled", (np.ones(4), 3)),
        ("scaled", (np.ones(4), 3, 0.0)),
        ("scaled", (np.ones(4), 3, -0.0)),
        ("scaled", (np.ones(4), 3, 2)),
        ("scaled", (np.ones(4), True)),
        ("scaled", (np.ones(4), 1.5)),
        ("scaled", (np.ones(4), 3, float("nan"))),
        ("named", ("text", np.ones(4), None, np.ones(4))),
        ("named", ("longer", np.ones(4), 7, np.ones(4))),
        ("named", ("longer", np.ones(4), 2**70, np.ones(4))),
        ("sized", (np.ones(4), 2, 1.0)),
        ("sized", (np.ones(4), 2, 1)),
        ("sized", (np.ones(4), 2, True)),
    ],
)
def test_constants_of_planned_calls_are_those_of_others(
    planned: tuple[oc.Session, list[int]], operator: str, args: tuple[Any, ...]
):
    session, _ = planned
    general = session.with_options(retry=True)
    for _ in range(5):
        mine = outcome(lambda: session.call(f"planned::{operator}", *args), np.ones(1))
        other = outcome(lambda: general.call(f"planned::{operator}", *args), np.ones(1))
        assert str(mine) == str(other)  # no number equals none


@pytest.mark.parametrize(("operator", "calls"), KINDS.values(), ids=KINDS)
def test_every_kind_of_call_is_planned_and_gives_what_the_general_way_gives(
    planned: tuple[oc.Session, list[int]], operator: str, calls: list[Call]
):
    session, numbers = planned
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


def test_arguments_that_are_converted_by_value_are_looked_at_in_every_call(
    planned: tuple[oc.Session, list[int]],
):
    session, numbers = planned
    general = session.with_options(retry=True)
    for _ in range(5):
        assert session.call("planned::at", ONES, "cpu") == "cpu"
    before = len(numbers)
    for device in ("cup", "!!!"):
        with pytest.raises(OpdispatchError) as mine:
            session.call("planned::at", ONES, device)
        with pytest.raises(OpdispatchError) as other:
            general.call("planned::at", ONES, device)
        assert type(mine.value) is type(other.value)
        assert mine.value.message == other.value.message
    assert len(numbers) == before + 2


@pytest.mark.parametrize(
    ("operator", "args"),
    [
        ("same", (Tensor(np.ones(4), requires_grad=True),)),
        ("scaled", (ONES, 2**70)),
        ("sum_of", ([1] * 17, 1j)),
        ("sum_of", ([1], 1j)),
    ],
)
def test_other_calls_take_the_general_way(
    planned: tuple[oc.Session, list[int]], operator: str, args: tuple[Any, ...]
):
    session, numbers = planned
    general = session.with_options(retry=True)
    for _ in range(5):
        mine = outcome(lambda: session.call(f"planned::{operator}", *args), ONES)
        other = outcome(lambda: general.call(f"planned::{operator}", *args), ONES)
        assert mine == other
    assert not numbers


def test_calls_that_are_all_of_other_shapes_leave_no_plans(planned: tuple[oc.Session, list[int]]):
    session, numbers = planned
    for size in range(1, 20):
        assert session.call("planned::same", np.ones(size)).tolist() == [1.0] * size
    assert not numbers
    for _ in range(3):
        session.call("planned::same", np.ones(7))
    assert numbers


def test_submitted_calls_follow_a_plan_and_make_one(planned: tuple[oc.Session, list[int]]):
    session, numbers = planned
    x, y = np.ones(4, np.float32), np.ones((2, 2))
    for _ in range(10):
        assert session.submit("planned::total", x, y).result() == 8
    assert numbers
    before = len(numbers)
    futures = [session.submit("planned::total", x, y) for _ in range(20)]
    x[:] = 7.0  # what was submitted is what was there then
    assert [future.result() for future in futures] == [8.0] * 20
    assert list(session.map("planned::total", [(x, y)] * 20)) == [32.0] * 20
    assert len(numbers) == before + 40
    session.submit("planned::total", x, y, timeout=10).result()
    assert len(numbers) == before + 40


def test_errors_of_planned_calls_are_those_of_their_futures(planned: tuple[oc.Session, list[int]]):
    session, numbers = planned
    arrays = [np.full(4, value) for value in (1.0, -1.0, 2.0)]
    for _ in range(4):
        session.call("planned::positive", arrays[0])
    before = len(numbers)
    futures = [session.submit("planned::positive", array) for array in arrays]
    assert futures[0].result().tolist() == [2.0] * 4
    with pytest.raises(oc.KernelError, match="negative"):
        futures[1].result()
    assert futures[2].result().tolist() == [3.0] * 4
    assert len(numbers) == before + 3


@pytest.mark.parametrize("direct", [True, False], ids=["direct", "daemon"])
def test_kept_errors_of_submitted_calls_keep_no_arguments(
    planned: tuple[oc.Session, list[int]], shared_daemon: RunningDaemon, direct: bool
):
    numbers = planned[1]
    with shared_daemon.connect(direct=direct) as session:
        errors, arrays = [], []
        for _ in range(6):
            array = np.full(4, -1.0)
            arrays.append(weakref.ref(array))
            errors.append(session.submit("planned::positive", array).exception())
            del array
        assert all(isinstance(error, oc.KernelError) for error in errors)
        assert wait_for(lambda: not any(array() is not None for array in arrays))
    assert numbers


def test_planned_calls_under_way_run_one_version_or_the_next(
    planned: tuple[oc.Session, list[int]], tmp_path: Path
):
    session, numbers = planned
    x = np.ones(4)
    for _ in range(4):
        session.call("planned::positive", x)
    (tmp_path / "planned.py").write_text(LIBRARY.replace("return x + 1", "return x + 2"))
    futures = [session.submit("planned::positive", x) for _ in range(200)]
    session.load(tmp_path / "planned.py")
    futures += [session.submit("planned::positive", x) for _ in range(50)]
    results = [float(future.result()[0]) for future in futures]
    assert set(results[:200]) <= {2.0, 3.0}
    assert results[200:] == [3.0] * 50
    assert numbers


def test_a_planned_call_that_waits_can_be_cancelled(
    planned: tuple[oc.Session, list[int]], lent_daemon: RunningDaemon
):
    session, _ = planned
    for _ in range(5):
        session.call("planned::wait", np.ones(4))
    with held(lent_daemon):
        slow = session.submit("planned::wait", -np.ones(4))
        futures = [session.submit("planned::wait", np.ones(4)) for _ in range(5)]
        assert all(future.cancel() for future in futures)
        slow.cancel()
    assert session.call("planned::same", np.ones(4)).tolist() == [1.0] * 4


def test_a_planned_call_runs_the_new_version(planned: tuple[oc.Session, list[int]], tmp_path: Path):
    session, numbers = planned
    x = np.ones(4)
    for _ in range(4):
        assert session.call("planned::positive", x).tolist() == [2.0] * 4
    assert numbers
    (tmp_path / "planned.py").write_text(LIBRARY.replace("return x + 1", "return x + 2"))
    session.load(tmp_path / "planned.py")
    assert session.call("planned::positive", x).tolist() == [3.0] * 4


def test_a_planned_call_that_ends_its_interpreter_is_blamed(
    daemon: RunningDaemon, numbers: list[int], tmp_path: Path
):
    (tmp_path / "planned.py").write_text(LIBRARY)
    daemon.expects_errors = True
    with daemon.connect(retry=False) as session:
        session.load(tmp_path / "planned.py")
        for _ in range(5):
            assert session.call("planned::die", np.ones(4)).tolist() == [1.0] * 4
        assert numbers
        before = len(numbers)
        with pytest.raises(oc.InterpreterDiedError, match="planned::die"):
            session.call("planned::die", -np.ones(4))
        assert len(numbers) == before + 1


def test_a_planned_call_keeps_its_deadline(
    planned: tuple[oc.Session, list[int]], lent_daemon: RunningDaemon
):
    session, numbers = planned
    with oc.connect(session.address, timeout=1.0) as patient:
        for _ in range(5):
            assert patient.call("planned::wait", np.ones(4)).tolist() == [1.0] * 4
        before = len(numbers)
        with held(lent_daemon), pytest.raises(oc.DeadlineExceededError):
            patient.call("planned::wait", -np.ones(4))
        assert len(numbers) == before + 1


def test_planned_calls_of_many_threads_get_their_own_results(
    planned: tuple[oc.Session, list[int]],
):
    session, numbers = planned

    def run(place: int) -> list[float]:
        x = np.full(4, place, np.float32)
        y = np.full((2, 2), place)
        return [float(session.call("planned::total", x, y)) for _ in range(50)]

    with ThreadPoolExecutor(8) as pool:
        for place, totals in enumerate(pool.map(run, range(8))):
            assert totals == [8.0 * place] * 50
    assert numbers
