"""Sessions call interpreters directly; what the registry says holds for them all the same."""

from __future__ import annotations

import os
import runpy
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import opdispatch
import opdispatch_client as oc
from tests.service.conftest import StartDaemon, WriteLibrary
from tests.service.doors import Doors, door_library
from tests.service.libraries import GATE, constant
from tests.service.running_daemon import Background, RunningDaemon, wait_for
from tests.service.test_interpreters import worker
from tests.waits import LONGEST_WAIT

X = np.arange(3.0)
# A call that a stopped daemon does not answer is waited for so long, in seconds.
MOMENT = 0.2

# Its kernel says that it ran, in a file, and then ends its process or that of its interpreter's.
DEADLY = """\
import os
import runpy
import signal

from opdispatch import Library

lib = Library("deadly", "DEF")
lib.define("run(Tensor x, str path, bool dies) -> int")
lib.define("run_(Tensor(a!) self, str path, bool dies) -> ()")


def run(x, path, dies):
    with open(path, "a") as file:
        file.write("ran\\n")
    if dies:
        os._exit(3)
    return len(open(path).readlines())


lib.impl("run", run, "CPU")
lib.impl("run_", lambda self, path, dies: run(self, path, dies) and None, "CPU")
"""


@contextmanager
def stopped(daemon: RunningDaemon, **options: Any) -> Iterator[None]:
    """While the daemon does nothing at all.

    Interpreters report after what they were told before: so they have heard which routes hold.
    """
    with daemon.connect(**options) as session:
        assert session.check_invariants() == []
    daemon.signal(signal.SIGSTOP)
    try:
        yield
    finally:
        daemon.signal(signal.SIGCONT)


def pids(session: oc.Session) -> dict[str, int]:
    return {interpreter.name: interpreter.pid for interpreter in session.interpreters()}


def test_calls_of_a_kind_that_the_daemon_has_seen_go_on_without_it(loaded: RunningDaemon):
    with loaded.connect(timeout=LONGEST_WAIT) as session:
        scale, stack = session.ops.image.scale, session.ops.image.stack
        np.testing.assert_array_equal(scale(X, 3.0, negate=True), X * -3)
        assert stack([X, X])[1] == 2
        with stopped(loaded):
            for n in range(50):
                np.testing.assert_array_equal(scale(X, float(n), negate=False), X * n)
                np.testing.assert_array_equal(stack([X, X + n])[0], [X, X + n])
            with pytest.raises(oc.KernelError, match=r"image::stack in interpreter worker-"):
                stack([X, X[:2]])
        # Of another kind: so it is for the daemon to say.
        assert stack([X, X, X])[1] == 3


def test_an_overload_is_that_of_the_number_whatever_was_called_before(
    loaded: RunningDaemon, write_library: WriteLibrary
):
    kinds = {"int": "int", "float": "float", "array": "Tensor"}
    text = "from opdispatch import Library\nlib = Library('which', 'DEF')\n" + "".join(
        f"lib.define('kind.{name}(Tensor x, {kind} y) -> str')\n"
        f"lib.impl('kind.{name}', lambda x, y: {name!r}, 'CPU')\n"
        for name, kind in kinds.items()
    )
    numbers = (
        *(1.0, np.float64(1), np.array(1.0), np.array(1.5), 1, np.int64(1), np.array(1)),
        *(True, np.bool_(True), np.array(True), X, X.astype(np.int8)),
    )
    namespace = runpy.run_path(str(write_library("which", text)))
    wanted = [opdispatch.ops.which.kind(X, number) for number in numbers]
    namespace["lib"].close()
    assert set(wanted) == set(kinds)
    with loaded.connect() as session:
        session.load(write_library("which", text))
        for _ in range(3):  # once to ask, once to be told the way, once to take it
            assert [session.ops.which.kind(X, number) for number in numbers] == wanted
        session.unload("which")


