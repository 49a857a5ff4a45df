"""How many calls run, how many wait, who is sent away, and what becomes of those who give up."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack

import grpc
import numpy as np
import pytest
from google.rpc import error_details_pb2, status_pb2

import opdispatch_client as oc
from opdispatch_wire.calls import call_request
from opdispatch_wire.status import DETAILS_KEY
from opdispatch_wire.v1 import execution_pb2_grpc
from tests.service.conftest import StartDaemon, WriteLibrary
from tests.service.doors import Doors, door_library
from tests.service.libraries import constant
from tests.service.running_daemon import Background, RunningDaemon, wait_for

X = np.zeros(2)


def queued(session: oc.Session) -> int:
    return sum(interpreter.calls_queued for interpreter in session.interpreters())


def running(session: oc.Session) -> int:
    return sum(interpreter.calls_in_flight for interpreter in session.interpreters())


class Callers:
    """Calls of ``NAMESPACE::enter`` in threads, one after the other in the queue."""

    def __init__(self, session: oc.Session, doors: Doors, stack: ExitStack) -> None:
        self._session = session
        self._doors = doors
        self._stack = stack

    def call(self, namespace: str, label: str, *, queues: bool = False) -> Background:
        before = queued(self._session)
        work = Background(self._session.call, f"{namespace}::enter", X, self._doors.folder, label)
        self._stack.enter_context(work)
        if queues:
            assert wait_for(lambda: queued(self._session) == before + 1)
        return work


@pytest.fixture
def callers(shared: oc.Session, doors: Doors) -> Iterator[Callers]:
    with ExitStack() as stack:
        yield Callers(shared, doors, stack)
        doors.let_out(20)  # whatever a failed test has left inside


def test_a_library_runs_one_call_at_a_time_in_the_order_in_which_they_came(
    shared: oc.Session, doors: Doors, callers: Callers, write_library: WriteLibrary
):
    assert shared.load(write_library("door", door_library("door"))).max_concurrency == 1
    first = callers.call("door", "first")
    assert doors.next_inside() == "first"
    second = callers.call("door", "second", queues=True)
    third = callers.call("door", "third", queues=True)
    assert (running(shared), queued(shared)) == (1, 2)
    [busy] = [i for i in shared.interpreters() if i.calls_queued]
    assert busy.bytes_queued > 2 * X.nbytes
    assert shared.libraries()[0].calls_in_flight == 3
    for work, label in ((first, "first"), (second, "second"), (third, "third")):
        assert doors.no_other_is_inside()
        doors.let_out()
        assert work.result() == label
        if label != "third":
            assert doors.next_inside() == {"first": "second", "second": "third"}[label]
    assert (running(shared), queued(shared)) == (0, 0)
    assert shared.check_invariants() == []


def test_a_library_says_how_many_calls_it_runs_at_a_time(
    shared: oc.Session, doors: Doors, callers: Callers, write_library: WriteLibrary
):
    path = write_library("door", door_library("door", max_concurrency=2))
    assert shared.load(path).max_concurrency == 2
    works = [callers.call("door", label) for label in "ab"]
    assert {doors.next_inside(), doors.next_inside()} == {"a", "b"}
    works.append(callers.call("door", "c", queues=True))
    assert doors.no_other_is_inside()
    doors.let_out()
    assert doors.next_inside() == "c"
    doors.let_out(2)
    assert [work.result() for work in works] == ["a", "b", "c"]


def test_a_new_version_does_not_wait_for_the_calls_of_the_old_one(
    shared: oc.Session, doors: Doors, callers: Callers, write_library: WriteLibrary
):
    shared.load(write_library("door", door_library("door")))
    callers.call("door", "old")
    assert doors.next_inside() == "old"
    shared.load(write_library("door", door_library("door", max_concurrency=3)))
    works = [callers.call("door", label) for label in "abc"]
    assert {doors.next_inside() for _ in works} == set("abc")
    doors.let_out(4)
    assert {work.result() for work in works} == set("abc")


@pytest.mark.parametrize("value", ["0", "-1", "True", "None", "1.5", "'2'", "[4]"])
def test_a_max_concurrency_that_is_none_fails_the_load_and_leaves_nothing(
    shared: oc.Session, write_library: WriteLibrary, value: str
):
    path = write_library("const", f"max_concurrency = {value}\n{constant(1)}")
    with pytest.raises(oc.LibraryLoadError) as caught:
        shared.load(path)
    assert f"const.py: max_concurrency is {value}; expected an int of at least 1" in str(
        caught.value
    )
    assert shared.libraries() == []
    shared.load(write_library("const", f"max_concurrency = 2**70\n{constant(1)}"))
    assert shared.ops.const.get(X) == 1


def test_libraries_that_call_each_other_at_the_same_time_never_wait_for_each_other(
    shared: oc.Session, write_library: WriteLibrary, doors: Doors
):
    # Both run the one call that they may, and only then call each other, and back again.
    for number in (1, 2):
        other = 3 - number
        text = door_library(f"chain{number}") + (
            "from opdispatch import ops\n"
            "lib.define('hit(Tensor x, str folder, int left) -> int')\n"
            "def hit(x, folder, left):\n"
            f"    if left == 4: wait(folder, 'chain{number}')\n"
            f"    return 1 + ops.chain{other}.hit(x, folder, left - 1) if left else 0\n"
            "lib.impl('hit', hit, 'CPU')\n"
        )
        shared.load(write_library(f"chain{number}", text), interpreter=f"worker-{number}")
    with (
        Background(shared.ops.chain1.hit, X, doors.folder, 4) as one,
        Background(shared.ops.chain2.hit, X, doors.folder, 4) as two,
    ):
        assert {doors.next_inside(), doors.next_inside()} == {"chain1", "chain2"}
        doors.let_out(2)
        assert (one.result(), two.result()) == (4, 4)


def test_a_kernels_threads_may_call_operators_elsewhere_and_its_own(
    shared: oc.Session, write_library: WriteLibrary
):
    text = (
        "from concurrent.futures import ThreadPoolExecutor\n"
        "from opdispatch import Library, ops\n"
        "lib = Library('outer', 'DEF')\n"
        "lib.define('spread(Tensor x) -> int')\n"
        "lib.define('one(Tensor x) -> int')\n"
        "def spread(x):\n"
        "    with ThreadPoolExecutor(4) as pool:\n"
        "        return sum(pool.map(lambda _: ops.back.get(x), range(8)))\n"
        "lib.impl('spread', spread, 'CPU')\n"
        "lib.impl('one', lambda x: 1, 'CPU')\n"
    )
    back = (
        "from opdispatch import Library, ops\nlib = Library('back', 'DEF')\n"
        "lib.define('get(Tensor x) -> int')\n"
        "lib.impl('get', lambda x: ops.outer.one(x), 'CPU')\n"
    )
    shared.load(write_library("outer", text), interpreter="worker-1")
    shared.load(write_library("back", back), interpreter="worker-2")
    assert shared.ops.outer.spread(X) == 8


def test_a_full_queue_refuses_and_says_when_to_try_again(
    start_daemon: StartDaemon, doors: Doors, write_library: WriteLibrary
):
    daemon = start_daemon("--queue", "2", workers=1)
    with daemon.connect() as session, ExitStack() as stack:
        session.load(write_library("door", door_library("door")))
        callers = Callers(session, doors, stack)
        works = [callers.call("door", "a")]
        assert doors.next_inside() == "a"
        works += [callers.call("door", label, queues=True) for label in "bc"]
        with pytest.raises(oc.QueueFullError) as caught:
            session.ops.door.enter(X, doors.folder, "d")
        facts = caught.value.facts
        assert isinstance(caught.value, oc.RefusedError)
        assert (facts["operator"], facts["interpreter"]) == ("door::enter", "worker-1")
        assert facts["started"] == "no"
        assert 0 < float(facts["retry_after"]) <= 30
        assert "2 calls with" in str(caught.value)
        code, retry = refusal_on_the_wire(daemon, doors)
        assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert 0 < retry.retry_delay.ToMilliseconds() <= 30_000
        doors.let_out(3)
        assert [work.result() for work in works] == ["a", "b", "c"]
        doors.let_out()
        assert session.ops.door.enter(X, doors.folder, "e") == "e"
        assert session.check_invariants() == []


def refusal_on_the_wire(
    daemon: RunningDaemon, doors: Doors
) -> tuple[grpc.StatusCode, error_details_pb2.RetryInfo]:
    """Return the status and the details that a foreign client receives."""
    with grpc.insecure_channel(daemon.address.replace("unix://", "unix:")) as channel:
        stub = execution_pb2_grpc.ExecutionServiceStub(channel)  # type: ignore[no-untyped-call]
        with pytest.raises(grpc.RpcError) as caught:
            stub.Call(call_request("door::enter", [X, doors.folder, "d"], {}))
    [data] = [value for key, value in caught.value.trailing_metadata() if key == DETAILS_KEY]
    retry = error_details_pb2.RetryInfo()
    [found] = [
        detail
        for detail in status_pb2.Status.FromString(data).details
        if detail.Is(retry.DESCRIPTOR)
    ]
    found.Unpack(retry)
    return caught.value.code(), retry


@pytest.mark.parametrize(
    ("lane", "size"), [("auto", 900_000), ("grpc", 900_000), ("grpc", 2_900_000)]
)
def test_the_bytes_that_wait_are_limited_too(
    start_daemon: StartDaemon, doors: Doors, write_library: WriteLibrary, lane: str, size: int
):
    """Whether a tensor stays in its message or, being large, is taken out of it."""
    daemon = start_daemon("--max-message-bytes", str(size + 100_000), workers=1)
    large = np.zeros(size, np.uint8)
    with daemon.connect(lane=lane) as session, ExitStack() as stack:
        session.load(write_library("door", door_library("door")))
        call = session.ops.door.enter
        works = []
        for number in range(5):
            work = Background(call, large, doors.folder, str(number))
            works.append(stack.enter_context(work))
            expected = number
            assert wait_for(lambda expected=expected: queued(session) == expected)
            if number == 0:
                assert doors.next_inside() == "0"
        told = rf"4 calls with {4 * size // 10_000}\d+ bytes are queued"
        with pytest.raises(oc.QueueFullError, match=told):
            call(large, doors.folder, "more")
        doors.let_out(5)
        assert [work.result() for work in works] == list("01234")


def test_the_flood_of_one_library_leaves_room_for_another(
    start_daemon: StartDaemon, doors: Doors, write_library: WriteLibrary
):
    daemon = start_daemon("--queue", "3", workers=1)
    with daemon.connect() as session, ExitStack() as stack:
        for name in ("flood", "quiet"):
            session.load(write_library(name, door_library(name)))
        callers = Callers(session, doors, stack)
        flood = [callers.call("flood", "f0")]
        assert doors.next_inside() == "f0"
        flood += [callers.call("flood", f"f{n}", queues=True) for n in (1, 2, 3)]
        # Not held up by the queue of the other one.
        quiet = [callers.call("quiet", "q0")]
        assert doors.next_inside() == "q0"
        quiet.append(callers.call("quiet", "q1"))
        with pytest.raises(oc.QueueFullError, match="the call of flood::enter never started"):
            flood.pop().result()
        doors.let_out(5)
        assert {work.result() for work in flood} == {"f0", "f1", "f2"}
        assert {work.result() for work in quiet} == {"q0", "q1"}


def test_a_call_whose_deadline_passes_in_the_queue_never_starts_and_says_so(
    lent_daemon: RunningDaemon,
    shared: oc.Session,
    doors: Doors,
    callers: Callers,
    write_library: WriteLibrary,
):
    shared.load(write_library("door", door_library("door")))
    first = callers.call("door", "first")
    assert doors.next_inside() == "first"
    with (
        lent_daemon.connect(timeout=1.0) as impatient,
        pytest.raises(oc.DeadlineExceededError) as caught,
    ):
        impatient.ops.door.enter(X, doors.folder, "late")
    assert caught.value.facts["started"] == "no"
    assert caught.value.facts["operator"] == "door::enter"
    assert "was queued for interpreter" in str(caught.value)
    assert queued(shared) == 0
    doors.let_out()
    assert first.result() == "first"
    callers.call("door", "next")
    assert doors.next_inside() == "next"


def test_a_kernel_whose_caller_has_given_up_keeps_its_slot_until_it_ends(
    lent_daemon: RunningDaemon,
    shared: oc.Session,
    doors: Doors,
    callers: Callers,
    write_library: WriteLibrary,
):
    shared.load(write_library("door", door_library("door")))
    with lent_daemon.connect(timeout=1.0) as impatient, pytest.raises(oc.DeadlineExceededError):
        impatient.ops.door.enter(X, doors.folder, "abandoned")
    assert doors.next_inside() == "abandoned"
    assert wait_for(lambda: shared.libraries()[0].calls_in_flight == 0)
    assert running(shared) == 1
    work = callers.call("door", "next", queues=True)
    assert doors.no_other_is_inside()
    doors.let_out(2)
    assert work.result() == "next"
    assert doors.next_inside() == "next"
    assert running(shared) == 0


async def test_a_cancelled_call_leaves_the_queue_and_the_reply_of_a_running_one_is_thrown_away(
    lent_daemon: RunningDaemon, shared: oc.Session, doors: Doors, write_library: WriteLibrary
):
    shared.load(write_library("door", door_library("door")))

    async def until(count: int) -> None:
        assert await asyncio.to_thread(wait_for, lambda: queued(shared) == count, 10)

    async with oc.aio.connect(lent_daemon.address) as other:
        enter = other.ops.door.enter
        one = asyncio.ensure_future(enter(X, doors.folder, "one"))
        assert await asyncio.to_thread(doors.next_inside) == "one"
        two = asyncio.ensure_future(enter(X, doors.folder, "two"))
        await until(1)
        three = asyncio.ensure_future(enter(X, doors.folder, "three"))
        await until(2)
        two.cancel()
        await until(1)
        one.cancel()
        assert doors.no_other_is_inside()  # the kernel of the first is still running
        doors.let_out()
        assert await asyncio.to_thread(doors.next_inside) == "three"
        doors.let_out()
        assert await three == "three"
        assert one.cancelled()
        assert two.cancelled()
    assert doors.no_other_is_inside()
    assert shared.check_invariants() == []


def test_a_kernel_hears_that_its_caller_has_given_up_when_it_calls_another(
    lent_daemon: RunningDaemon, shared: oc.Session, doors: Doors, write_library: WriteLibrary
):
    text = door_library("outer") + (
        "from opdispatch import ops\n"
        "lib.define('go(Tensor x, str folder) -> int')\n"
        "def go(x, folder):\n"
        "    wait(folder, 'outer')\n"
        "    try:\n"
        "        return ops.const.get(x)\n"
        "    except Exception as error:\n"
        "        wait(folder, f'{type(error).__name__}: {error}')\n"
        "        raise\n"
        "lib.impl('go', go, 'CPU')\n"
    )
    shared.load(write_library("const", constant(5)), interpreter="worker-1")
    shared.load(write_library("outer", text), interpreter="worker-2")
    gone = lent_daemon.connect()
    with Background(gone.ops.outer.go, X, doors.folder) as call:
        assert doors.next_inside() == "outer"
        gone.close()
        with pytest.raises(oc.OpdispatchError):
            call.result()
    assert wait_for(lambda: shared.libraries()[1].calls_in_flight == 0)
    doors.let_out(2)
    assert doors.next_inside() == (
        "RefusedError: const::get was not started: the caller of outer::go, which it is a part "
        "of, has given up"
    )
