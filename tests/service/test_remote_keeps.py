"""Results that direct calls keep in interpreters are what the daemon's way keeps."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import opdispatch_client as oc
from tests.service.conftest import StartDaemon, WriteLibrary
from tests.service.remote import MATH, MORE, kept, nothing_is_kept, stores
from tests.service.running_daemon import RunningDaemon, wait_for
from tests.waits import LONGEST_WAIT

SHARED_WORKERS = WORKERS = 2


@pytest.fixture
def math(shared: oc.Session, write_library: WriteLibrary) -> oc.Session:
    """A session with the library `math` in the first of two interpreters."""
    shared.load(write_library("calc", MATH), on="worker-1")
    return shared


def describe(result: Any) -> str:
    if isinstance(result, list | tuple):
        return f"{type(result)} {[describe(each) for each in result]}"
    if isinstance(result, oc.RemoteTensor):
        array = result.numpy()
        facts = result.dtype, result.shape, result.device, result.nbytes, result.interpreter
        return f"{facts} {array.dtype} {array.shape} {array.tolist()}"
    return f"{type(result)} {result}"


def outcome(call: Callable[[], Any]) -> str:
    """Return a call's result or error in words."""
    try:
        return describe(call())
    except oc.OpdispatchError as error:
        return f"{type(error).__name__}: {error.message.partition('Traceback')[0]}"


X = np.arange(4.0)
CALLS: dict[str, tuple[str, tuple[Any, ...]]] = {
    "an array": ("add", (X, X)),
    "what came": ("same", (X,)),
    "no dimensions": ("same", (np.array(3),)),
    "empty": ("same", (np.zeros((0, 2), np.int8),)),
    "columns": ("same", (np.arange(6.0).reshape(2, 3).T,)),
    "large": ("add", (np.ones(200_000), np.ones(200_000))),
    "array and number": ("two", (X,)),
    "list": ("rows", (X.reshape(2, 2),)),
    "number alone": ("writable", (X,)),
    "error": ("boom", (X,)),
}


@pytest.mark.parametrize(("operator", "args"), CALLS.values(), ids=CALLS)
def test_kept_results_are_those_of_the_daemons_way(
    shared_daemon: RunningDaemon,
    math: oc.Session,
    numbers: list[int],
    operator: str,
    args: tuple[Any, ...],
):
    name = f"math::{operator}"
    with shared_daemon.connect(direct=False) as general:
        for _ in range(6):
            before = len(numbers)
            mine = outcome(lambda: math.call(name, *args, remote=True))
            called = len(numbers) - before
            late = outcome(lambda: math.submit(name, *args, remote=True).result())
            submitted = len(numbers) - before - called
            other = outcome(lambda: general.call(name, *args, remote=True))
            assert mine == late == other
        assert called == submitted > 0
    assert nothing_is_kept(math)
    assert stores(math, "worker-1", 0)


def test_a_chain_of_calls_stays_where_it_is(math: oc.Session, numbers: list[int]):
    x = math.put(np.zeros(4), on="worker-1")
    one = math.put(np.ones(4), on="worker-1")
    values = [x]
    for _ in range(300):
        values.append(math.call("math::add", values[-1], one, remote=True))
        del values[:-3]
    assert len(numbers) > 280
    assert values[-1].numpy().tolist() == [300] * 4
    assert math.call("math::add", values[0], one).tolist() == [299] * 4
    assert wait_for(lambda: kept(math) == {"worker-1": (5, 160)})
    assert math.check_invariants() == []


