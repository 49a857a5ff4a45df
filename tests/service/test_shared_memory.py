"""Large tensors of direct calls travel in shared memory; only the time shows it."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import opdispatch_client as oc
from tests.service.running_daemon import RunningDaemon, wait_for
from tests.service.shared_memory import (
    Door,
    interpreter_pid,
    shared_bytes_of,
    shared_memory_of,
)
from tests.waits import LONGEST_WAIT

N = 50_000
SMALL = np.zeros(1, np.float32)


@pytest.fixture
def session(mem_daemon: RunningDaemon) -> Iterator[oc.Session]:
    """A session whose next calls go directly, and share memory."""
    with mem_daemon.connect() as session:
        x = np.zeros(N, np.float32)
        warm_up(session, x)
        yield session
    gc.collect()


def warm_up(session: oc.Session, x: np.ndarray) -> None:
    """Make calls until the daemon has routed them and both sides have passed their regions."""
    for _ in range(2):
        session.ops.mem.add(x, x)
        session.ops.mem.add_(x.copy(), x)
        session.ops.mem.add_out(x, x, out=x.copy())
        session.ops.mem.same(x)
        session.ops.mem.copy(x)
        session.ops.mem.writeable(x)
        session.ops.mem.double_all_([x.copy(), x.copy()])


def is_shared(array: np.ndarray) -> bool:
    """Whether the array lies in a memfd of ours."""
    address = array.__array_interface__["data"][0]
    for line in Path("/proc/self/maps").read_text().splitlines():
        start, stop = (int(part, 16) for part in line.split()[0].split("-"))
        if start <= address < stop:
            return "memfd:opdispatch" in line
    return False


DTYPES = [
    *("int8", "uint16", "int64", "float16", "float32", "float64", "complex64", "complex128"),
    *("bool", ">f8", ">i4"),
]


@pytest.mark.parametrize("dtype", [*map(np.dtype, DTYPES), np.dtype(ml_dtypes.bfloat16)], ids=str)
def test_every_dtype_arrives_as_it_was_sent(session: oc.Session, dtype: np.dtype):
    bits = np.random.default_rng(1).integers(0, 2 if dtype.kind == "b" else 100, N * 2)
    there = session.empty(bits.shape, dtype)
    there[:] = bits.astype(dtype)
    for x in (bits.astype(dtype), there):
        for call in (session.ops.mem.same, session.ops.mem.copy):
            result = call(x)
            np.testing.assert_array_equal(result, x)
            assert result.dtype == dtype.newbyteorder("=")
            result[0] = 1  # it is the caller's own
    assert dtype.kind == "b" or is_shared(result)


def test_every_layout_arrives_as_it_was_sent(session: oc.Session):
    base = session.empty((64, 40, 50), np.float32)
    base[...] = np.arange(base.size, dtype=np.float32).reshape(base.shape)
    layouts = {
        "whole": base,
        "transposed": base.T,
        "part": base[10:60],
        "columns": base[:, :, 7:],
        "every other": base[::2],
        "backwards": base[::-1, ::-1],
        "Fortran": np.asfortranarray(base),
        "broadcast": np.broadcast_to(base[0], (30, 40, 50)),
        "one more dimension": base[None, ..., None],
        "flat": base.reshape(-1),
    }
    for name, x in layouts.items():
        for each in (x, np.copy(x, order="K")):
            result = session.ops.mem.same(each)
            assert result.shape == x.shape, name
            np.testing.assert_array_equal(result, x, err_msg=name)
    for shape in ((), (0,), (3, 0, 5), (1,)):
        x = session.empty(shape, np.float64)
        x[...] = 7
        np.testing.assert_array_equal(session.ops.mem.same(x), x)


def test_results_are_of_the_interpreters_memory_until_they_are_collected(session: oc.Session):
    kept = [session.ops.mem.full(SMALL, N, float(i)) for i in range(20)]
    for i, each in enumerate(kept):
        assert is_shared(each) or i == 0  # the first one went through the daemon
        assert (each == i).all()
    views = [each[5:] for each in kept]
    del kept, each
    for _ in range(40):
        session.ops.mem.full(SMALL, N, -1.0)
    for i, view in enumerate(views):
        assert (view == i).all()


def test_results_that_are_let_go_do_not_add_up(session: oc.Session):
    pid = interpreter_pid(session)
    x = np.ones(1 << 20, np.float32)
    for _ in range(5):
        session.ops.mem.add(x, x)
    before = shared_bytes_of(pid), shared_bytes_of(os.getpid())
    for _ in range(60):
        session.ops.mem.add(x, x)
    assert (shared_bytes_of(pid), shared_bytes_of(os.getpid())) == before


def test_arguments_that_are_written_to_change(session: oc.Session):
    for x in (np.zeros(N), session.empty(N), session.empty(2 * N)[3 : N + 3], np.zeros(2 * N)[::2]):
        x[:] = 0
        for n in range(1, 4):
            assert session.ops.mem.add_(x, np.full(len(x), 1.0)) is x
            assert (x == n).all()
    out = session.empty(N)
    assert session.ops.mem.add_out(x, x, out=out) is out
    assert (out == 6).all()
    xs = [np.ones(N), session.empty(N), np.ones(5)]
    xs[1][:] = 1
    session.ops.mem.double_all_(xs)
    assert all((each == 2).all() for each in xs)


def test_an_array_that_is_given_twice_is_one_array(session: oc.Session):
    for x in (np.ones(N), session.empty(N)):
        x[:] = 1
        assert session.ops.mem.add_(x, x) is x
        assert (x == 2).all()


def test_a_read_only_array_stays_one(session: oc.Session):
    for x in (np.ones(N), session.empty(N)):
        x[:] = 1
        x.flags.writeable = False
        with pytest.raises(oc.ArgumentError, match="read-only array"):
            session.ops.mem.add_(x, np.ones(N))
        assert (x == 1).all()


def test_kernels_can_write_to_nothing_else(session: oc.Session):
    x = session.empty(N)
    assert session.ops.mem.writeable(x) is False
    assert session.ops.mem.writeable(np.zeros(N)) is False


def test_an_array_of_empty_is_read_where_it_is(session: oc.Session, tmp_path: Path):
    """A kernel sees what is written to it meanwhile; of an ordinary array, it has a copy."""
    for name, x in (("there", session.empty(N)), ("ordinary", np.empty(N))):
        for round_name in (f"{name}-1", f"{name}-2"):  # the first one goes through the daemon
            x[:] = 1
            door = Door(tmp_path, round_name)
            future = session.submit("mem::wait", x, *door.arguments)
            door.wait_entered()
            x[:] = 2
            door.open()
            seen = future.result(LONGEST_WAIT)
        assert seen == (2 * N if name == "there" else N)


def test_array_kept_by_a_kernel_never_shows_other_data(session: oc.Session):
    session.ops.mem.kept(SMALL)
    before = len(session.ops.mem.kept(SMALL))
    there = session.empty(N, np.float32)
    for n in range(1, 7):
        x = there if n % 2 else np.empty(N, np.float32)
        x[:] = n
        session.ops.mem.keep(x)
        x[:] = 100
        session.ops.mem.add_(x, np.full(N, 100, np.float32))
        assert (x == 200).all()
    assert session.ops.mem.kept(SMALL)[before:] == [n * (N - 2) for n in range(1, 7)]


def test_a_call_that_fails_gives_everything_back(session: oc.Session):
    x, there = np.zeros(N), session.empty(N)
    there[:] = 0
    for _ in range(3):
        for each in (x, there):
            with pytest.raises(oc.KernelError, match="on purpose"):
                session.ops.mem.fail_(each)
    assert (x == 0).all()
    assert there.max() == 3, "it is written to where it is"
    pid = interpreter_pid(session)
    before = shared_bytes_of(pid), shared_bytes_of(os.getpid())
    for _ in range(30):
        with pytest.raises(oc.KernelError):
            session.ops.mem.fail_(np.zeros(1 << 20))
    after = shared_bytes_of(pid), shared_bytes_of(os.getpid())
    assert after[0] - before[0] <= 16 << 20
    assert after[1] - before[1] <= 16 << 20


def test_results_that_come_before_one_that_cannot_be_sent_do_not_add_up(session: oc.Session):
    pid = interpreter_pid(session)
    x = np.ones(1 << 20, np.float32)
    for _ in range(5):
        session.ops.mem.add(x, x)
    before = shared_bytes_of(pid), shared_bytes_of(os.getpid())
    for _ in range(60):
        with pytest.raises(oc.ReturnError, match="half_sent produced a value that cannot be sent"):
            session.ops.mem.half_sent(x)
    assert (shared_bytes_of(pid), shared_bytes_of(os.getpid())) == before


def test_a_late_call_goes_on_looking_at_its_own_data(mem_daemon: RunningDaemon, tmp_path: Path):
    """Its caller gave up, and calls again, with other data that would fit in the same place."""
    x = np.ones(N)
    with (
        mem_daemon.connect(timeout=LONGEST_WAIT) as session,
        mem_daemon.connect(timeout=LONGEST_WAIT) as other,
    ):
        for each, name in ((session, "first"), (session, "second")):
            door = Door(tmp_path, name)
            future = each.submit("mem::wait", x, *door.arguments)
            door.wait_entered()
            door.open()
            assert future.result(LONGEST_WAIT) == N
        door = Door(tmp_path, "late")
        future = session.submit("mem::wait", x, *door.arguments)
        door.wait_entered()
        assert future.cancel()
        # One kernel at a time: these wait in the interpreter, in memory already.
        calls = [session.submit("mem::same", x * n) for n in range(2, 8)]
        door.open()
        assert door.seen() == N
        for n, call in enumerate(calls, 2):
            assert (call.result(LONGEST_WAIT) == n).all()
        del calls, call
        assert other.ops.mem.same(SMALL) == 0


def test_cancelled_calls_that_never_ran_give_their_memory_back(session: oc.Session, tmp_path: Path):
    x = np.ones(1 << 20, np.float32)
    for n in range(12):
        door = Door(tmp_path, str(n))
        running = session.submit("mem::wait", x, *door.arguments)
        door.wait_entered()
        queued = [session.submit("mem::same", x) for _ in range(8)]
        for call in queued:
            call.cancel()
        door.open()
        assert running.result(LONGEST_WAIT) == x.size
        assert (session.ops.mem.same(x) == x).all()
    assert shared_bytes_of(os.getpid()) < 200 << 20  # the arguments had 400 MB


def test_futures_and_maps_share_memory_too(session: oc.Session):
    x = np.ones(N, np.float32)
    for n, result in enumerate(session.map("mem::add", [(x, x * n) for n in range(50)])):
        assert (result == n + 1).all()
        assert is_shared(result)
    futures = [session.submit("mem::add", x, x) for _ in range(20)]
    assert all((future.result(LONGEST_WAIT) == 2).all() for future in futures)


async def test_the_asyncio_session_shares_memory_too(mem_daemon: RunningDaemon):
    async with oc.aio.connect(mem_daemon.address) as session:
        x, there = np.ones(N, np.float32), session.empty(N, np.float32)
        there[:] = 2
        for _ in range(3):
            result = await session.ops.mem.add(x, there)
            assert (result == 3).all()
            assert await session.ops.mem.add_(there, x) is there
            assert (there == 3).all()
            there[:] = 2
        assert is_shared(result)
        assert is_shared(there)
        n = 0
        async for result in session.map("mem::add", [(x, x * n) for n in range(50)]):
            assert (result == n + 1).all()
            n += 1
    assert (result == 50).all(), "what was received stays"


def test_arrays_outlive_their_session(mem_daemon: RunningDaemon):
    with mem_daemon.connect() as session:
        x = session.empty(N, np.float32)
        x[:] = 1
        results = [session.ops.mem.add(x, x) for _ in range(3)]
    x[:] = 5
    assert all((result == 2).all() for result in results)
    with mem_daemon.connect() as other:
        for _ in range(3):
            assert (other.ops.mem.same(x) == 5).all()
            assert (other.ops.mem.same(results[2]) == 2).all()


def test_closed_sessions_leave_no_shared_memory(mem_daemon: RunningDaemon):
    def everything() -> list[tuple[int, int]]:
        gc.collect()
        return [shared_memory_of(pid) for pid in (os.getpid(), *mem_daemon.processes())]

    assert wait_for(lambda: set(everything()) == {(0, 0)}), everything()
    for _ in range(3):
        with mem_daemon.connect() as session:
            x = session.empty(N)
            warm_up(session, x)
            assert (0, 0) not in (
                shared_memory_of(os.getpid()),
                shared_memory_of(interpreter_pid(session)),
            )
            assert shared_memory_of(mem_daemon.process.pid) == (0, 0)
        del x
    assert wait_for(lambda: set(everything()) == {(0, 0)}), everything()


@pytest.mark.parametrize(
    "options", [{"direct": False}, {"lane": "stream"}, {"lane": "grpc"}], ids=str
)
def test_empty_gives_ordinary_arrays_without_shared_memory(
    mem_daemon: RunningDaemon, options: dict
):
    with mem_daemon.connect(**options) as session:
        x = session.empty((2, N), np.float32)
        x[:] = 1
        for _ in range(2):
            assert (session.ops.mem.add(x, x) == 2).all()
            assert session.ops.mem.add_(x, x * 0) is x
        assert shared_memory_of(interpreter_pid(session)) == (0, 0)


def test_empty_refuses_object_dtype_and_negative_sizes(session: oc.Session):
    with pytest.raises(oc.WireError, match="dtype"):
        session.empty(3, object)
    with pytest.raises(ValueError, match="never negative"):
        session.empty((2, -1))
    assert session.empty(5).dtype == np.float64
    assert session.empty([2, 3], "int8").shape == (2, 3)
