"""Single calls with a timeout of their own, and the event loop that a session belongs to."""

from __future__ import annotations

import asyncio
import math
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import opdispatch_client as oc
from opdispatch import Tensor
from opdispatch_client.blocking import submitted_futures
from opdispatch_client.endpoint import LaneChoice
from tests.service.running_daemon import RunningDaemon, wait_for

X = np.arange(3.0)
# Sessions wait for so long, calls for a moment; a test that waits for the session's has failed.
SESSIONS, MOMENT = 60.0, 0.1


@pytest.fixture(params=["local", "stream", "grpc"])
def lane(request: pytest.FixtureRequest) -> LaneChoice:
    lane: LaneChoice = request.param
    return lane


@pytest.fixture
def patient(daemon: RunningDaemon, lane: LaneChoice, folder: Path) -> Iterator[oc.Session]:
    with daemon.connect(lane=lane, timeout=SESSIONS) as session:
        yield session


@pytest.fixture
def folder(daemon: RunningDaemon, tmp_path: Path) -> Iterator[Path]:
    """Where calls of `park::wait` wait: they end with the test at the latest."""
    yield tmp_path
    for entered in tmp_path.rglob("entered"):
        (entered.parent / "leave").touch()
    with daemon.connect() as session:
        assert wait_for(lambda: session.interpreters()[0].calls_in_flight == 0)


@contextmanager
def too_late(folder: Path) -> Iterator[str]:
    """A block whose call is too late; it is given where to wait, and the call ends after it."""
    place = Path(tempfile.mkdtemp(dir=folder))
    began = time.monotonic()
    with pytest.raises(oc.DeadlineExceededError):
        yield str(place)
    (place / "leave").touch()
    assert time.monotonic() - began < SESSIONS / 2


def test_call_ends_at_its_own_deadline(patient: oc.Session, folder: Path):
    with too_late(folder) as place:
        patient.with_options(timeout=MOMENT).ops.park.wait(place)
    with too_late(folder) as place:
        patient.with_options(timeout=MOMENT).call("park::wait", place)
    with too_late(folder) as place:
        patient.ops.park.wait.with_options(timeout=MOMENT)(place)
    with too_late(folder) as place:
        patient.ops.park.wait.with_options(timeout=MOMENT).with_options(retry=False)(place)
    with too_late(folder) as place:
        patient.submit("park::wait", place, timeout=MOMENT).result()
    with too_late(folder) as place:
        patient.submit("park::wait", place, timeout=MOMENT, remote=True).result()
    with too_late(folder) as place:
        list(patient.map("park::wait", [(place,)], timeout=MOMENT))
    with too_late(folder) as place:
        patient.with_options(timeout=MOMENT, remote=True).ops.park.wait(place)
    with too_late(folder) as place, patient.program(timeout=MOMENT) as program:
        program.output(program.ops.park.wait(place))
    with too_late(folder):
        patient.as_program(lambda x: patient.ops.park.double(x), timeout=1e-9)(X)
    assert patient.ops.park.double(X)[1] == 2


def test_remote_tensors_and_traces_have_deadlines_of_their_own(patient: oc.Session, folder: Path):
    tensor = patient.put(Tensor(X, requires_grad=True), timeout=SESSIONS)
    with too_late(folder) as place:
        patient.with_options(timeout=MOMENT).trace("park::wait", place)
    late: list[Callable[[], Any]] = [
        lambda: patient.put(X, timeout=1e-9),
        lambda: patient.grad(tensor, tensor, tensor, timeout=1e-9),
        lambda: tensor.numpy(timeout=1e-9),
    ]
    for call in late if patient.lane != "grpc" else []:  # whose answer may be there first
        with too_late(folder):
            call()
    assert tensor.cpu(timeout=SESSIONS).numpy(timeout=math.inf)[1] == 1
    assert patient.with_options(timeout=SESSIONS).trace("park::double", X)[0][1] == 2


async def test_remote_tensors_and_traces_of_asyncio_have_deadlines_of_their_own(
    daemon: RunningDaemon, lane: LaneChoice, folder: Path
):
    async with oc.aio.connect(daemon.address, lane=lane, timeout=SESSIONS) as session:
        tensor = await session.put(Tensor(X, requires_grad=True), timeout=SESSIONS)
        with too_late(folder) as place:
            await session.with_options(timeout=MOMENT).trace("park::wait", place)
        late: list[Callable[[], Any]] = [
            lambda: session.put(X, timeout=1e-9),
            lambda: session.grad(tensor, tensor, tensor, timeout=1e-9),
            lambda: tensor.numpy(timeout=1e-9),
        ]
        for call in late if session.lane != "grpc" else []:  # whose answer may be there first
            with too_late(folder):
                await call()
        assert (await (await tensor.cpu(timeout=SESSIONS)).numpy(timeout=math.inf))[1] == 1