def test_submitted_calls_keep_in_the_order_of_their_arguments(math: oc.Session, numbers: list[int]):
    x, one = math.put(np.zeros(4), on="worker-1"), math.put(np.ones(4), on="worker-1")
    for _ in range(4):
        math.submit("math::add", x, one, remote=True).result(LONGEST_WAIT)
    before = len(numbers)
    values = [x]
    for _ in range(50):
        values.append(math.submit("math::add", values[-1], one, remote=True).result(LONGEST_WAIT))
    mapped = list(math.map("math::add", [(each, one) for each in values], remote=True))
    assert len(numbers) == before + 50 + len(values)
    assert [each.numpy()[0] for each in mapped] == list(range(1, 52))
    failed = [math.submit("math::boom", each, remote=True) for each in values]
    assert all(isinstance(f.exception(LONGEST_WAIT), oc.KernelError) for f in failed)
    assert wait_for(lambda: kept(math) == {"worker-1": (2 + 50 + 51, 32 * (2 + 50 + 51))})
    del x, one, values, mapped, failed
    gc.collect()  # futures and their errors refer to each other
    assert nothing_is_kept(math)
    assert stores(math, "worker-1", 0)


def test_many_kept_values_are_counted_whenever_it_is_asked(math: oc.Session, numbers: list[int]):
    values = []
    for count in range(1, 700):
        values.append(math.call("math::same", X, remote=True))
        if count % 100 == 0:
            assert kept(math) == {"worker-1": (count, 32 * count)}
    assert len(numbers) > 600
    assert [each.numpy().tolist() for each in values[::50]] == [X.tolist()] * 14
    del values
    assert nothing_is_kept(math)
    assert stores(math, "worker-1", 0)


def test_kept_values_move_and_are_written_to_like_any(
    math: oc.Session, write_library: WriteLibrary, numbers: list[int]
):
    math.load(write_library("more", MORE), on="worker-2")
    for _ in range(8):
        before = len(numbers)
        x = math.call("math::add", X, X, remote=True)
        planned = len(numbers) - before
        assert math.call("math::iadd_", x, X) is x
        y = math.call("more::mul", x, X, remote=True)
        assert (x.interpreter, y.interpreter) == ("worker-2", "worker-2")
        assert y.numpy().tolist() == (X * X * 3).tolist()
        z = math.call("math::add", y, x, remote=True)
        assert (y.interpreter, z.interpreter) == ("worker-1", "worker-1")
        assert z.numpy().tolist() == (X * X * 3 + X * 3).tolist()
        with math.program() as p:
            p.output(p.ops.math.add(z, X))
        assert p.result.tolist() == (X * X * 3 + X * 4).tolist()
    assert planned == 1
    del x, y, z, p
    gc.collect()  # programs refer to themselves
    assert nothing_is_kept(math)


def test_a_kernel_that_keeps_its_result_changes_no_value(
    math: oc.Session, write_library: WriteLibrary, numbers: list[int]
):
    source = "import numpy as np\nfrom opdispatch import Library\n\n"
    source += "lib = Library('own', 'DEF')\nstate = np.zeros(4)\n"
    source += "def count():\n    state[...] += 1\n    return state\n"
    source += "lib.define('count() -> Tensor')\n"
    source += "lib.impl('count', count, 'CompositeExplicitAutograd')\n"
    math.load(write_library("own", source), on="worker-1")
    values = [math.call("own::count", remote=True) for _ in range(8)]
    assert numbers
    assert [each.numpy()[0] for each in values] == list(range(1, 9))


def test_limits_hold_for_what_the_daemon_has_not_heard_of(
    start_daemon: StartDaemon, write_library: WriteLibrary, numbers: list[int]
):
    daemon = start_daemon("--remote-values", "100", "--remote-bytes", "100000", workers=1)
    with daemon.connect() as session:
        session.load(write_library("calc", MATH))
        values = [session.call("math::same", X, remote=True) for _ in range(100)]
        with pytest.raises(oc.RemoteLimitError, match="has 100 remote values, and may have 100"):
            session.call("math::same", X, remote=True)
        assert len(numbers) > 20
        assert kept(session) == {"worker-1": (100, 3200)}
        del values[50:]
        assert wait_for(lambda: kept(session) == {"worker-1": (50, 1600)})
        large = np.zeros(5000)
        values += [session.call("math::same", large, remote=True) for _ in range(2)]
        for _ in range(3):
            with pytest.raises(oc.RemoteLimitError, match="bytes in remote values"):
                session.call("math::same", large, remote=True)
        assert kept(session) == {"worker-1": (52, 81600)}
        assert session.check_invariants() == []


