"""Changes of the registry, as a stream."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable, Generator, Iterator

import grpc
import pytest

import opdispatch_client as oc
from opdispatch.errors import OpdispatchError
from opdispatch_client import aio
from opdispatch_client.listings import RegistryChange
from opdispatch_wire.errors import RefusedError
from opdispatch_wire.v1 import registry_pb2, registry_pb2_grpc
from tests.service.conftest import StartDaemon, WriteLibrary
from tests.service.running_daemon import RunningDaemon, wait_for
from tests.waits import LONGEST_WAIT

BANK = """\
from opdispatch import Library

lib = Library("bank", "DEF")
lib.define("quote(float x) -> float")
lib.define("rate(float x) -> float")
lib.impl("quote", lambda x: 2 * x, "CompositeExplicitAutograd")
"""
# The interval of reports of activity, in seconds.
LOOKING_OFTEN = {"opdispatch_server.daemon.servicers.registry_feed.ACTIVITY_CHECK_SECONDS": 0.1}
KERNEL = """\
from opdispatch import Library

lib = Library("bank", "IMPL")
lib.impl("rate", lambda x: 3 * x, "CompositeExplicitAutograd")
"""
SCHEMA = ", ".join(f"Tensor argument_with_a_long_name_{n}" for n in range(10))
MANY = f"""\
from opdispatch import Library
lib = Library("many", "DEF")
for n in range({{count}}):
    lib.define(f"f{{{{n:05}}}}({SCHEMA}) -> Tensor")
"""


@pytest.fixture
def daemon(start_daemon: StartDaemon) -> RunningDaemon:
    return start_daemon(workers=2, constants=LOOKING_OFTEN)


@pytest.fixture
def session(daemon: RunningDaemon) -> Iterator[oc.Session]:
    with daemon.connect(timeout=LONGEST_WAIT) as session:
        yield session


Changes = Generator[RegistryChange, None]


@pytest.fixture
def watch(session: oc.Session) -> Iterator[Callable[..., Changes]]:
    """Watch the registry until the end of the test."""
    with contextlib.ExitStack() as stack:
        yield lambda *args, **kwargs: stack.enter_context(
            contextlib.closing(session.watch_registry(*args, **kwargs))
        )


def until(changes: Changes, holds: Callable[[RegistryChange], object]) -> RegistryChange:
    """Return the first change of which something holds; the session's timeout bounds the wait."""
    return next(change for change in changes if holds(change))


def names(change: RegistryChange) -> list[str]:
    return [each.name for each in change.operators]


def test_first_change_has_everything_and_the_next_ones_what_changes(
    session: oc.Session, watch: Callable[..., Changes], write_library: WriteLibrary
):
    changes = watch()
    first = next(changes)
    assert (first.whole, first.operators, first.libraries) == (True, (), ())
    assert [each.name for each in first.interpreters] == [i.name for i in session.interpreters()]
    session.load(str(write_library("bank", BANK)))
    loaded = until(changes, lambda change: change.operators)
    assert names(loaded) == ["bank::quote", "bank::rate"]
    assert not loaded.whole
    assert loaded.epoch == session.refresh_server_info().epoch > first.epoch
    assert [(each.name, each.version) for each in loaded.libraries] == [("bank", 1)]
    session.load(str(write_library("kernel", KERNEL)))
    rate = until(changes, lambda change: change.operators)
    assert names(rate) == ["bank::rate"], "only what has another kernel"
    assert rate.operators[0].keys == ("CompositeExplicitAutograd",)
    session.load(str(write_library("bank", BANK + "# again\n")))
    versions = until(changes, lambda change: ("bank", 2) in library_keys(change))
    assert {each.state for each in versions.libraries if each.version == 1} <= {"kept"}
    session.unload("kernel")
    session.unload("bank")
    gone: set[str] = set()
    while gone < {"bank::quote", "bank::rate"}:
        change = next(changes)
        gone |= set(change.operators_gone)
    assert until_library_gone(change, changes)


def library_keys(change: RegistryChange) -> set[tuple[str, int]]:
    return {(each.name, each.version) for each in change.libraries}


def until_library_gone(change: RegistryChange, changes: Changes) -> bool:
    while ("bank", 2) not in change.libraries_gone:
        change = next(changes)
    return True


