"""Waiting for registrations, over the wire."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from random import Random

import grpc
import pytest

import opdispatch_client as oc
from opdispatch_wire.v1 import registry_pb2, registry_pb2_grpc
from tests.service.conftest import StartDaemon, WriteLibrary
from tests.service.libraries import constant
from tests.service.running_daemon import Background, RunningDaemon, wait_for
from tests.waits import LONGEST_WAIT
from tests.work_done import cpu_seconds

WORKERS = 1
SHARED_WORKERS = 1
WAITERS = 1000
OPERATORS = 50

MANY = f"""\
from opdispatch import Library

lib = Library("many", "DEF")
for number in range({OPERATORS}):
    lib.define(f"op{{number}}(Tensor x) -> int")
    lib.impl(f"op{{number}}", lambda x: 1, "CPU")
"""

# Its import holds until a file appears.
SLOW = """\
import os
import time

from opdispatch import Library

while not os.path.exists({gate!r}):
    time.sleep(0.005)
lib = Library("slow", "DEF")
lib.define("get() -> int")
"""


@pytest.fixture
async def waiting(lent_daemon: RunningDaemon) -> AsyncIterator[oc.AsyncSession]:
    async with oc.aio.connect(lent_daemon.address) as session:
        yield session


@pytest.fixture
async def own(daemon: RunningDaemon) -> AsyncIterator[oc.AsyncSession]:
    """A session with the test's own daemon."""
    async with oc.aio.connect(daemon.address) as session:
        yield session


async def begun(session: oc.AsyncSession, *waits: asyncio.Task[object]) -> None:
    """Return when the waits have reached the daemon: requests of one session are in order."""
    for _ in range(3):
        await session.operators("nothing")
    assert not any(wait.done() for wait in waits)


