"""Libraries that several interpreters hold: deaths and scaling, under load."""

from __future__ import annotations

import itertools
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

import opdispatch_client as oc
from tests.service.conftest import StartDaemon, WriteLibrary
from tests.service.libraries import constant
from tests.service.running_daemon import Background, RunningDaemon, wait_for
from tests.waits import LONGEST_WAIT

X = np.zeros(2)
CALLERS = 3

WHERE = """\
import os
from opdispatch import Library, ops

lib = Library("where", "DEF")
lib.define("pid(Tensor x) -> int")
lib.impl("pid", lambda x: os.getpid(), "CPU")
lib.define("nested(Tensor x) -> int[]")
lib.impl("nested", lambda x: [os.getpid(), ops.where.pid(x)], "CPU")
"""

WRITES = """\
import os, signal
from opdispatch import Library

lib = Library("writes", "DEF")
flag = os.environ["XDG_RUNTIME_DIR"] + "/deadly"


def die_once():
    try:
        os.unlink(flag)
    except FileNotFoundError:
        return
    os.kill(os.getpid(), signal.SIGKILL)


def add_(self, other):
    die_once()
    self += other
    return self


def add(self, other):
    die_once()
    return self + other


lib.define("add_(Tensor(a!) self, Tensor other) -> Tensor(a!)")
lib.impl("add_", add_, "CPU")
lib.define("add(Tensor self, Tensor other) -> Tensor")
lib.impl("add", add, "CPU")
"""


class Load:
    """Callers that call one operator until they are stopped, and what came of it."""

    def __init__(self) -> None:
        self.answers: list[list[Any]] = [[] for _ in range(CALLERS)]
        self.errors: list[Exception] = []

    def since_now(self, count: int = 5) -> bool:
        """Wait until every caller has had so many answers more."""
        before = [len(answers) for answers in self.answers]
        return wait_for(
            lambda: all(
                len(answers) >= start + count
                for answers, start in zip(self.answers, before, strict=True)
            ),
        )

    @property
    def last(self) -> list[Any]:
        return [answers[-1] for answers in self.answers]


@contextmanager
def under_load(daemon: RunningDaemon, operator: str) -> Iterator[Load]:
    stop = threading.Event()
    load = Load()

    def call(answers: list[Any]) -> None:
        with daemon.connect() as session:
            while not stop.wait(0.001):  # leaves processors to what it calls
                try:
                    answers.append(session.call(operator, X))
                except oc.OpdispatchError as error:
                    load.errors.append(error)

    threads = [threading.Thread(target=call, args=(answers,)) for answers in load.answers]
    for thread in threads:
        thread.start()
    try:
        assert load.since_now()
        yield load
        assert load.since_now()
    finally:
        stop.set()
        for thread in threads:
            thread.join(LONGEST_WAIT)


def holders(session: oc.Session, name: str) -> tuple[str, ...]:
    return next(library.interpreters for library in session.libraries() if library.name == name)


def pid_of(session: oc.Session, name: str) -> int:
    return next(i.pid for i in session.interpreters() if i.name == name)


HELD_UP = """\
import os, threading, time
from opdispatch import default_dispatcher


class Slow:
    def on_operator_registered(self, name):
        while os.path.exists({slow!r}):
            time.sleep(0.01)


def listen():
    default_dispatcher().add_registration_listener(Slow())


if os.path.exists({slow!r}):
    threading.Thread(target=listen, daemon=True).start()
"""
"""Nothing more is registered in its interpreter while there is a file ``slow``."""


def test_calls_go_to_every_replica_and_nested_ones_stay(
    start_daemon: StartDaemon, write_library: WriteLibrary
):
    daemon = start_daemon(workers=3)
    with daemon.connect() as session:
        load = session.load(write_library("where", WHERE), interpreters=2)
        assert len(load.interpreters) == 2
        held = {pid_of(session, name) for name in load.interpreters}
        assert {session.ops.where.pid(X) for _ in range(8)} == held
        nested = [tuple(session.ops.where.nested(X)) for _ in range(8)]
        assert set(nested) == {(pid, pid) for pid in held}
        # An interpreter that does not hold it asks the daemon.
        [other] = {i.name for i in session.interpreters()} - set(load.interpreters)
        outer = (
            "from opdispatch import Library, ops\nlib = Library('outer', 'DEF')\n"
            "lib.define('pid(Tensor x) -> int')\n"
            "lib.impl('pid', lambda x: ops.where.pid(x), 'CPU')\n"
        )
        session.load(write_library("outer", outer), interpreter=other)
        assert {session.ops.outer.pid(X) for _ in range(8)} == held