def test_a_watcher_goes_on_from_an_epoch(
    daemon: RunningDaemon,
    session: oc.Session,
    watch: Callable[..., Changes],
    write_library: WriteLibrary,
):
    session.load(str(write_library("bank", BANK)))
    known = next(watch())
    assert names(known) == ["bank::quote", "bank::rate"]
    same = next(watch(known.epoch, known.instance))
    assert (same.whole, same.operators) == (False, ())
    assert [each.name for each in same.libraries] == ["bank"], "libraries are always all there"
    session.load(str(write_library("kernel", KERNEL)))
    later = next(watch(known.epoch, known.instance))
    assert (later.whole, names(later)) == (False, ["bank::rate"])
    for epoch, instance in ((known.epoch + 1000, known.instance), (known.epoch, "another")):
        assert next(watch(epoch, instance)).whole
    session.unload("bank")
    gone = next(watch(known.epoch, known.instance))
    assert gone.operators_gone == ("bank::quote",), "kernel still has one for bank::rate"


def test_activity_tells_of_calls_and_deaths(
    daemon: RunningDaemon, watch: Callable[..., Changes], write_library: WriteLibrary
):
    daemon.expects_errors = True
    with daemon.connect() as caller:
        caller.load(str(write_library("bank", BANK)))
        changes = watch(activity=True)
        assert next(changes).activity is not None
        for _ in range(10):
            caller.ops.bank.quote(1.0)
        seen = 0
        while seen < 10:
            activity = until(changes, lambda change: change.activity).activity
            assert activity is not None
            seen += sum(each.ok for each in activity.calls if each.operator == "bank::quote")
        assert (seen, activity.since_start.ok) == (10, 10)
        victim = caller.interpreters()[0]
        os.kill(victim.pid, signal.SIGKILL)
        change = until(changes, lambda change: change.activity and change.activity.deaths)
        assert change.activity is not None
        death = change.activity.deaths[0]
        assert (death.interpreter, death.cause) == (victim.name, "killed")


def test_a_slow_watcher_gets_many_changes_as_one(
    daemon: RunningDaemon, session: oc.Session, write_library: WriteLibrary
):
    """One that reads nothing is sent no more than the window of its stream holds."""
    with grpc.insecure_channel(daemon.address.replace("unix://", "unix:")) as channel:
        stub = registry_pb2_grpc.RegistryServiceStub(channel)
        slow = stub.WatchRegistry(registry_pb2.WatchRegistryRequest(), timeout=LONGEST_WAIT)
        first = next(slow)
        path = write_library("many", MANY.format(count=300).replace("long", "very_" * 100 + "long"))
        for _ in range(20):
            session.load(str(path))
            session.unload("many")
        session.load(str(path))
        epoch = session.refresh_server_info().epoch
        known: set[str] = set()
        epochs: set[int] = set()
        for reply in slow:
            epochs.add(reply.epoch)
            known |= {each.name for each in reply.operators}
            known -= set(reply.operators_gone)
            if reply.epoch == epoch:
                break
        slow.cancel()
        assert len(known) == 300
        assert epoch - first.epoch >= 41, "each change is an epoch"
        assert len(epochs) < 41, "and some are no message"


def test_ten_thousand_operators_come_in_parts(
    session: oc.Session, watch: Callable[..., Changes], write_library: WriteLibrary
):
    changes = watch()
    next(changes)
    session.load(str(write_library("many", MANY.format(count=10_000))))
    loaded = until(changes, lambda change: change.operators)
    assert len(loaded.operators) == 10_000
    assert sum(len(each.schema) for each in loaded.operators) > 2**21, "more than one message"


def test_the_end_of_the_daemon_ends_the_stream(daemon: RunningDaemon, session: oc.Session):
    with contextlib.closing(session.watch_registry()) as changes:
        next(changes)
        daemon.signal(signal.SIGTERM)
        with pytest.raises(OpdispatchError) as raised:
            until(changes, lambda change: False)
        assert isinstance(raised.value, RefusedError), raised.value


def test_a_watcher_that_leaves_is_forgotten(daemon: RunningDaemon, session: oc.Session):
    for _ in range(3):
        with contextlib.closing(session.watch_registry()) as changes:
            next(changes)
    assert wait_for(lambda: session.check_invariants() == [])


def test_asyncio_sessions_watch_too(daemon: RunningDaemon, write_library: WriteLibrary):
    async def run() -> list[str]:
        async with (
            aio.connect(daemon.address, timeout=LONGEST_WAIT) as session,
            contextlib.aclosing(session.watch_registry()) as changes,
        ):
            await anext(changes)
            await session.load(str(write_library("bank", BANK)))
            async for change in changes:
                if change.operators:
                    return names(change)
        return []

    assert asyncio.run(run()) == ["bank::quote", "bank::rate"]
