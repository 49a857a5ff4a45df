"""The queue of one interpreter: limits, turns, cancellation, and the errors of refused calls."""

import asyncio
import contextvars
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opdispatch_server.access.authentication import CALLER
from opdispatch_server.access.identity import OWNER, Identity
from opdispatch_server.access.roles import Role
from opdispatch_server.call_context import KERNEL_THREADS
from opdispatch_server.daemon.calls.interpreter_queue import (
    LONGEST_RETRY,
    InterpreterQueue,
    Pace,
    QueueLimits,
    SlotKind,
)
from opdispatch_wire.errors import InterpreterDiedError, QueueFullError
from tests.waits import LONGEST_WAIT


def make_gate(calls=100, size=1000, ahead=0):
    return InterpreterQueue("worker-1", QueueLimits(calls, size), calls_ahead=ahead)


async def enter(queue, load_id, *, limit=1, size=1, log=None, name=""):
    slot = await queue.enter(load_id, limit, f"ns::op{load_id}", lambda: size)
    if log is not None:
        log.append(name)
    return slot


async def settle():
    """Let every task run as far as it can."""
    for _ in range(5):
        await asyncio.sleep(0)


def start(queue, load_id, **options):
    return asyncio.ensure_future(enter(queue, load_id, **options))


async def test_calls_of_one_library_start_in_the_order_in_which_they_came():
    queue, log = make_gate(), []
    tasks = [start(queue, 1, log=log, name=name) for name in "abcd"]
    await settle()
    assert log == ["a"]
    assert (queue.calls_running, queue.calls_queued, queue.bytes_queued) == (1, 3, 3)
    for position, task in enumerate(tasks):
        assert log == list("abcd"[: position + 1])
        (await task).release()
        await settle()
    assert (queue.calls_running, queue.calls_queued, queue.bytes_queued) == (0, 0, 0)
    assert queue.check_invariants() == []


async def test_a_library_runs_as_many_calls_as_it_allows_and_another_is_not_held_up():
    queue = make_gate()
    tasks = [start(queue, 1, limit=2) for _ in range(3)]
    other = start(queue, 2)
    await settle()
    assert [task.done() for task in tasks] == [True, True, False]
    assert other.done()
    tasks[1].result().release()
    await settle()
    assert tasks[2].done()
    assert queue.check_invariants() == []


async def test_libraries_take_turns_when_the_interpreter_is_full():
    queue, log = make_gate(), []
    running = [await enter(queue, 9, limit=1000) for _ in range(KERNEL_THREADS)]
    flood = [start(queue, 1, limit=1000, log=log, name="flood") for _ in range(6)]
    await settle()
    small = [start(queue, 2, limit=1000, log=log, name="small") for _ in range(2)]
    await settle()
    assert log == []
    for slot in running[:5]:
        slot.release()
        await settle()
    assert log == ["flood", "small", "flood", "small", "flood"]
    assert queue.calls_running == KERNEL_THREADS
    assert queue.check_invariants() == []
    for task in flood + small:
        task.cancel()


@pytest.mark.parametrize("limits", [{"calls": 2}, {"size": 2}])
async def test_full_queue_error_says_what_waits_and_when_to_retry(limits):
    queue = make_gate(**limits)
    slot = await enter(queue, 1)
    queued = [start(queue, 1) for _ in range(2)]
    await settle()
    with pytest.raises(QueueFullError, match="2 calls with 2 bytes are queued") as caught:
        await enter(queue, 1)
    assert caught.value.facts["started"] == "no"
    assert caught.value.facts["interpreter"] == "worker-1"
    assert 0.05 <= float(caught.value.facts["retry_after"]) <= LONGEST_RETRY
    assert queue.check_invariants() == []
    slot.release()
    (await queued[0]).release()
    (await queued[1]).release()
    (await enter(queue, 1)).release()


async def test_a_queue_of_none_refuses_whatever_cannot_run_at_once():
    queue = make_gate(calls=0)
    slot = await enter(queue, 1)
    with pytest.raises(QueueFullError):
        await enter(queue, 1)
    other = await enter(queue, 2)
    slot.release()
    (await enter(queue, 1)).release()
    other.release()
    assert queue.check_invariants() == []


async def test_calls_do_not_yield_to_one_that_will_have_no_room():
    queue = make_gate(size=25)
    slots = [await enter(queue, 1), await enter(queue, 2)]
    flood = [start(queue, 1) for _ in range(20)]
    await settle()
    with pytest.raises(QueueFullError, match=r"20 calls with 20 bytes .* ns::op2 never started"):
        await enter(queue, 2, size=26)
    assert not any(task.done() for task in flood)
    # Twenty-five less what two of a flood of twenty give back.
    other = start(queue, 2, size=7)
    await settle()
    assert [task.done() for task in flood] == [False] * 18 + [True] * 2
    assert not other.done()
    assert queue.check_invariants() == []
    for slot in slots:
        slot.release()
    for task in [*flood, other]:
        task.cancel()


