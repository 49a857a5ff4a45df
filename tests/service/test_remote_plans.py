"""Calls with remote tensors that go directly to these give what the daemon's way gives."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import opdispatch_client as oc
from opdispatch_client.lanes.call_attempt import CallAttempt
from opdispatch_wire.v1 import values_pb2
from tests.service.conftest import StartDaemon, WriteLibrary
from tests.service.remote import MATH, MORE, kept, nothing_is_kept, stores
from tests.service.running_daemon import RunningDaemon, wait_for
from tests.waits import LONGEST_WAIT

SHARED_WORKERS = WORKERS = 2
ARRAYS = {
    "float32": np.arange(1, 5, dtype=np.float32),
    "no dimensions": np.array(3.0),
    "one element": np.array([3]),
    "empty": np.zeros((0, 2)),
    "big-endian": np.arange(1, 5, dtype=">i4"),
    "bool": np.array([True, False]),
    "columns": np.arange(6.0).reshape(2, 3).T,
    "large": np.arange(3e5).reshape(3, -1),
}
CALLS: dict[str, Callable[[Any, Any], tuple[str, tuple[Any, ...]]]] = {
    "one": lambda x, y: ("same", (x,)),
    "two": lambda x, y: ("add", (x, y)),
    "twice the same": lambda x, y: ("add", (x, x)),
    "list": lambda x, y: ("total", ([x, y, x],)),
    "several results": lambda x, y: ("two", (x,)),
    "list of results": lambda x, y: ("rows", (x,)),
    "error": lambda x, y: ("boom", (x,)),
    "no tensor": lambda x, y: ("writable", (x,)),
}


@pytest.fixture
def math(shared: oc.Session, write_library: WriteLibrary) -> oc.Session:
    """A session with the library `math` in the first of two interpreters."""
    shared.load(write_library("calc", MATH), on="worker-1")
    return shared


def outcome(call: Callable[[], Any]) -> str:
    """Return a call's result or error in words."""
    try:
        return describe(call())
    except oc.OpdispatchError as error:
        return f"{type(error).__name__}: {error.message.partition('Traceback')[0]}"


def describe(result: Any) -> str:
    if isinstance(result, list | tuple):
        return f"{type(result)} {[describe(each) for each in result]}"
    if isinstance(result, np.ndarray):
        return f"{result.dtype} {result.shape} {result.tolist()} {result.flags.writeable}"
    return f"{type(result)} {result}"


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_remote_arguments_give_what_the_daemons_way_gives(
    shared_daemon: RunningDaemon,
    math: oc.Session,
    numbers: list[int],
    call: Callable[[Any, Any], tuple[str, tuple[Any, ...]]],
):
    with shared_daemon.connect(direct=False) as general:
        for name, array in ARRAYS.items():
            x, y = math.put(array, on="worker-1"), math.put(array, on="worker-1")
            there = [general.put(array, on="worker-1") for _ in range(2)]
            for _ in range(4):
                before = len(numbers)
                operator, args = call(x, y)
                mine = outcome(lambda: math.call(f"math::{operator}", *args))  # noqa: B023
                late = outcome(lambda: math.submit(f"math::{operator}", *args).result())  # noqa: B023
                operator, args = call(*there)
                other = outcome(lambda: general.call(f"math::{operator}", *args))  # noqa: B023
                assert mine == late == other, name
            assert len(numbers) == before + 3 or not array.ndim, name
            x.close()
            y.close()
    assert nothing_is_kept(math)


def test_remote_arguments_go_with_arrays_and_by_name(math: oc.Session, numbers: list[int]):
    x, one = math.put(np.arange(4.0), on="worker-1"), np.ones(4)
    for step in range(6):
        before = len(numbers)
        assert math.call("math::add", x, one * step).tolist() == [step + n for n in range(4)]
        assert math.call("math::add", one * step, x).tolist() == [step + n for n in range(4)]
        assert math.call("math::add", y=x, x=x).tolist() == [0, 2, 4, 6]
    assert len(numbers) == before + 3


def test_values_that_are_alike_share_a_plan(math: oc.Session, numbers: list[int]):
    for n in range(8):
        before = len(numbers)
        with math.put(np.full(4, float(n)), on="worker-1") as x:
            assert math.call("math::same", x).tolist() == [n] * 4
    assert len(numbers) == before + 1