async def test_asyncio_call_ends_at_its_own_deadline(
    daemon: RunningDaemon, lane: LaneChoice, folder: Path
):
    async with oc.aio.connect(daemon.address, lane=lane, timeout=SESSIONS) as session:
        with too_late(folder) as place:
            await session.with_options(timeout=MOMENT).ops.park.wait(place)
        with too_late(folder) as place:
            await session.ops.park.wait.with_options(timeout=MOMENT)(place)
        with too_late(folder) as place:
            await session.with_options(timeout=MOMENT, remote=True).call("park::wait", place)
        with too_late(folder) as place:
            async for _ in session.map("park::wait", [(place,)], timeout=MOMENT):
                pass
        with too_late(folder) as place:
            async with session.program(timeout=MOMENT) as program:
                program.output(program.ops.park.wait(place))
        with too_late(folder):
            await session.as_program(lambda x: session.ops.park.double(x), timeout=1e-9)(X)
        assert (await session.ops.park.double(X))[1] == 2


@pytest.mark.parametrize("timeout", [SESSIONS, 10**9, 10**400, math.inf, np.float32(60)])
def test_call_may_take_longer_than_its_session(
    daemon: RunningDaemon, lane: LaneChoice, tmp_path: Path, timeout: float
):
    with daemon.connect(lane=lane, timeout=2 * MOMENT) as session:
        future = session.submit("park::wait", str(tmp_path), timeout=timeout)
        assert wait_for((tmp_path / "entered").exists)
        # Nothing else tells that the session's own timeout has passed for such a call.
        with pytest.raises(oc.DeadlineExceededError):
            session.ops.park.wait(str(tmp_path))
        assert not future.done()
        (tmp_path / "leave").touch()
        assert future.result() == 1


def test_wait_for_other_calls_counts(
    daemon: RunningDaemon, folder: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(submitted_futures, "SUBMITTED_AT_MOST", 1)
    with daemon.connect(timeout=SESSIONS) as session:
        first = session.submit("park::wait", str(folder))
        with pytest.raises(oc.DeadlineExceededError) as caught:
            session.submit("park::double", X, timeout=MOMENT).result()
        assert caught.value.facts["started"] == "no"
        assert not first.done()


@pytest.mark.parametrize(
    "wrong", [0, -1, -0.0, math.nan, -math.inf, "1", True, [1], timedelta(seconds=1), 1j, X]
)
def test_wrong_timeout_is_an_error_that_names_it(session: oc.Session, wrong: Any):
    tensor = session.put(X)
    asks: list[Callable[[], Any]] = [
        lambda: session.with_options(timeout=wrong),
        lambda: session.ops.park.double.with_options(timeout=wrong),
        lambda: session.submit("park::double", X, timeout=wrong),
        lambda: session.map("park::double", [(X,)], timeout=wrong),
        lambda: session.program(timeout=wrong),
        lambda: session.as_program(lambda x: x, timeout=wrong),
        lambda: session.put(X, timeout=wrong),
        lambda: session.grad(tensor, tensor, timeout=wrong),
        lambda: tensor.numpy(timeout=wrong),
        lambda: tensor.cpu(timeout=wrong),
    ]
    for ask in asks:
        with pytest.raises(oc.ArgumentError, match=r"^timeout is "):
            ask()


def test_options_are_not_for_recorded_calls(session: oc.Session):
    with session.program() as program:
        with pytest.raises(oc.ArgumentError, match="got timeout"):
            program.ops.park.double.with_options(timeout=1)
        program.output(program.ops.park.double(X))
    assert program.result[1] == 2


def test_session_in_a_second_event_loop_says_so(daemon: RunningDaemon):
    async def open_session() -> Any:
        session = await oc.aio.connect(daemon.address)
        return session, await session.put(X)

    async def items(iterator: AsyncIterator[Any]) -> list[Any]:
        return [item async for item in iterator]

    async def close(session: Any) -> None:
        await session.close()

    loop = asyncio.new_event_loop()
    session, remote = loop.run_until_complete(open_session())
    uses: list[Callable[[], Any]] = [
        lambda: session.ops.park.double(X),
        lambda: session.call("park::double", X, remote=True),
        lambda: session.libraries(),
        lambda: session.put(X),
        lambda: remote.numpy(),
        lambda: items(session.map("park::double", [(X,)])),
        lambda: session.close(),
    ]

    async def use(what: Callable[[], Any]) -> None:
        with pytest.raises(oc.EventLoopError, match="belongs to the event loop that it was opened"):
            await what()

    for what in uses[:-1]:
        asyncio.run(use(what))
    assert (loop.run_until_complete(session.ops.park.double(X)))[1] == 2
    loop.run_until_complete(close(session))
    loop.close()
    for what in uses:
        asyncio.run(use(what))