async def test_the_newest_call_of_a_flood_makes_room_for_another_library():
    queue = make_gate(calls=4)
    slots = [await enter(queue, 1), await enter(queue, 2)]
    flood = [start(queue, 1) for _ in range(4)]
    await settle()
    other = start(queue, 2)
    await settle()
    with pytest.raises(QueueFullError, match="ns::op1"):
        await flood[3]
    assert not other.done()
    # The second one finds three of the flood beside one of its own: then shares are equal.
    second = start(queue, 2)
    await settle()
    with pytest.raises(QueueFullError, match="ns::op1"):
        await flood[2]
    with pytest.raises(QueueFullError, match="ns::op2"):
        await enter(queue, 2)
    assert queue.check_invariants() == []
    for slot in slots:
        slot.release()
    for task in (*flood[:2], other, second):
        (await task).release()
    assert queue.check_invariants() == []


async def test_a_cancelled_call_leaves_the_queue_at_once():
    queue = make_gate()
    slot = await enter(queue, 1)
    cancelled, next_one = start(queue, 1), start(queue, 1)
    await settle()
    cancelled.cancel()
    await settle()
    assert queue.calls_queued == 1
    slot.release()
    (await next_one).release()
    assert queue.check_invariants() == []


@pytest.mark.parametrize("cancel_first", [True, False])
async def test_a_call_that_is_cancelled_as_it_gets_its_slot_gives_it_to_the_next(cancel_first):
    queue = make_gate()
    slot = await enter(queue, 1)
    cancelled, next_one = start(queue, 1), start(queue, 1)
    await settle()
    if cancel_first:
        cancelled.cancel()
        slot.release()
    else:
        slot.release()
        cancelled.cancel()
    await settle()
    assert cancelled.cancelled()
    (await next_one).release()
    assert queue.check_invariants() == []
    assert queue.calls_running == 0


async def test_waiter_learns_that_its_call_never_started_when_the_interpreter_goes():
    queue = make_gate()
    slot = await enter(queue, 1)
    queued = [start(queue, 1), start(queue, 2), start(queue, 2)]
    await settle()
    queue.close(lambda operator: InterpreterDiedError(f"gone with {operator}", started="no"))
    for task in (queued[0], queued[2]):
        with pytest.raises(InterpreterDiedError, match="gone with ns::op") as caught:
            await task
        assert caught.value.facts["started"] == "no"
    with pytest.raises(InterpreterDiedError):
        await enter(queue, 3)
    slot.release()
    queued[1].result().release()
    assert queue.check_invariants() == []


async def test_a_library_of_quick_kernels_is_sent_calls_ahead_that_begin_when_others_end():
    queue = make_gate(ahead=2)
    first = await enter(queue, 1)
    tasks = [start(queue, 1) for _ in range(4)]
    await settle()
    assert queue.calls_queued == 4
    first.release()  # it was quick
    await settle()
    assert [task.done() for task in tasks] == [True, True, True, False]
    second, third, fourth = (task.result() for task in tasks[:3])
    assert [slot.is_ahead for slot in (second, third, fourth)] == [False, True, True]
    began = third.began
    second.release()
    assert [slot.is_ahead for slot in (third, fourth)] == [False, True]
    assert third.began > began
    fourth.release()
    third.release()
    (await tasks[3]).release()
    assert queue.check_invariants() == []
    assert queue.calls_running == 0


async def test_a_library_of_slow_kernels_is_sent_nothing_ahead():
    queue = make_gate(ahead=2)
    for _ in range(2):
        first = await enter(queue, 1)
        tasks = [start(queue, 1) for _ in range(2)]
        await settle()
        first.began -= 1.0  # it took a second
        first.release()
        await settle()
        assert [task.done() for task in tasks] == [True, False]
        tasks[0].result().began -= 1.0
        tasks[0].result().release()
        (await tasks[1]).release()
    assert queue.check_invariants() == []


def test_the_hint_follows_how_fast_the_queue_is_worked_off():
    pace = Pace()
    first = pace.time_to_end(0.0, 10)
    pace.begin_queue(0.0)
    for step in range(1, 101):
        pace.count_end(step / 100, busy=True)
    assert pace.time_to_end(1.0, 10) == pytest.approx(0.1, rel=0.05)
    assert first > 0.5
    # The kernel that runs now takes its time.
    assert pace.time_to_end(6.0, 10) == pytest.approx(5.0)
    assert pace.time_to_end(600.0, 10) == LONGEST_RETRY