def resident_mib(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def test_wait_returns_at_once_for_existing_registrations(
    shared: oc.Session, write_library: WriteLibrary
):
    shared.load(write_library("const", constant(1)))
    found = shared.wait_for_def("const::get", 0)
    assert (found.name, found.libraries, found.keys) == ("const::get", ("const",), ("CPU",))
    kernel = shared.wait_for_impl("const::get", "CPU", 0)
    assert (kernel.key, kernel.library, kernel.interpreter) == ("CPU", "const", "worker-1")
    assert kernel.active


async def test_a_load_ends_the_waits_for_it(waiting: oc.AsyncSession, write_library: WriteLibrary):
    waits = [
        asyncio.create_task(waiting.wait_for_def("const::get", None)),
        asyncio.create_task(waiting.wait_for_impl("const::get", "CPU", 60)),
    ]
    await begun(waiting, *waits)
    await waiting.load(write_library("const", constant(1)))
    async with asyncio.timeout(LONGEST_WAIT):
        operator, kernel = await asyncio.gather(*waits)
    assert operator.libraries == ("const",)
    assert kernel.library == "const"


async def test_a_kernel_may_be_there_before_the_definition(
    waiting: oc.AsyncSession, write_library: WriteLibrary
):
    """And one for another key does not count."""
    text = 'from opdispatch import Library\nLibrary("const", "IMPL").impl("get", lambda x: 1, {})'
    awaited = asyncio.create_task(waiting.wait_for_impl("const::get", "CUDA", 60))
    await begun(waiting, awaited)
    await waiting.load(write_library("cpu", text.format("'CPU'")))
    await begun(waiting, awaited)
    await waiting.load(write_library("cuda", text.format("'CUDA'")))
    assert (await awaited).library == "cuda"
    with pytest.raises(oc.WaitTimeoutError, match="the definition of const::get"):
        await waiting.wait_for_def("const::get", 0)
    await waiting.load(write_library("both", text.format("None")))
    assert (await waiting.wait_for_impl("const::get")).key == "CompositeImplicitAutograd"


async def test_registration_gone_before_the_wait_does_not_count(
    waiting: oc.AsyncSession, write_library: WriteLibrary
):
    path = write_library("const", constant(1))
    await waiting.load(path)
    await waiting.unload("const")
    with pytest.raises(oc.WaitTimeoutError) as caught:
        await waiting.wait_for_def("const::get", 0.01)
    assert caught.value.hint == "library 'const', which had it, was unloaded"


def test_timeout_names_the_expected_library(
    shared: oc.Session, write_library: WriteLibrary, tmp_path: Path
):
    with pytest.raises(oc.WaitTimeoutError) as caught:
        shared.wait_for_def("slow::get", 0.05)
    assert caught.value.message == (
        "waited 0.05 s for the definition of slow::get, which a library that is not being loaded "
        "was expected to register"
    )
    path = write_library("slow", SLOW.format(gate=str(tmp_path / "gate")))
    with Background(shared.load, path) as load:
        assert wait_for(lambda: any(i.state == "loading" for i in shared.interpreters()))
        with pytest.raises(oc.WaitTimeoutError) as caught:
            shared.wait_for_impl("slow::get", "CPU", 0.05)
        assert caught.value.message == (
            "waited 0.05 s for a CPU kernel of slow::get, which library slow v1 (being imported "
            "by worker-1) was expected to register"
        )
        assert caught.value.facts["awaited"] == "a CPU kernel of slow::get"
        assert "slow v1" in caught.value.facts["awaited_from"]
        (tmp_path / "gate").touch()
        load.result()
    assert shared.wait_for_def("slow::get").schema == "slow::get() -> int"
    with pytest.raises(oc.WaitTimeoutError) as caught:
        shared.wait_for_impl("slow::get", "CPU", 0)
    assert caught.value.hint == "it has kernels for no key"
    with pytest.raises(oc.WaitTimeoutError) as caught:
        shared.wait_for_def("slow::get.other", 0)
    assert caught.value.hint == "defined are slow::get; each is awaited by its own name"


def test_a_library_that_lost_its_interpreter_is_expected_back(
    start_daemon: StartDaemon, write_library: WriteLibrary, tmp_path: Path
):
    daemon = start_daemon(workers=1)
    daemon.expects_errors = True
    with daemon.connect() as session:
        session.load(write_library("const", constant(1)))
        [interpreter] = session.interpreters()
        os.kill(interpreter.pid, signal.SIGKILL)
        assert wait_for(lambda: not session.libraries()[0].active)
        # No client has to try again and again.
        assert session.wait_for_def("const::get", 30).libraries == ("const",)
        assert session.libraries()[0].active


@pytest.mark.parametrize(
    ("operator", "key", "timeout", "error", "problem"),
    [
        ("no name", "CPU", 1, oc.OperatorNotFoundError, "there is no operator 'no name'"),
        ("a::b", "CPV", 1, oc.DispatchKeyError, "there is no dispatch key 'CPV'"),
        ("a::b", "CPU", -1, oc.WireError, r"\$\.timeout is -1"),
        ("a::b", "CPU", float("nan"), oc.WireError, r"\$\.timeout is nan"),
        ("a::b", "CPU", float("inf"), oc.WireError, r"\$\.timeout is inf"),
    ],
)
def test_bad_requests_are_refused(shared: oc.Session, operator, key, timeout, error, problem):
    with pytest.raises(error, match=problem):
        shared.wait_for_impl(operator, key, timeout)
    if error is not oc.DispatchKeyError:
        with pytest.raises(error, match=problem):
            shared.wait_for_def(operator, timeout)


def test_the_deadline_of_the_call_ends_the_wait(shared_daemon: RunningDaemon):
    with grpc.insecure_channel(shared_daemon.address.replace("unix://", "unix:")) as channel:
        stub = registry_pb2_grpc.RegistryServiceStub(channel)
        with pytest.raises(grpc.RpcError) as caught:
            stub.WaitForDef(registry_pb2.WaitForDefRequest(operator="a::b"), timeout=0.1)
        assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED


async def test_a_daemon_that_stops_sends_the_waiters_away(
    daemon: RunningDaemon,
):
    async with oc.aio.connect(daemon.address, wait=0) as own:
        waits = [
            asyncio.create_task(own.wait_for_def("never::comes", None)),
            asyncio.create_task(own.wait_for_impl("never::comes", "CPU", 60)),
        ]
        await begun(own, *waits)
        daemon.signal(signal.SIGTERM)
        for wait in waits:
            with pytest.raises(oc.RefusedError, match="the daemon is stopping"):
                await wait
    assert daemon.wait() == 0


async def test_a_thousand_wait_at_once(
    own: oc.AsyncSession, daemon: RunningDaemon, write_library: WriteLibrary
):
    path = write_library("many", MANY)
    await own.load(path)  # the first load warms the daemon up
    await own.unload("many")
    pid = daemon.process.pid
    sessions = [await oc.aio.connect(daemon.address) for _ in range(10)]
    try:
        # What gRPC and the allocator take once, for the first of many, is no waiter's.
        first = [asyncio.create_task(s.wait_for_def("many::op0", 60)) for s in sessions * 10]
        for session in sessions:
            await begun(session, *first)
        for wait in first:
            wait.cancel()
        await asyncio.gather(*first, return_exceptions=True)
        before, idle = resident_mib(pid), cpu_seconds(pid)
        waits = []
        for number in range(WAITERS):
            session, operator = sessions[number % 10], f"many::op{number % OPERATORS}"
            if number % 2:
                wait = session.wait_for_def(operator, 60)
            else:
                wait = session.wait_for_impl(operator, "CPU", 60)
            waits.append(asyncio.create_task(wait))
        for session in sessions:
            await begun(session, *waits)
        # 19 where nothing else runs; gRPC buffers more while the daemon waits for a processor.
        assert resident_mib(pid) - before <= 24

        begun_at = cpu_seconds(pid)
        threading.Event().wait(1)  # a second of doing nothing, measured
        # To look at each of them but once more would take a good part of what they have taken.
        assert cpu_seconds(pid) - begun_at <= (begun_at - idle) / 4

        random = Random(7)
        cancelled = set(random.sample(range(WAITERS), 300))
        for number in cancelled:
            waits[number].cancel()
        async with asyncio.timeout(LONGEST_WAIT):
            await own.load(path)
            answers = await asyncio.gather(*waits, return_exceptions=True)
        for number, answer in enumerate(answers):
            if number in cancelled:
                assert isinstance(answer, asyncio.CancelledError)
            elif number % 2:
                assert answer.name == f"many::op{number % OPERATORS}"
            else:
                assert answer.library == "many"
    finally:
        for session in sessions:
            await session.close()
