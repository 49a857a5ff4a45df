"""Tensors of more than a megabyte through a real daemon: over the gRPC stream, in chunks."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

import opdispatch_client as oc
from opdispatch import profile
from tests.service.conftest import StartDaemon, WriteLibrary
from tests.service.doors import Doors, door_library
from tests.service.libraries import IMAGE
from tests.service.running_daemon import RunningDaemon, wait_for
from tests.waits import LONGEST_WAIT

Lane = Literal["stream", "local"]
MB = 1_000_000
X = np.arange(3.0)
LARGE = 3 * MB // 8
MANY = """\
from opdispatch import Library
import numpy as np

lib = Library("many", "DEF")
lib.define("split(Tensor x, int n) -> Tensor[]")
lib.define("total(Tensor[] xs) -> float")
lib.define("zeros(int n) -> Tensor")
lib.define("repeated(int n) -> Tensor")
lib.define("half_sent(Tensor x) -> (Tensor, Tensor)")
lib.impl("split", lambda x, n: list(np.split(x, n)), "CPU")
lib.impl("total", lambda xs: float(sum(x.sum() for x in xs)), "CPU")
lib.impl("half_sent", lambda x: (x + 1, np.zeros(2, np.longdouble)), "CPU")
lib.impl("zeros", np.zeros, "CompositeImplicitAutograd")
lib.impl("repeated", lambda n: np.broadcast_to(1.0, (n, n)), "CompositeImplicitAutograd")
"""


@pytest.fixture(scope="module")
def twice(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningDaemon]:
    """A daemon on loopback and on a unix socket, whose message limit is the lowest."""
    folder = tmp_path_factory.mktemp("twice")
    listen = ["127.0.0.1:0", f"unix://{folder}/daemon.sock"]
    daemon = RunningDaemon(folder, "--max-message-bytes", "65536", listen=listen, workers=1)
    try:
        daemon.wait_until_ready()
        for name, text in (("image", IMAGE), ("many", MANY)):
            (folder / f"{name}.py").write_text(text)
        with oc.connect(daemon.address) as session:
            session.load(folder / "image.py")
            session.load(folder / "many.py")
        yield daemon
    finally:
        daemon.clean_up()


@pytest.fixture(params=[0, 1], ids=["tcp", "unix"])
def session(twice: RunningDaemon, request: pytest.FixtureRequest) -> Iterator[oc.Session]:
    with oc.connect(twice.addresses[request.param], lane="stream") as session:
        yield session
        np.testing.assert_array_equal(session.ops.image.pipeline(X), 1 - X * 3)
        assert session.check_invariants() == []


def test_no_message_limit_is_one_for_tensors(session: oc.Session):
    x = np.random.default_rng(1).random(20 * MB // 8)
    back = session.ops.image.invert(x)
    np.testing.assert_array_equal(back, 1 - x)
    back[0] = 7.0  # it is the caller's own
    stacked, count = session.ops.image.stack([x[:LARGE], x[:LARGE][::-1]], np.ones(LARGE))
    assert count == 2
    np.testing.assert_array_equal(stacked, np.stack([x[:LARGE], x[:LARGE][::-1]]))
    assert session.ops.many.zeros(LARGE).shape == (LARGE,)


def test_large_argument_is_written_in_place(session: oc.Session):
    x = np.zeros(LARGE)
    assert session.ops.image.add_(x, np.ones(LARGE)) is x
    assert (x == 1).all()


def test_many_tensors_of_middling_size_are_no_large_message(session: oc.Session):
    x = np.arange(100 * 5000.0)
    parts = session.ops.many.split(x, 100)
    np.testing.assert_array_equal(np.concatenate(parts), x)
    assert session.ops.many.total(parts) == x.sum()


def test_other_values_stay_within_the_message_limit(session: oc.Session):
    with pytest.raises(oc.MessageTooLargeError, match="the call of many::split"):
        session.call("many::split", np.zeros(4), "x" * 70_000)
    with pytest.raises(oc.MessageTooLargeError, match="the result of the call"):
        session.ops.many.split(np.zeros(5000), 5000)


def test_errors_come_back_for_large_calls(session: oc.Session):
    with pytest.raises(oc.KernelError, match="no picture"):
        session.ops.image.boom(np.zeros(LARGE))
    with pytest.raises(oc.OperatorNotFoundError):
        session.call("image::nothing", np.zeros(LARGE))


def test_an_error_leaves_out_the_results_before_it(session: oc.Session):
    x = np.zeros(LARGE)
    with pytest.raises(
        oc.ReturnError, match=r"produced a value that cannot be sent: \$.returns\[1\]"
    ):
        session.ops.many.half_sent(x)
    with profile() as prof, pytest.raises(oc.ReturnError, match="cannot be sent"):
        session.ops.many.half_sent(x)
    assert "many::half_sent" in {event.name for event in prof.events()}


def test_a_local_lane_leaves_them_out_too(twice: RunningDaemon):
    with oc.connect(twice.addresses[1], lane="local") as session:
        for _ in range(3):
            with pytest.raises(
                oc.ReturnError, match="half_sent produced a value that cannot be sent"
            ):
                session.ops.many.half_sent(np.zeros(LARGE))


def test_a_submitted_array_may_be_changed_at_once(session: oc.Session):
    x = np.empty(LARGE)
    futures = []
    for n in range(8):
        x[:] = n
        futures.append(session.submit("image::scale", x, 1.0))
    for n, future in enumerate(futures):
        assert (future.result() == n).all()


def test_progress_is_reported_in_bytes(session: oc.Session):
    told: list[oc.TransferProgress] = []
    x = np.zeros(5 * MB // 8)
    session.with_options(on_progress=told.append).ops.image.invert(x)
    assert told[-1] == oc.TransferProgress(x.nbytes, x.nbytes, x.nbytes, x.nbytes)
    assert all(each.bytes_to_send == x.nbytes for each in told)
    sent = [each.bytes_sent for each in told]
    received = [each.bytes_received for each in told]
    assert sent == sorted(sent)
    assert received == sorted(received)
    assert len(set(sent)) > 4
    assert len(set(received)) > 4
    told.clear()
    session.with_options(on_progress=told.append).ops.image.invert(X)
    assert told == []


def test_remote_values_are_put_and_fetched_in_chunks_too(session: oc.Session):
    x = np.arange(LARGE, dtype=float)
    with session.put(x) as kept:
        np.testing.assert_array_equal(kept.numpy(), x)
    with session.call("image::scale", x, 2.0, remote=True) as twice:
        np.testing.assert_array_equal(twice.numpy(), 2 * x)


async def test_the_asyncio_session_does_the_same(twice: RunningDaemon):
    told: list[oc.TransferProgress] = []
    async with oc.aio.connect(twice.address, lane="stream") as session:
        x = np.arange(5 * MB / 8)
        back = await session.with_options(on_progress=told.append).ops.image.invert(x)
        np.testing.assert_array_equal(back, 1 - x)
        assert told[-1] == oc.TransferProgress(x.nbytes, x.nbytes, x.nbytes, x.nbytes)
        calls = [session.ops.image.scale(np.full(LARGE, float(n)), 1.0) for n in range(6)]
        for n, result in enumerate(await asyncio.gather(*calls)):
            assert (result == n).all()
        with pytest.raises(oc.KernelError, match="no picture"):
            await session.ops.image.boom(x)
        async with asyncio.timeout(LONGEST_WAIT):
            large = asyncio.create_task(session.ops.image.invert(np.zeros(50 * MB // 8)))
            await asyncio.sleep(0)
            large.cancel()
            with pytest.raises(asyncio.CancelledError):
                await large
        np.testing.assert_array_equal(await session.ops.image.pipeline(X), 1 - X * 3)


def test_small_calls_do_not_wait_for_a_large_one(twice: RunningDaemon):
    with oc.connect(twice.address, lane="stream") as session:
        large = session.submit("image::invert", np.zeros(100 * MB // 8))
        small = 0
        while not large.done():
            session.ops.many.zeros(1)
            small += 1
        assert (large.result() == 1).all()
        assert small >= 5  # each waits for the one before: 1 if they waited for the large one


def test_a_call_that_gave_up_leaves_nothing_behind(
    start_daemon: StartDaemon, write_library: WriteLibrary, tmp_path: Path
):
    doors = Doors(tmp_path)
    daemon = start_daemon("--max-call-bytes", str(8 * MB), workers=1)
    with daemon.connect(lane="stream") as session:
        session.load(write_library("doors", door_library("doors", max_concurrency=1)))
        x = np.zeros(5 * MB // 8)
        for _ in range(4):  # each would find no room if one of those before was still held
            held = session.submit("doors::enter", x, doors.folder, "a")
            assert doors.next_inside() == "a"
            with pytest.raises(oc.QueueFullError, match="8000000 bytes") as caught:
                session.call("doors::enter", x, doors.folder, "b")
            assert caught.value.facts["started"] == "no"
            held.cancel()
            doors.let_out()
            assert wait_for(lambda: session.interpreters()[0].calls_in_flight == 0)
        with pytest.raises(oc.MessageTooLargeError, match="the limit is 8000000 bytes") as over:
            session.call("doors::enter", np.zeros(2 * MB), doors.folder, "b")
        assert "--max-call-bytes" in over.value.hint
        assert doors.no_other_is_inside()
    doors.close()


def test_results_that_there_is_no_room_for_are_an_error(
    twice: RunningDaemon, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("opdispatch_wire.lanes.stream_tensors.RESULTS_LIMIT", 4 * MB)
    with oc.connect(twice.address, lane="stream") as session:
        with pytest.raises(oc.MessageTooLargeError, match="large tensors of the call have 8000000"):
            session.ops.many.zeros(MB)
        assert session.ops.many.zeros(LARGE).shape == (LARGE,)


@pytest.mark.parametrize("lane", ["local", "stream", "grpc"])
def test_an_element_that_is_repeated_without_end_is_an_error(
    twice: RunningDaemon, lane: Literal["local", "stream", "grpc"]
):
    """No room is looked for: there might be some, and another process be ended for it."""
    endless = np.broadcast_to(1.0, (2**20, 2**20))
    with oc.connect(twice.addresses[1], lane=lane) as session:
        for _ in range(2):  # the second one goes the direct way, if there is one
            with pytest.raises(oc.MessageTooLargeError, match="a tensor has 8796093022208 bytes"):
                session.ops.many.repeated(2**20)
            with pytest.raises(oc.MessageTooLargeError, match="a tensor has 8796093022208 bytes"):
                session.ops.many.split(endless, 1)
            with pytest.raises(oc.MessageTooLargeError, match="a tensor has 8796093022208 bytes"):
                session.put(endless)
            with pytest.raises(oc.DeviceMemoryError, match="no room for an array of 8796093022208"):
                session.call("many::repeated", 2**20, remote=True)


async def test_results_that_there_is_no_room_for_are_an_error_for_asyncio_too(
    twice: RunningDaemon, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("opdispatch_wire.lanes.stream_tensors.RESULTS_LIMIT", 4 * MB)
    async with oc.aio.connect(twice.address, lane="stream", timeout=LONGEST_WAIT) as session:
        with pytest.raises(oc.MessageTooLargeError, match="large tensors of the call have 8000000"):
            await session.ops.many.zeros(MB)
        assert (await session.ops.many.zeros(LARGE)).shape == (LARGE,)


async def cut_off(session: oc.AsyncSession, x: np.ndarray[Any, Any], share: float) -> int:
    """Call with ``x``, whose deadline passes when more than a share of it is sent; return the
    bytes.
    """
    loop, sent = asyncio.get_running_loop(), 0

    def on_progress(progress: oc.TransferProgress) -> None:
        nonlocal sent
        had_time, sent = sent <= share * x.nbytes, progress.bytes_sent
        if had_time and sent > share * x.nbytes:
            deadline.reschedule(loop.time())

    with pytest.raises(TimeoutError):
        async with asyncio.timeout(60) as deadline:
            await session.with_options(on_progress=on_progress).ops.image.invert(x)
    return sent


async def test_a_deadline_in_the_middle_leaves_nothing_behind(
    start_daemon: StartDaemon, write_library: WriteLibrary
):
    daemon = start_daemon("--max-call-bytes", str(60 * MB), workers=1)
    x = np.zeros(50 * MB // 8)
    async with oc.aio.connect(daemon.address, lane="stream") as session:
        await session.load(write_library("image", IMAGE))
        for share in (0.0, 0.2, 0.4, 0.6, 0.8):
            assert share * x.nbytes < await cut_off(session, x, share) < x.nbytes
        async with asyncio.timeout(LONGEST_WAIT):
            while True:
                try:
                    result = await session.ops.image.invert(x)
                    break
                except oc.QueueFullError:  # a kernel may still be running for one of them
                    continue
        assert (result == 1).all()


@pytest.mark.parametrize("lane", ["stream", "local"])
def test_a_large_call_runs_again_where_its_interpreter_was_killed(
    daemon: RunningDaemon, write_library: WriteLibrary, tmp_path: Path, lane: Lane
):
    daemon.expects_errors = True
    doors = Doors(tmp_path)
    with daemon.connect(lane=lane, direct=False) as session:
        session.load(write_library("doors", door_library("doors")), interpreters=2)
        future = session.submit("doors::enter", np.zeros(LARGE), doors.folder, "a")
        assert doors.next_inside() == "a"
        (running,) = [each for each in session.interpreters() if each.calls_in_flight]
        os.kill(running.pid, signal.SIGKILL)
        assert doors.next_inside() == "a"
        doors.let_out()
        assert future.result() == "a"
    doors.close()


def test_a_call_on_a_local_lane_may_have_so_much_and_no_more(
    start_daemon: StartDaemon, write_library: WriteLibrary
):
    options = ("--max-message-bytes", "65536", "--max-call-bytes", str(8 * MB))
    daemon = start_daemon(*options, workers=1)
    with daemon.connect(direct=False, timeout=LONGEST_WAIT) as session:
        assert session.lane == "local"
        session.load(write_library("many", MANY))
        fits, exceeds = np.ones(7 * MB // 8), np.ones(9 * MB // 8)
        assert session.ops.many.total([fits]) == fits.size
        parts = list(np.ones((100, 5000)))
        assert session.ops.many.total(parts) == 500_000
        back = session.ops.many.split(np.arange(500_000.0), 100)
        np.testing.assert_array_equal(np.concatenate(back), np.arange(500_000.0))
        assert session.ops.many.zeros(3 * MB).nbytes == 24 * MB  # a result is its caller's wish
        for call in (
            lambda: session.ops.many.total([exceeds]),
            lambda: session.put(exceeds),
            lambda: session.submit("many::total", [exceeds]).result(),
        ):
            with pytest.raises(oc.MessageTooLargeError, match="--max-call-bytes"):
                call()
        with session.put(fits) as kept:
            np.testing.assert_array_equal(kept.numpy(), fits)


async def test_an_asyncio_session_has_no_message_limit_on_its_lane_either(
    start_daemon: StartDaemon, write_library: WriteLibrary
):
    options = ("--max-message-bytes", "65536", "--max-call-bytes", str(8 * MB))
    daemon = start_daemon(*options, workers=1)
    async with oc.aio.connect(daemon.address, direct=False) as session:
        await session.load(write_library("many", MANY))
        x = np.arange(7 * MB // 8, dtype=float)
        parts = await session.ops.many.split(x, 7)
        np.testing.assert_array_equal(np.concatenate(parts), x)
        with pytest.raises(oc.MessageTooLargeError, match="--max-call-bytes"):
            await session.ops.many.total([np.ones(9 * MB // 8)])


MEMORY = 200 * MB
# Some chunks are on their way, more of them where the machine is busy; a whole tensor is not.
SLACK = MEMORY // 2


@pytest.mark.parametrize("lane", ["stream", "local"])
def test_memory_is_bounded_by_the_tensors_and_a_few_chunks(
    start_daemon: StartDaemon, write_library: WriteLibrary, lane: Lane
):
    daemon = start_daemon(workers=1)
    with daemon.connect(lane=lane, direct=False) as session:
        session.load(write_library("image", IMAGE))
        session.ops.image.invert(np.zeros(2 * MB))  # imports, arenas, first buffers
        before = high_water(daemon.process.pid)
        x = np.zeros(MEMORY // 8)
        x[:] = 1.0
        own = high_water("self")
        result = session.ops.image.invert(x)
        assert result[-1] == 0.0
        # The caller has the result beside its argument; the daemon has what the call can run
        # again with, and what came of it.
        assert high_water("self") - own < MEMORY + SLACK
        assert high_water(daemon.process.pid) - before < 2 * MEMORY + SLACK


def high_water(process: int | str) -> int:
    """The most memory that a process has had, in bytes."""
    for line in Path(f"/proc/{process}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("the system does not say")
