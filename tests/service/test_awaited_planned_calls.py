"""Awaited calls that follow a plan give what the general way gives, errors included."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import opdispatch_client as oc
from opdispatch.errors import OpdispatchError
from tests.service.planned_library import (
    KINDS,
    LIBRARY,
    ONES,
    describe,
    held,
    outcome,
    planned,
)
from tests.service.running_daemon import RunningDaemon

__all__ = ["planned"]

SHARED_WORKERS = WORKERS = 1


def run(session: oc.Session, calls: Callable[[oc.aio.AsyncSession], Any], **settings: Any) -> Any:
    """Run a coroutine with an asyncio session of the same daemon."""

    async def main() -> Any:
        async with oc.aio.connect(session.address, **settings) as there:
            return await calls(there)

    return asyncio.run(main())


async def awaited_outcome(call: Any) -> Any:
    """As ``outcome``, of a coroutine."""
    try:
        result = await call
    except OpdispatchError as error:
        result = type(error), error.message.partition("Traceback")[0]
    return describe(result), ONES.tolist(), False


def test_every_kind_of_call_is_planned_in_an_asyncio_session(
    planned: tuple[oc.Session, list[int]],
):
    session, numbers = planned
    general = session.with_options(retry=True)

    async def calls(there: oc.aio.AsyncSession) -> None:
        for kind, (operator, kinds) in KINDS.items():
            name = f"planned::{operator}"
            for _ in range(5):
                before = len(numbers)
                for args, kwargs in kinds:
                    mine = await awaited_outcome(there.call(name, *args, **kwargs))
                    other = outcome(lambda: general.call(name, *args, **kwargs), ONES)  # noqa: B023
                    assert str(mine) == str(other), kind
            assert len(numbers) == before + len(kinds), kind

    run(session, calls)


def test_awaited_calls_in_flight_get_their_own_results_and_errors(
    planned: tuple[oc.Session, list[int]],
):
    session, numbers = planned
    arrays = [np.full(4, value) for value in (1.0, -1.0, 2.0, 3.0)]

    async def calls(there: oc.aio.AsyncSession) -> None:
        for _ in range(4):
            await there.call("planned::positive", arrays[0])
        before = len(numbers)
        found = await asyncio.gather(
            *(there.call("planned::positive", array) for array in arrays * 20),
            return_exceptions=True,
        )
        for array, result in zip(arrays * 20, found, strict=True):
            if array[0] < 0:
                assert isinstance(result, oc.KernelError)
            else:
                assert result.tolist() == (array + 1).tolist()
        assert len(numbers) == before + 80
        results = [each async for each in there.map("planned::same", [(a,) for a in arrays] * 5)]
        assert [each.tolist() for each in results] == [a.tolist() for a in arrays] * 5

    run(session, calls)


def test_an_awaited_planned_call_keeps_its_deadline_and_can_be_cancelled(
    planned: tuple[oc.Session, list[int]], lent_daemon: RunningDaemon
):
    session, numbers = planned

    async def calls(there: oc.aio.AsyncSession) -> None:
        for _ in range(5):
            await there.call("planned::wait", ONES)
        before = len(numbers)
        slow = asyncio.create_task(there.call("planned::wait", -ONES))
        waiting = [asyncio.create_task(there.call("planned::wait", ONES)) for _ in range(3)]
        await asyncio.sleep(0)
        for task in waiting:
            task.cancel()
        found = await asyncio.gather(*waiting, return_exceptions=True)
        assert all(isinstance(each, asyncio.CancelledError) for each in found)
        with pytest.raises(oc.DeadlineExceededError):
            await slow
        assert len(numbers) == before + 4

    with held(lent_daemon):
        run(session, calls, timeout=1.0)
    assert session.call("planned::same", ONES).tolist() == ONES.tolist()


def test_an_awaited_planned_call_runs_the_new_version(
    planned: tuple[oc.Session, list[int]], tmp_path: Path
):
    session, numbers = planned

    async def calls(there: oc.aio.AsyncSession) -> None:
        for _ in range(4):
            assert (await there.call("planned::positive", ONES)).tolist() == [2.0] * 4
        assert numbers
        (tmp_path / "planned.py").write_text(LIBRARY.replace("return x + 1", "return x + 2"))
        await there.load(tmp_path / "planned.py")
        for _ in range(4):
            assert (await there.call("planned::positive", ONES)).tolist() == [3.0] * 4

    run(session, calls)


def test_an_awaited_planned_call_that_ends_its_interpreter_is_blamed(
    daemon: RunningDaemon, numbers: list[int], tmp_path: Path
):
    (tmp_path / "planned.py").write_text(LIBRARY)
    daemon.expects_errors = True

    async def calls(there: oc.aio.AsyncSession) -> None:
        await there.load(tmp_path / "planned.py")
        for _ in range(5):
            await there.call("planned::die", ONES)
        before = len(numbers)
        with pytest.raises(oc.InterpreterDiedError, match="planned::die"):
            await there.call("planned::die", -ONES)
        assert len(numbers) == before + 1

    with daemon.connect() as session:
        run(session, calls, retry=False)