def test_futures_and_maps_go_directly_too(loaded: RunningDaemon):
    with loaded.connect(timeout=LONGEST_WAIT) as session:
        session.ops.image.scale(X, 1.0)
        with stopped(loaded):
            results = session.map("image::scale", ((X, float(n)) for n in range(300)))
            for n, result in enumerate(results):
                np.testing.assert_array_equal(result, X * n)
            assert n == 299
            future = session.submit("image::scale", X, 5.0)
            np.testing.assert_array_equal(future.result(LONGEST_WAIT), X * 5)


async def test_the_asyncio_session_does_so_too(loaded: RunningDaemon):
    async with oc.aio.connect(loaded.address, timeout=LONGEST_WAIT) as session:
        await session.ops.image.scale(X, 1.0)
        with stopped(loaded):
            for n in range(50):
                result = await session.ops.image.scale(X, float(n))
                np.testing.assert_array_equal(result, X * n)


def test_a_session_may_want_the_daemon_to_see_every_call(loaded: RunningDaemon):
    with loaded.connect(direct=False, timeout=1) as session:
        session.ops.image.scale(X, 1.0)
        with stopped(loaded), pytest.raises(oc.DeadlineExceededError):
            session.with_options(timeout=MOMENT).ops.image.scale(X, 1.0)


def test_arguments_that_are_written_to_change(loaded: RunningDaemon):
    with loaded.connect(timeout=LONGEST_WAIT) as session:
        for n in range(1, 4):
            x = np.zeros(2)
            assert session.ops.image.add_(x, np.full(2, n)) is x
            np.testing.assert_array_equal(x, [n, n])


def test_a_new_version_serves_every_call_that_begins_after_its_load(
    shared: oc.Session, write_library: WriteLibrary
):
    for value in range(8):
        shared.load(write_library("const", constant(value)))
        for _ in range(3):
            assert shared.ops.const.get(X) == value
    shared.rollback("const")
    assert shared.ops.const.get(X) == 6


def test_other_sessions_hear_of_a_new_version_too(
    lent_daemon: RunningDaemon, write_library: WriteLibrary
):
    """Each asks again and again; a load is over when its caller has the answer."""
    loaded, ended = [0], threading.Event()

    def ask() -> int:
        asked = 0
        with lent_daemon.connect() as session:
            while not ended.is_set():
                oldest = loaded[0]
                answer = session.ops.const.get(X)
                assert answer >= oldest
                asked += 1
        return asked

    with lent_daemon.connect() as session:
        session.load(write_library("const", constant(0)), interpreters=2)
        with Background(ask) as one, Background(ask) as another:
            for value in range(1, 12):
                session.load(write_library("const", constant(value)))
                loaded[0] = value
            ended.set()
            assert one.result() + another.result() > 20
        assert session.check_invariants() == []


def test_call_of_an_unloaded_operator_raises_not_found(
    shared: oc.Session, write_library: WriteLibrary
):
    shared.load(write_library("const", constant(1)))
    assert shared.ops.const.get(X) == shared.ops.const.get(X) == 1
    shared.unload("const")
    with pytest.raises(oc.OperatorNotFoundError, match="was unloaded"):
        shared.ops.const.get(X)


def test_a_call_under_way_finishes_though_its_library_is_replaced_and_unloaded(
    lent_daemon: RunningDaemon, doors: Doors, write_library: WriteLibrary
):
    with lent_daemon.connect() as session:
        session.load(write_library("doors", door_library("doors")), isolated=True)
        doors.let_out()
        session.ops.doors.enter(X, doors.folder, "first")
        assert doors.next_inside() == "first"
        with Background(session.ops.doors.enter, X, doors.folder, "last") as call:
            assert doors.next_inside() == "last"
            session.unload("doors")
            with pytest.raises(oc.OperatorNotFoundError):
                session.ops.doors.enter(X, doors.folder, "late")
            doors.let_out()
            assert call.result() == "last"
        # Its interpreter goes with it, and only now.
        assert wait_for(lambda: sorted(pids(session)) == ["worker-1", "worker-2"])