def test_the_death_of_the_primary_under_load_fails_no_call_and_publishes_nothing(
    start_daemon: StartDaemon, write_library: WriteLibrary
):
    daemon = start_daemon(workers=3)
    daemon.expects_errors = True
    with daemon.connect() as session:
        session.load(write_library("const", constant(7)), interpreters=3)
        epoch = session.refresh_server_info().epoch
        with under_load(daemon, "const::get") as load:
            for _ in range(3):
                primary, heir, *_ = holders(session, "const")
                os.kill(pid_of(session, primary), signal.SIGKILL)
                assert wait_for(lambda p=primary: holders(session, "const")[0] != p)
                assert holders(session, "const")[0] == heir
                # The free place is filled as soon as there is an interpreter for it.
                assert wait_for(lambda: len(holders(session, "const")) == 3)
                assert load.since_now()
        assert load.errors == []
        assert {answer for answers in load.answers for answer in answers} == {7}
        assert session.refresh_server_info().epoch == epoch
        assert session.check_invariants() == []


def test_the_last_ones_death_withdraws_the_library_until_another_has_it(
    daemon: RunningDaemon, session: oc.Session, write_library: WriteLibrary
):
    daemon.expects_errors = True
    session.load(write_library("const", constant(7)), interpreters=2)
    for interpreter in session.interpreters():
        os.kill(interpreter.pid, signal.SIGKILL)
    assert wait_for(
        lambda: (
            all(i.restarts == 1 for i in session.interpreters())
            and [len(library.interpreters) for library in session.libraries()] == [2]
        ),
    )
    assert session.ops.const.get(X) == 7
    assert session.check_invariants() == []


def test_a_call_runs_again_elsewhere_unless_it_writes_or_its_caller_says_no(
    start_daemon: StartDaemon, write_library: WriteLibrary
):
    daemon = start_daemon(workers=2)
    daemon.expects_errors = True
    deadly = daemon.runtime_folder / "deadly"
    one = np.ones(2)

    deaths = itertools.count(1)

    def whole() -> bool:
        """Once more: the dead one has been replaced, and holds the library again."""
        restarts = next(deaths)

        def is_whole() -> bool:
            session.ops.writes.add(one, one)  # its good conduct clears it of what it may have done
            interpreters = session.interpreters()
            return (
                sum(each.restarts for each in interpreters) == restarts
                and len(holders(session, "writes")) == 2
            )

        return wait_for(is_whole)

    with daemon.connect() as session, daemon.connect(retry=False) as careful:
        session.load(write_library("writes", WRITES), interpreters=2)
        deadly.touch()
        np.testing.assert_array_equal(session.ops.writes.add(one, one), [2, 2])
        assert not deadly.exists()
        for call in (
            session.with_options(retry=False).ops.writes.add,
            careful.ops.writes.add,
            session.ops.writes.add_,
        ):
            assert whole()
            deadly.touch()
            with pytest.raises(oc.InterpreterDiedError) as caught:
                call(one, one)
            assert caught.value.facts["interpreter"] in str(caught.value)
            assert not deadly.exists()
        assert whole()
        deadly.touch()
        again = careful.with_options(retry=True).ops.writes.add
        np.testing.assert_array_equal(again(one, one), [2, 2])


def test_a_call_waits_for_an_interpreter_that_is_about_to_join(
    start_daemon: StartDaemon, write_library: WriteLibrary
):
    """The only one that serves dies while another one, which is held up, joins."""
    daemon = start_daemon(workers=2)
    daemon.expects_errors = True
    slow, deadly = (daemon.runtime_folder / name for name in ("slow", "deadly"))
    with daemon.connect() as session, daemon.connect(timeout=LONGEST_WAIT) as caller:
        session.load(write_library("writes", HELD_UP.format(slow=str(slow)) + WRITES))
        first = holders(session, "writes")
        slow.touch()
        with Background(caller.scale, "writes", 2) as scaling:
            assert wait_for(lambda: len(holders(session, "writes")) == 2)
            deadly.touch()
            one = np.ones(2)
            with Background(caller.call, "writes::add", one, one) as call:
                assert wait_for(lambda: first[0] not in holders(session, "writes"))
                slow.unlink()
                np.testing.assert_array_equal(call.result(), [2, 2])
            scaling.result()


def test_scaling_up_and_down_under_load_fails_no_call(
    start_daemon: StartDaemon, write_library: WriteLibrary
):
    daemon = start_daemon(workers=3)
    with daemon.connect() as session:
        session.load(write_library("where", WHERE))
        epoch = session.refresh_server_info().epoch
        pids = {i.name: i.pid for i in session.interpreters()}
        with under_load(daemon, "where::pid") as load:
            for count in (3, 1, 2, 3, 1):
                library = session.scale("where", count)
                assert library.interpreters_wanted == count
                held = wait_for(lambda n=count: len(holders(session, "where")) == n)
                assert held, session.libraries()
                expected = {pids[name] for name in holders(session, "where")}
                assert load.since_now()
                assert {session.ops.where.pid(X) for _ in range(2 * count)} <= expected
                assert {tuple(session.ops.where.nested(X)) for _ in range(2 * count)} <= {
                    (pid, pid) for pid in expected
                }
        assert load.errors == []
        assert session.refresh_server_info().epoch == epoch
        assert session.check_invariants() == []