@settings(deadline=None)
@given(
    seed=st.integers(0, 2**32),
    limit=st.integers(1, 3),
    calls=st.integers(0, 6),
    ahead=st.integers(0, 2),
)
def test_random_operations_keep_the_invariants(seed, limit, calls, ahead):
    async def scenario():
        rng, queue = random.Random(seed), make_gate(calls, 40, ahead)
        tasks, slots = [], []
        for _ in range(60):
            match rng.choice(["enter", "enter", "release", "cancel", "step"]):
                case "enter":
                    size = rng.randint(1, 15)
                    tasks.append(start(queue, rng.randint(1, 3), limit=limit, size=size))
                case "release" if slots:
                    slots.pop(rng.randrange(len(slots))).release()
                case "cancel" if tasks:
                    rng.choice(tasks).cancel()
                case _:
                    await asyncio.sleep(0)
            for task in [task for task in tasks if task.done()]:
                tasks.remove(task)
                if not task.cancelled() and task.exception() is None:
                    slots.append(task.result())
            assert queue.check_invariants() == []
        while tasks or slots:
            while slots:
                slots.pop().release()
            await settle()
            for task in [task for task in tasks if task.done()]:
                tasks.remove(task)
                if not task.cancelled() and task.exception() is None:
                    slots.append(task.result())
        assert queue.check_invariants() == []
        assert (queue.calls_running, queue.calls_queued, queue.bytes_queued) == (0, 0, 0)

    asyncio.run(scenario())


async def enter_all(queue, load_ids, *, limit=1, limits=None):
    """Take a slot of each library, as a program does; ``limits`` are those of each, by load id."""
    slots = []
    for load_id in sorted(load_ids):
        kind = SlotKind.FURTHER if slots else SlotKind.FIRST
        own = (limits or {}).get(load_id, limit)
        slots.append(await queue.enter(load_id, own, "a program", lambda: 1, kind))
        assert queue.check_invariants() == []
    return slots


async def test_a_program_waits_for_each_of_its_libraries_and_nothing_is_sent_ahead_of_it():
    queue = make_gate(ahead=7)
    first, *calls = [start(queue, 2) for _ in range(4)]
    await settle()
    first.result().release()  # it was quick
    await settle()
    assert all(call.done() for call in calls), "one runs, two are sent ahead"
    program = asyncio.ensure_future(enter_all(queue, [1, 2]))
    behind = start(queue, 2)
    await settle()
    assert not program.done()
    for call in calls:
        assert not program.done()
        call.result().release()
        await settle()
        assert queue.check_invariants() == []
    assert program.done()
    assert not behind.done(), "while the program runs, nothing of its libraries does"
    assert queue.calls_running == 1, "it needs one thread"
    for slot in program.result():
        slot.release()
    await settle()
    assert behind.done()
    behind.result().release()
    assert queue.calls_running == 0
    assert queue.check_invariants() == []


async def test_programs_that_use_the_same_libraries_never_wait_for_each_other_for_ever():
    """More programs than threads: those that have some of their slots get the others."""
    queue = make_gate()
    randomness = random.Random(5)
    running = 0

    async def run():
        nonlocal running
        slots = await enter_all(queue, randomness.sample(range(1, 9), 3), limit=KERNEL_THREADS)
        running += 1
        assert running <= KERNEL_THREADS
        await asyncio.sleep(0)
        running -= 1
        for slot in slots:
            slot.release()

    async with asyncio.timeout(LONGEST_WAIT):
        await asyncio.gather(*(run() for _ in range(3 * KERNEL_THREADS)))
    assert (queue.calls_running, queue.calls_queued) == (0, 0)
    assert queue.check_invariants() == []


async def test_a_program_that_has_a_thread_passes_calls_that_wait_for_one():
    """They would wait for each other: it for its turn after them, they for its thread."""
    queue = make_gate()

    def start_program():
        return asyncio.ensure_future(enter_all(queue, [1, 2], limits={1: 2 * KERNEL_THREADS}))

    programs = [start_program()]
    await settle()
    call = start(queue, 2)
    programs += [start_program() for _ in range(KERNEL_THREADS)]
    await settle()
    assert queue.calls_running == KERNEL_THREADS
    call.add_done_callback(lambda call: call.result().release())
    for program in programs:
        for slot in program.result():
            slot.release()
        await settle()
        assert queue.check_invariants() == []
    assert call.done()
    assert (queue.calls_running, queue.calls_queued) == (0, 0)


async def test_an_identity_at_its_share_of_the_queue_is_refused_and_others_are_not():
    queue = InterpreterQueue("worker-1", QueueLimits(10, 1000, 2), calls_ahead=0)
    running = await enter(queue, 1)

    def start_as(who: Identity) -> asyncio.Future[Any]:
        context = contextvars.copy_context()
        context.run(CALLER.set, who)
        return asyncio.get_running_loop().create_task(enter(queue, 1), context=context)

    alice, bob = (Identity(name, Role.CALL) for name in ("alice", "bob"))
    mine = [start_as(alice) for _ in range(3)]
    theirs = [start_as(bob), *(start_as(OWNER) for _ in range(4))]
    await settle()
    assert isinstance(mine[2].exception(), QueueFullError)
    assert "alice has 2 calls waiting for interpreter worker-1" in str(mine[2].exception())
    assert (queue.calls_queued, queue.check_invariants()) == (7, [])
    mine[0].cancel()
    await settle()
    again = start_as(alice)
    await settle()
    assert not again.done()
    running.release()
    for each in (mine[1], *theirs, again):
        (await each).release()
    assert (queue.calls_queued, queue.check_invariants()) == (0, [])