def test_a_large_value_has_the_room_that_was_granted(
    start_daemon: StartDaemon, write_library: WriteLibrary, numbers: list[int]
):
    daemon = start_daemon("--remote-bytes", "100000", workers=1)
    large = np.zeros(12_000)
    with daemon.connect() as session:
        session.load(write_library("calc", MATH))
        for _ in range(2):
            for _ in range(6):
                before = len(numbers)
                session.call("math::same", X, remote=True).close()
            assert len(numbers) == before + 1
            assert nothing_is_kept(session)
            with session.put(large) as value:
                assert kept(session) == {"worker-1": (1, 96_000)}
                with pytest.raises(oc.RemoteLimitError):
                    session.put(large)
                assert session.call("math::same", X, remote=True).numpy().tolist() == X.tolist()
            assert nothing_is_kept(session)
            with session.call("math::same", large, remote=True) as value:
                assert value.nbytes == 96_000
            assert nothing_is_kept(session)


def test_result_of_an_abandoned_call_is_not_kept(
    math: oc.Session, tmp_path: Path, numbers: list[int]
):
    for number in range(6):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "open").touch()
        math.call("math::hold", X, str(folder), remote=True).close()
    assert numbers
    folder = tmp_path / "x"
    folder.mkdir()
    before = len(numbers)
    futures = [math.submit("math::hold", X, str(folder), remote=True) for _ in range(6)]
    assert len(numbers) == before + 6
    assert wait_for((folder / "entered").exists)
    for future in futures:
        future.cancel()
    assert nothing_is_kept(math)
    (folder / "open").touch()
    assert wait_for(lambda: all(not each.calls_in_flight for each in math.interpreters()))
    assert nothing_is_kept(math)
    assert stores(math, "worker-1", 0)


def test_a_planned_call_that_is_too_late_keeps_nothing(
    shared_daemon: RunningDaemon, math: oc.Session, tmp_path: Path, numbers: list[int]
):
    with shared_daemon.connect(timeout=1.0) as hasty:
        for number in range(6):
            (tmp_path / str(number)).mkdir()
            (tmp_path / str(number) / "open").touch()
            hasty.call("math::hold", X, str(tmp_path / str(number)), remote=True).close()
        assert numbers
        folder = tmp_path / "x"
        folder.mkdir()
        before = len(numbers)
        late = hasty.submit("math::hold", X, str(folder), remote=True)
        with pytest.raises(oc.DeadlineExceededError):
            hasty.call("math::hold", X, str(folder), remote=True)
        with pytest.raises(oc.DeadlineExceededError):
            late.result(LONGEST_WAIT)
        assert len(numbers) == before + 2
        (folder / "open").touch()
        assert wait_for(lambda: all(not each.calls_in_flight for each in math.interpreters()))
        assert nothing_is_kept(math)
        assert stores(math, "worker-1", 0)


def test_a_session_that_repeats_nothing_keeps_through_the_daemon(
    shared_daemon: RunningDaemon, math: oc.Session, numbers: list[int]
):
    with shared_daemon.connect(retry=False) as session:
        for _ in range(6):
            assert session.call("math::same", X, remote=True).numpy().tolist() == X.tolist()
    assert not numbers