def test_more_replicas_than_interpreters_wait_for_more_interpreters(
    daemon: RunningDaemon, session: oc.Session, write_library: WriteLibrary
):
    load = session.load(write_library("const", constant(1)), interpreters=5)
    assert (len(load.interpreters), load.interpreters_wanted) == (2, 5)
    with daemon.connect() as other, pytest.raises(ValueError, match="expected 1 or more"):
        other.scale("const", 0)
    with pytest.raises(oc.LibraryNotFoundError, match="no library named 'nope'"):
        session.scale("nope", 2)


def test_a_replica_whose_library_was_overridden_stays_overridden(
    start_daemon: StartDaemon, write_library: WriteLibrary
):
    daemon = start_daemon(workers=3)
    with daemon.connect() as session:
        session.load(write_library("const", constant(1)), interpreter="worker-1")
        override = (
            "from opdispatch import Library\nlib = Library('const', 'IMPL')\n"
            "lib.impl('get', lambda x: 2, 'CPU', allow_override=True)\n"
        )
        session.load(write_library("override", override), interpreter="worker-2")
        outer = (
            "from opdispatch import Library, ops\nlib = Library('outer', 'DEF')\n"
            "lib.define('get(Tensor x) -> int')\n"
            "lib.impl('get', lambda x: ops.const.get(x), 'CPU')\n"
        )
        session.load(write_library("outer", outer), interpreters=3)
        for count in (3, 1, 3):
            session.scale("const", count)
            assert session.ops.const.get(X) == 2
            assert {session.ops.outer.get(X) for _ in range(6)} == {2}
        session.unload("override")
        assert {session.ops.outer.get(X) for _ in range(6)} == {1}
        assert session.check_invariants() == []


def test_overload_resolution_is_the_same_in_daemon_and_interpreters(
    start_daemon: StartDaemon, write_library: WriteLibrary
):
    """In the daemon, and in kernels of interpreters that were there all the time or came later."""

    def overload(name: str, value: int) -> str:
        return (
            'from opdispatch import Library\nlib = Library("over", "FRAGMENT")\n'
            f'lib.define("get.{name}(Tensor x) -> int")\n'
            f'lib.impl("get.{name}", lambda x: {value}, "CPU")\n'
        )

    outer = (
        "from opdispatch import Library, ops\nlib = Library('outer', 'DEF')\n"
        "lib.define('get(Tensor x) -> int')\n"
        "lib.impl('get', lambda x: ops.over.get(x), 'CPU')\n"
    )
    daemon = start_daemon(workers=3)
    daemon.expects_errors = True
    with daemon.connect() as session:

        def answers() -> set[int]:
            return {session.ops.over.get(X), *(session.ops.outer.get(X) for _ in range(6))}

        session.load(write_library("one", overload("one", 1)), interpreter="worker-1")
        session.load(write_library("two", overload("two", 2)), interpreter="worker-2")
        session.load(write_library("outer", outer), interpreters=3)
        assert answers() == {1}
        for count in (3, 1, 3):  # takes the place of what was mirrored, and is taken out again
            session.scale("one", count)
            assert answers() == {1}
        session.load(write_library("one", overload("one", 11)))  # is defined anew: the last one
        assert answers() == {2}
        [worker] = [each for each in session.interpreters() if each.name == "worker-3"]
        os.kill(worker.pid, signal.SIGKILL)
        assert wait_for(lambda: sum(each.restarts for each in session.interpreters()) == 1)
        assert wait_for(lambda: len(holders(session, "outer")) == 3)
        assert answers() == {2}
        session.rollback("one")
        assert answers() == {2}
        session.unload("two")
        assert answers() == {1}
        assert session.check_invariants() == []


def test_a_call_that_may_have_killed_its_interpreter_runs_once_more_and_no_more(
    start_daemon: StartDaemon, write_library: WriteLibrary
):
    daemon = start_daemon(workers=4)
    daemon.expects_errors = True
    text = (
        "import os, signal\nfrom opdispatch import Library\nlib = Library('dies', 'DEF')\n"
        "lib.define('die(Tensor x) -> Tensor')\n"
        "lib.impl('die', lambda x: os.kill(os.getpid(), signal.SIGKILL), 'CPU')\n"
    )
    with daemon.connect() as session:
        session.load(write_library("dies", text), interpreters=4)
        with pytest.raises(oc.InterpreterDiedError, match="while running dies::die"):
            session.ops.dies.die(X)
        assert wait_for(lambda: sum(i.restarts for i in session.interpreters()) == 2)
        # It is where it can hurt no other.
        assert wait_for(lambda: len(holders(session, "dies")) == 1)
        assert sum(i.restarts for i in session.interpreters()) == 2
