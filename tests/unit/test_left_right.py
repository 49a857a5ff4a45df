"""LeftRight: readers never wait for a writer, and never see a value that is being written."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from opdispatch.dispatch.left_right import LeftRight
from tests.waits import LONGEST_WAIT


def append(item):
    return lambda value: value.append(item)


def test_a_reader_sees_what_was_written():
    value = LeftRight(list)
    value.write(append(1))
    value.write(append(2))
    assert value.read(list) == [1, 2]
    assert value.read(len) == 2


def test_a_change_is_made_on_both_copies():
    value = LeftRight(list)
    seen = []
    assert value.write(lambda copy: seen.append(copy) or copy.append(1) or len(copy)) == 1
    assert seen[0] is not seen[1]
    assert seen == [[1], [1]]


def test_a_change_that_raises_at_once_has_changed_nothing():
    value = LeftRight(list)
    value.write(append(1))

    def fail(copy):
        copy.append(2)
        raise KeyError

    with pytest.raises(KeyError):
        value.write(fail)
    value.write(append(3))
    for _ in range(2):
        assert value.read(list) == [1, 3]
        value.write(len)  # brings the other copy to the front


def test_a_change_that_raises_only_on_the_second_copy_stands():
    value = LeftRight(list)
    runs = []

    def fail_later(copy):
        copy.append(1)
        runs.append(copy)
        if len(runs) == 2:
            raise KeyError

    with pytest.raises(KeyError):
        value.write(fail_later)
    for _ in range(2):
        assert value.read(list) == [1]
        value.write(len)


def test_an_exception_of_a_reader_passes_through_and_a_writer_need_not_wait_for_it():
    value = LeftRight(list)
    with pytest.raises(ZeroDivisionError):
        value.read(lambda copy: 1 / len(copy))
    value.write(append(1))
    assert value.read(list) == [1]


def test_a_writer_waits_for_the_readers_that_are_there_and_new_readers_do_not_wait():
    """The story of one write: step by step, told by events."""
    value = LeftRight(list)
    reading, written_once, may_leave = (threading.Event() for _ in range(3))

    def slow(copy):
        reading.set()
        assert may_leave.wait(LONGEST_WAIT)
        return list(copy)

    def change(copy):
        copy.append(1)
        written_once.set()

    with ThreadPoolExecutor(2) as pool:
        reader = pool.submit(value.read, slow)
        assert reading.wait(LONGEST_WAIT)
        writer = pool.submit(value.write, change)
        assert written_once.wait(LONGEST_WAIT)
        # The writer has changed one copy, and must leave the other to the reader.
        while value.read(list) != [1]:
            pass  # its very next step is to show the change
        assert not writer.done()
        assert not reader.done()
        may_leave.set()
        assert reader.result(LONGEST_WAIT) == [], (
            "it stays on the copy that was in front when it looked"
        )
        writer.result(LONGEST_WAIT)
    assert value.read(list) == [1]


def test_writers_take_turns(eager_switching):
    value = LeftRight(list)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda n: value.write(append(n)), range(200)))
    front = value.read(list)
    value.write(len)
    assert value.read(list) == front
    assert sorted(front) == list(range(200))


def test_readers_see_whole_values_while_a_writer_writes(eager_switching):
    """Each change leaves a pair of equal numbers; no reader may see an unequal one."""
    value = LeftRight(lambda: {"a": 0, "b": 0})
    stop, start = threading.Event(), threading.Barrier(4)
    torn, reads = [], [0, 0, 0]

    # Threads can only change places where a function is called.
    def get(copy, name):
        return copy[name]

    def look(copy):
        return get(copy, "a"), get(copy, "b")

    def read(reader):
        start.wait(LONGEST_WAIT)
        last = 0
        while not stop.is_set():
            a, b = value.read(look)
            if a != b or a < last:
                torn.append((last, a, b))
            last = a
            reads[reader] += 1

    def step(copy):
        copy["a"] = get(copy, "a") + 1
        copy["b"] = get(copy, "b") + 1

    threads = [threading.Thread(target=read, args=[reader]) for reader in range(3)]
    for thread in threads:
        thread.start()
    start.wait(LONGEST_WAIT)
    writes = 0
    while writes < 100_000 and (writes < 2000 or min(reads) < 2000):
        value.write(step)
        writes += 1
    stop.set()
    for thread in threads:
        thread.join(LONGEST_WAIT)
    assert torn == []
    assert min(reads) >= 2000, "every reader got on while the writer wrote"
    assert value.read(look) == (writes, writes)


def test_a_thread_may_write_from_within_its_own_read():
    """A finalizer may run in the middle of a look-up, and undo a registration."""
    value = LeftRight(list)

    def look(copy):
        value.write(append(1))
        return True

    assert value.read(look)
    assert value.read(list) == [1]