def test_calls_of_an_interpreter_that_dies_run_in_another_one(
    daemon: RunningDaemon, doors: Doors, write_library: WriteLibrary
):
    daemon.expects_errors = True
    with daemon.connect() as session:
        session.load(write_library("doors", door_library("doors")), interpreter="worker-1")
        doors.let_out()
        session.ops.doors.enter(X, doors.folder, "first")
        doors.next_inside()
        x = np.zeros(2)
        doors.let_out()
        session.ops.doors.enter_(x, doors.folder, "first")
        doors.next_inside()
        for call, begins_again in (
            (session.ops.doors.enter, True),
            (session.ops.doors.enter_, False),
        ):
            [library] = session.libraries()
            with Background(call, x, doors.folder, "again") as result:
                assert doors.next_inside() == "again"
                os.kill(pids(session)[library.interpreters[0]], signal.SIGKILL)
                if begins_again:
                    assert doors.next_inside() == "again"
                    doors.let_out()
                    assert result.result() == "again"
                    doors.let_out()
                    session.ops.doors.enter_(x, doors.folder, "learns the new route")
                    doors.next_inside()
                else:
                    with pytest.raises(oc.InterpreterDiedError, match="SIGKILL") as died:
                        result.result()
                    assert died.value.facts["operator"] == "doors::enter_"
        assert session.check_invariants() == []


@pytest.mark.parametrize("operator", ["run", "run_"])
def test_a_kernel_that_ends_its_interpreter_does_not_end_the_next_one(
    daemon: RunningDaemon, tmp_path: Path, write_library: WriteLibrary, operator: str
):
    daemon.expects_errors = True
    path = tmp_path / "runs"
    with daemon.connect() as session:
        session.load(write_library("deadly", DEADLY), interpreters=2)
        call = getattr(session.ops.deadly, operator)
        call(X, str(path), False)
        with pytest.raises(oc.InterpreterDiedError, match="exited with status 3"):
            call(X, str(path), True)
        assert path.read_text() == "ran\n" * 2
        call(X, str(path), False)


def test_a_dead_interpreter_without_a_daemon_is_an_error_that_says_both(
    daemon: RunningDaemon, doors: Doors, write_library: WriteLibrary
):
    daemon.expects_errors = True
    with daemon.connect(wait=0) as session:
        session.load(write_library("doors", door_library("doors")))
        doors.let_out()
        session.ops.doors.enter(X, doors.folder, "first")
        doors.next_inside()
        with Background(session.ops.doors.enter, X, doors.folder, "last") as call:
            assert doors.next_inside() == "last"
            daemon.signal(signal.SIGKILL)  # its interpreters go with it
            with pytest.raises(oc.InterpreterDiedError, match="daemon cannot be asked") as caught:
                call.result()
            assert caught.value.facts["daemon"] == "unavailable"


def test_replicas_share_the_calls(
    lent_daemon: RunningDaemon, doors: Doors, write_library: WriteLibrary
):
    with lent_daemon.connect() as session:
        session.load(write_library("doors", door_library("doors")), interpreters=2)
        doors.let_out()
        session.ops.doors.enter(X, doors.folder, "first")
        doors.next_inside()
        enter = session.ops.doors.enter
        with (
            Background(enter, X, doors.folder, "one") as one,
            Background(enter, X, doors.folder, "two") as two,
        ):
            # One at a time in each.
            assert {doors.next_inside(), doors.next_inside()} == {"one", "two"}
            doors.let_out(2)
            assert (one.result(), two.result()) == ("one", "two")


def test_a_library_runs_no_more_calls_at_a_time_than_it_says(
    lent_daemon: RunningDaemon, doors: Doors, write_library: WriteLibrary
):
    with lent_daemon.connect() as session, lent_daemon.connect(direct=False) as other:
        session.load(write_library("doors", door_library("doors", max_concurrency=2)))
        doors.let_out()
        session.ops.doors.enter(X, doors.folder, "first")
        doors.next_inside()
        calls = [
            each.submit("doors::enter", X, doors.folder, str(n))
            for n, each in enumerate((session, other, session, other, session))
        ]
        doors.next_inside()
        doors.next_inside()
        assert doors.no_other_is_inside()
        for _ in range(3):
            doors.let_out()
            doors.next_inside()
            assert doors.no_other_is_inside()
        doors.let_out(2)
        assert [call.result(LONGEST_WAIT) for call in calls] == ["0", "1", "2", "3", "4"]