def test_planned_call_reads_writes_of_the_call_before(math: oc.Session, numbers: list[int]):
    x, one = math.put(np.zeros(4), on="worker-1"), np.ones(4)
    for n in range(20):
        assert math.call("math::same", x).tolist() == [n] * 4
        assert math.call("math::iadd_", x, one) is x
    assert numbers


def test_a_value_that_has_moved_is_used_where_it_is(
    math: oc.Session, write_library: WriteLibrary, numbers: list[int]
):
    math.load(write_library("more", MORE), on="worker-2")
    x, one = math.put(np.zeros(4), on="worker-1"), np.ones(4)
    for n in range(0, 20, 2):
        for _ in range(4):
            assert math.call("math::same", x).tolist() == [n] * 4
        math.call("math::iadd_", x, one)
        assert math.call("more::mul", x, one).tolist() == [n + 1] * 4
        assert x.interpreter == "worker-2"
        for _ in range(4):
            assert math.call("more::mul", x, one).tolist() == [n + 1] * 4
        math.call("math::iadd_", x, one)
    assert numbers
    assert kept(math) == {"worker-1": (1, 32)}
    assert stores(math, "worker-1", 1)


@pytest.mark.parametrize("how", ["call", "submit"])
def test_plan_through_the_daemon_says_where_a_value_has_moved(
    shared_daemon: RunningDaemon,
    math: oc.Session,
    write_library: WriteLibrary,
    numbers: list[int],
    how: str,
):
    math.load(write_library("more", MORE), on="worker-2")
    one = np.ones(4)
    with shared_daemon.connect(direct=False) as session:
        for n in range(6):
            x = session.put(np.full(4, float(n)), on="worker-1")
            before = len(numbers)
            result = getattr(session, how)("more::mul", x, one)
            if how == "submit":
                result = result.result()
            assert result.tolist() == [n] * 4
            assert x.interpreter == "worker-2"
            # The next call finds it there, as its plan says.
            assert session.call("more::mul", x, x).tolist() == [n * n] * 4
            x.close()
        assert len(numbers) == before + 2
        assert session.check_invariants() == []


def test_values_of_two_interpreters_meet_in_one(
    math: oc.Session, write_library: WriteLibrary, numbers: list[int]
):
    math.load(write_library("more", MORE), on="worker-2")
    for _ in range(6):
        x = math.put(np.arange(4.0), on="worker-1")
        y = math.put(np.arange(4.0), on="worker-2")
        assert math.call("math::add", x, y).tolist() == [0, 2, 4, 6]
        assert math.call("math::add", x, y).tolist() == [0, 2, 4, 6]
        assert math.call("more::mul", x, y).tolist() == [0, 1, 4, 9]
        x.close()
        y.close()


def test_a_value_that_was_closed_is_named(math: oc.Session, numbers: list[int]):
    for _ in range(6):
        x = math.put(np.arange(4.0), on="worker-1")
        math.call("math::same", x)
    assert numbers
    x.close()
    with pytest.raises(oc.RemoteValueGoneError, match=f"{x.id}.*it was closed"):
        math.call("math::same", x)


def test_error_of_a_call_keeps_no_value_alive(math: oc.Session, numbers: list[int]):
    raised = []
    for _ in range(6):
        x = math.put(np.arange(4.0), on="worker-1")
        with pytest.raises(oc.KernelError) as caught:
            math.call("math::boom", x)
        raised.append(caught.value)
        x.close()
    assert numbers
    assert nothing_is_kept(math)


def test_a_strangers_reference_is_refused_on_the_direct_way(
    shared_daemon: RunningDaemon, math: oc.Session, numbers: list[int], monkeypatch: Any
):
    x = math.put(np.arange(4.0), on="worker-1")
    with shared_daemon.connect() as other:
        y = other.put(np.zeros(4), on="worker-1")
        for _ in range(5):
            assert other.call("math::same", y).tolist() == [0] * 4
        before = len(numbers)
        for operator in ("same", "two"):  # a planned call, and one of the general way
            with monkeypatch.context() as patch:
                patch.setattr(y, "_number", x._number)
                patch.setattr(y, "_held", x._held)
                with pytest.raises(oc.RemoteValueGoneError, match="there is no remote tensor"):
                    other.call(f"math::{operator}", y)
        assert len(numbers) == before + 1
        assert other.call("math::same", y).tolist() == [0] * 4
    assert math.call("math::same", x).tolist() == [0, 1, 2, 3]