def test_the_error_says_which_interpreter_took_a_value_with_it(
    daemon: RunningDaemon, session: oc.Session, write_library: WriteLibrary, numbers: list[int]
):
    daemon.expects_errors = True
    session.load(write_library("calc", MATH), on="worker-1")
    values = [session.call("math::same", X, remote=True) for _ in range(8)]
    assert numbers
    [pid] = [each.pid for each in session.interpreters() if each.name == "worker-1"]
    last = [session.call("math::same", X, remote=True) for _ in range(2)]
    os.kill(pid, signal.SIGKILL)
    assert wait_for(lambda: not kept(session))
    for value in (values[0], values[-1], last[-1]):
        with pytest.raises(
            oc.RemoteValueGoneError, match=r"interpreter worker-1 \(pid \d+\) went away"
        ):
            value.numpy()
    assert session.check_invariants() == []


def test_ended_session_leaves_no_values(
    shared_daemon: RunningDaemon, math: oc.Session, numbers: list[int]
):
    with shared_daemon.connect() as session:
        values = [session.call("math::same", X, remote=True) for _ in range(20)]
        assert numbers
    assert nothing_is_kept(math)
    assert stores(math, "worker-1", 0)
    with pytest.raises(oc.OpdispatchError):
        values[-1].numpy()


def test_a_stranger_cannot_have_values_kept_for_a_session(
    shared_daemon: RunningDaemon, math: oc.Session, numbers: list[int], monkeypatch: Any
):
    """Its name is a secret, and without a grant for it nothing is kept."""
    with shared_daemon.connect() as other:
        for _ in range(6):
            other.call("math::same", X, remote=True)
        assert numbers
        lease = other._remote._lease.current
        monkeypatch.setattr(lease, "session", bytes(16))
        for _ in range(4):
            with pytest.raises(oc.RemoteValueGoneError, match="this daemon knows of no such"):
                other.call("math::same", X, remote=True)
    assert nothing_is_kept(math)
    assert stores(math, "worker-1", 0)


def test_results_are_kept_by_way_of_a_port(start_daemon: StartDaemon, write_library: WriteLibrary):
    daemon = start_daemon(listen=["127.0.0.1:0"], workers=1)
    with daemon.connect(lane="stream") as session:
        session.load(write_library("calc", MATH))
        value = session.put(X)
        for _ in range(40):
            value = session.call("math::add", value, X, remote=True)
        assert value.numpy().tolist() == (X * 41).tolist()
        assert wait_for(lambda: kept(session) == {"worker-1": (1, 32)})
        value.close()
        assert nothing_is_kept(session)


def test_an_asyncio_session_keeps_directly(math: oc.Session, numbers: list[int]):
    async def run() -> None:
        async with oc.aio.connect(math.address) as session:
            value = await session.put(X, on="worker-1")
            for _ in range(20):
                value = await session.call("math::add", value, X, remote=True)
            assert len(numbers) > 10
            assert (await value.numpy()).tolist() == (X * 21).tolist()
            with pytest.raises(oc.KernelError):
                await session.call("math::boom", value, remote=True)
            tasks = [session.call("math::add", value, X, remote=True) for _ in range(8)]
            results = await asyncio.gather(*tasks)
            assert [(await each.numpy()).tolist() for each in results] == [(X * 22).tolist()] * 8
            before = len(numbers)
            arguments = [(each, X) for each in results]
            mapped = [each async for each in session.map("math::add", arguments, remote=True)]
            assert len(numbers) == before + 8
            assert [(await each.numpy()).tolist() for each in mapped] == [(X * 23).tolist()] * 8

    asyncio.run(run())
    assert nothing_is_kept(math)


def test_results_of_many_threads_are_their_own(math: oc.Session, numbers: list[int]):
    from concurrent.futures import ThreadPoolExecutor

    def run(start: int) -> float:
        value = math.call("math::add", np.full(4, float(start)), np.zeros(4), remote=True)
        for _ in range(60):
            value = math.call("math::add", value, np.ones(4), remote=True)
        return float(value.numpy()[0])

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(run, range(0, 4000, 1000), timeout=LONGEST_WAIT)) == [
            60.0,
            1060.0,
            2060.0,
            3060.0,
        ]
    assert numbers
    assert nothing_is_kept(math)