def test_a_full_queue_sends_calls_away(
    start_daemon: StartDaemon, doors: Doors, write_library: WriteLibrary
):
    daemon = start_daemon("--queue", "2", workers=1)
    with daemon.connect() as session:
        session.load(write_library("doors", door_library("doors")))
        doors.let_out()
        session.ops.doors.enter(X, doors.folder, "first")
        doors.next_inside()
        calls = [session.submit("doors::enter", X, doors.folder, str(n)) for n in range(3)]
        assert doors.next_inside() == "0"
        with pytest.raises(oc.QueueFullError, match="queued for interpreter worker-1") as full:
            session.ops.doors.enter(X, doors.folder, "too many")
        assert float(full.value.facts["retry_after"]) > 0
        assert full.value.facts["started"] == "no"
        doors.let_out(3)
        assert [call.result(LONGEST_WAIT) for call in calls] == ["0", "1", "2"]


def test_a_queued_call_that_is_cancelled_or_late_never_runs(
    start_daemon: StartDaemon, doors: Doors, write_library: WriteLibrary
):
    daemon = start_daemon(workers=1)
    with daemon.connect() as session, daemon.connect(timeout=0.3) as impatient:
        session.load(write_library("doors", door_library("doors")))
        session.load(write_library("const", constant(1)))
        assert session.ops.const.get(X) == 1
        for each in (session, impatient):
            doors.let_out()
            each.ops.doors.enter(X, doors.folder, "first")
            doors.next_inside()
        runs = session.submit("doors::enter", X, doors.folder, "runs")
        assert doors.next_inside() == "runs"
        cancelled = session.submit("doors::enter", X, doors.folder, "cancelled")
        last = session.submit("doors::enter", X, doors.folder, "last")
        with pytest.raises(oc.DeadlineExceededError):
            impatient.ops.doors.enter(X, doors.folder, "late")
        assert cancelled.cancel()
        # The interpreter has read what was sent before this call.
        assert session.ops.const.get(X) == 1
        doors.let_out(2)
        assert runs.result(LONGEST_WAIT) == "runs"
        assert last.result(LONGEST_WAIT) == "last"
        assert doors.next_inside() == "last"
        assert doors.no_other_is_inside()


def test_overdue_direct_call_is_stopped_and_hurts_no_other(
    start_daemon: StartDaemon, doors: Doors, write_library: WriteLibrary
):
    daemon = start_daemon("--kernel-timeout", "0.5", workers=1)
    daemon.expects_errors = True
    with daemon.connect() as session:
        session.load(write_library("doors", door_library("doors")))
        doors.let_out()
        session.ops.doors.enter(X, doors.folder, "first")
        doors.next_inside()
        hangs = session.submit("doors::enter", X, doors.folder, "hangs")
        assert doors.next_inside() == "hangs"
        queued = session.submit("doors::enter", X, doors.folder, "queued")
        with pytest.raises(oc.KernelTimeoutError, match=r"ran for longer than 0\.5 s in interp"):
            hangs.result(LONGEST_WAIT)
        assert doors.next_inside() == "queued"
        doors.let_out()
        assert queued.result(LONGEST_WAIT) == "queued"


PING = """\
from opdispatch import Library, ops

lib = Library("{name}", "DEF")
lib.define("bounce(Tensor x, int n) -> int")
lib.impl("bounce", lambda x, n: 0 if n == 0 else 1 + ops.{other}.bounce(x, n - 1), "CPU")
"""