def test_a_value_in_use_stays_until_its_direct_calls_have_ended(
    math: oc.Session, tmp_path: Path, numbers: list[int]
):
    """Also those that wait for others: of `math`, two run at a time."""
    for number in range(5):
        with math.put(np.zeros(2), on="worker-1") as x:
            (tmp_path / str(number)).mkdir()
            (tmp_path / str(number) / "open").touch()
            math.call("math::hold", x, str(tmp_path / str(number)))
    assert numbers
    x = math.put(np.zeros(2), on="worker-1")
    folder = tmp_path / "x"
    folder.mkdir()
    futures = [math.submit("math::hold", x, str(folder)) for _ in range(6)]
    assert wait_for((folder / "entered").exists)
    x.close()
    with pytest.raises(oc.RemoteValueGoneError, match="it was closed"):
        math.submit("math::hold", x, str(folder)).result(LONGEST_WAIT)
    (folder / "open").touch()
    assert [f.result(LONGEST_WAIT).tolist() for f in futures] == [[1, 1]] * 6
    assert nothing_is_kept(math)
    assert stores(math, "worker-1", 0)


def test_a_direct_call_that_ends_its_interpreter_says_so(
    daemon: RunningDaemon, session: oc.Session, write_library: WriteLibrary, numbers: list[int]
):
    daemon.expects_errors = True
    source = MATH.replace("def die(x):\n", "def die(x):\n    if x[0] > 0:\n        return x\n")
    session.load(write_library("calc", source), on="worker-1")
    x = session.put(np.ones(3), on="worker-1")
    y = session.put(np.zeros(3), on="worker-1")
    for _ in range(5):
        session.call("math::die", x)
    assert numbers
    with pytest.raises((oc.InterpreterDiedError, oc.RemoteValueGoneError), match="worker-1"):
        session.call("math::die", y)
    with pytest.raises(oc.RemoteValueGoneError, match="exited with status 3"):
        session.call("math::same", x)


def test_a_session_that_repeats_nothing_hears_of_the_death_itself(
    daemon: RunningDaemon, write_library: WriteLibrary
):
    daemon.expects_errors = True
    source = MATH.replace("def die(x):\n", "def die(x):\n    if x[0] > 0:\n        return x\n")
    with daemon.connect(retry=False) as session:
        session.load(write_library("calc", source), on="worker-1")
        x = session.put(np.ones(3), on="worker-1")
        y = session.put(np.zeros(3), on="worker-1")
        for _ in range(5):
            session.call("math::die", x)
        with pytest.raises(oc.InterpreterDiedError, match="math::die"):
            session.call("math::die", y)


def test_an_asyncio_session_plans_them(math: oc.Session, numbers: list[int]):
    async def run() -> None:
        async with oc.aio.connect(math.address) as session:
            x = await session.put(np.arange(4.0), on="worker-1")
            for _ in range(6):
                before = len(numbers)
                assert (await session.call("math::add", x, x)).tolist() == [0, 2, 4, 6]
                with pytest.raises(oc.KernelError, match="no picture"):
                    await session.call("math::boom", x)
            assert len(numbers) == before + 2

    asyncio.run(run())


def test_they_go_directly_to_ports_as_well(
    start_daemon: StartDaemon, write_library: WriteLibrary, monkeypatch: pytest.MonkeyPatch
):
    daemon = start_daemon(listen=["127.0.0.1:0"], workers=1)
    with daemon.connect(lane="stream") as session:
        session.load(write_library("calc", MATH))
        x, y = session.put(np.arange(4.0)), session.put(np.ones(4))
        went: list[int | None] = []
        prepare = CallAttempt.prepare_for_stream

        def noting(self: CallAttempt, inline_bytes: int | None) -> None:
            went.append(inline_bytes)
            prepare(self, inline_bytes)

        monkeypatch.setattr(CallAttempt, "prepare_for_stream", noting)
        assert wait_for(lambda: session.call("math::add", x, y).tolist() == [1, 2, 3, 4] and went)
        assert session.submit("math::add", x, y).result().tolist() == [1, 2, 3, 4]


def test_the_request_says_what_its_values_are_like(math: oc.Session):
    x = math.put(np.ones((2, 3), np.float32), on="worker-1")
    message = values_pb2.Value()
    x.__opdispatch_fill_value__(message, "$")
    assert message.remote.dtype == "float32"
    assert list(message.remote.shape) == [2, 3]