def test_libraries_that_call_each_other_do_not_wait_for_each_other(
    lent_daemon: RunningDaemon, write_library: WriteLibrary
):
    with lent_daemon.connect() as session:
        for name, other, interpreter in (("ping", "pong", 1), ("pong", "ping", 2)):
            code = PING.format(name=name, other=other)
            session.load(write_library(name, code), interpreter=f"worker-{interpreter}")
        ping, pong = session.ops.ping.bounce, session.ops.pong.bounce
        assert (ping(X, 3), pong(X, 3)) == (3, 3)
        both = [session.submit(f"{name}::bounce", X, 4) for name in ("ping", "pong") * 20]
        assert [call.result(LONGEST_WAIT) for call in both] == [4] * 40


def test_an_interpreter_serves_direct_calls_until_its_daemon_is_back(
    start_daemon: StartDaemon, write_library: WriteLibrary
):
    first = start_daemon(workers=0)
    with worker(first, "--name", "extra"), first.connect() as session:
        assert wait_for(lambda: len(session.interpreters()) == 1)
        session.load(write_library("const", constant(1)))
        assert session.ops.const.get(X) == 1
        first.signal(signal.SIGKILL)
        first.wait()
        for _ in range(100):
            assert session.ops.const.get(X) == 1
        second = start_daemon(workers=0)
        with second.connect() as other:
            active = lambda: any(library.active for library in other.libraries())  # noqa: E731
            assert wait_for(active)
            other.load(write_library("const", constant(2)))
        # The route of the old daemon's time does not hold any more.
        assert session.ops.const.get(X) == 2
        assert session.check_invariants() == []


def test_an_interpreter_that_is_drained_gets_no_more_direct_calls(
    daemon: RunningDaemon, write_library: WriteLibrary
):
    code = "import os\n" + constant(0).replace("lambda x: 0", "lambda x: os.getpid()")
    with daemon.connect() as session:
        session.load(write_library("const", code), interpreter="worker-1")
        before = pids(session)
        assert session.ops.const.get(X) == session.ops.const.get(X) == before["worker-1"]
        session.drain("worker-1")
        assert session.ops.const.get(X) == before["worker-2"]
        session.scale("const", 1)
        assert session.check_invariants() == []


def test_gate_calls_run_side_by_side(lent_daemon: RunningDaemon, write_library: WriteLibrary):
    """A library that allows it runs direct calls of one session at the same time."""
    with lent_daemon.connect() as session:
        session.load(write_library("gate", GATE))
        folder = lent_daemon.folder
        calls = [session.submit("gate::wait", X, str(folder), n) for n in range(4)]
        assert wait_for(lambda: all((folder / f"entered-{n}").exists() for n in range(4)))
        (folder / "open").touch()
        assert [call.result(LONGEST_WAIT) for call in calls] == [0, 1, 2, 3]
        more = [session.submit("gate::wait", X, str(folder), n) for n in range(4, 10)]
        assert [call.result(LONGEST_WAIT) for call in more] == [4, 5, 6, 7, 8, 9]


def test_a_session_that_reads_nothing_keeps_no_other_waiting(loaded: RunningDaemon):
    big = np.zeros(500_000)
    with loaded.connect() as greedy, loaded.connect() as session:
        for each in (greedy, session):
            each.ops.image.scale(big, 1.0)
        calls = [greedy.submit("image::scale", big, 1.0) for _ in range(20)]
        for _ in range(20):
            np.testing.assert_array_equal(session.ops.image.scale(X, 2.0), X * 2)
        assert all(call.result(LONGEST_WAIT).size == big.size for call in calls)


def test_interpreters_keep_no_descriptors_of_clients_that_have_gone(
    start_daemon: StartDaemon, write_library: WriteLibrary
):
    """Also those that collect no garbage: a lane is part of a cycle."""
    daemon = start_daemon(workers=1)
    with daemon.connect() as session:
        text = constant(7, extra="import gc\ngc.disable()")
        session.load(write_library("const", text))
        folder = Path(f"/proc/{session.interpreters()[0].pid}/fd")

        def count() -> int:
            return len(list(folder.iterdir()))

        assert session.ops.const.get(X) == session.ops.const.get(X) == 7
        before = count()
        for _ in range(5):
            with daemon.connect() as other:
                assert other.ops.const.get(X) == other.ops.const.get(X) == 7
                assert count() > before
            assert wait_for(lambda: count() == before)
