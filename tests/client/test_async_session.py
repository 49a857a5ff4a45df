"""The asyncio session."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pytest

import opdispatch_client as oc
from tests.service.running_daemon import RunningDaemon
from tests.waits import LONGEST_WAIT

NOWHERE = "unix:///nowhere/daemon.sock"


async def _until(path: Path) -> None:
    async with asyncio.timeout(LONGEST_WAIT):
        while not path.exists():
            await asyncio.sleep(0.005)


async def test_asyncio_session_agrees_with_blocking_session(daemon: RunningDaemon, tmp_path: Path):
    async with oc.aio.connect(daemon.address) as session:
        x = np.arange(3.0)
        assert (await session.ops.park.double(x)).tolist() == [0, 2, 4]
        assert await session.call("park::increase_", x) is x
        result, [line] = await session.trace("park::double", x)
        assert (result.tolist(), line.key) == ([2, 4, 6], "CPU")
        assert session.server_info.pid == daemon.process.pid
        assert session.address == daemon.address
        assert repr(session) == f"<opdispatch_client.AsyncSession {daemon.address} [open]>"

        (tmp_path / "extra.py").write_text(
            'from opdispatch import Library\nLibrary("extra", "DEF")'
        )
        loaded = await session.load(tmp_path / "extra.py")
        assert (loaded.name, loaded.already_loaded) == ("extra", False)
        assert {library.name for library in await session.libraries()} == {"park", "extra"}
        assert await session.unload("extra") is None

        assert [i.name for i in await session.interpreters()] == ["worker-1"]
        assert [o.name for o in await session.operators("park::dou*")] == ["park::double"]
        assert (await session.describe("park::double")).libraries == ("park",)
        assert "CPU" in [row.key for row in await session.table("park::double")]
        assert await session.check_invariants() == []


async def test_calls_run_side_by_side(daemon: RunningDaemon, tmp_path: Path):
    async with oc.aio.connect(daemon.address) as session:
        waiting = asyncio.create_task(session.call("park::wait", str(tmp_path)))
        await _until(tmp_path / "entered")
        many = await asyncio.gather(*(session.ops.park.double(np.array(n)) for n in range(50)))
        assert [int(n) for n in many] == list(range(0, 100, 2))
        assert not waiting.done()
        (tmp_path / "leave").touch()
        assert await waiting == 1


async def test_a_cancelled_task_cancels_its_call(daemon: RunningDaemon, tmp_path: Path):
    async with oc.aio.connect(daemon.address) as session:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(session.call("park::wait", str(tmp_path)), 0.3)
        (tmp_path / "leave").touch()
        assert await session.ops.park.double(np.array(1)) == 2


async def test_closing_ends_the_calls_of_other_tasks(daemon: RunningDaemon, tmp_path: Path):
    session = await oc.aio.connect(daemon.address)
    waiting = asyncio.create_task(session.call("park::wait", str(tmp_path)))
    await _until(tmp_path / "entered")
    await session.close()
    with pytest.raises(oc.DaemonUnavailableError, match="is closed"):
        await waiting
    (tmp_path / "leave").touch()
    with pytest.raises(oc.DaemonUnavailableError, match="is closed"):
        await session.libraries()
    with pytest.raises(oc.DaemonUnavailableError, match="is closed"):
        await session.put(np.zeros(1))
    await session.close()
    assert repr(session).endswith("[closed]>")


def test_a_session_that_is_not_open_says_how_to_open_it(daemon: RunningDaemon):
    with pytest.raises(AttributeError, match=r"has no 'call': say `async with connect\(\) as sess"):
        oc.aio.connect(daemon.address).call("park::double", np.zeros(1))


async def test_errors_are_those_of_the_blocking_session(daemon: RunningDaemon):
    with pytest.raises(oc.DaemonUnavailableError, match="opdispatch serve"):
        await oc.aio.connect(NOWHERE)
    async with oc.aio.connect(daemon.address) as session:
        with pytest.raises(oc.OperatorNotFoundError, match="park::nothing"):
            await session.ops.park.nothing()
        with pytest.raises(oc.ArgumentError, match="'x'"):
            await session.call("park::double")
        with pytest.raises(oc.WireError, match=r"\$\.args\[0\]"):
            await session.call("park::double", object())
        with pytest.raises(oc.MessageTooLargeError):
            await session.call("park::wait", "x" * (1 << 20))
        with pytest.raises(oc.LibraryLoadError, match="there is no file"):
            await session.load("missing.py")
        with pytest.raises(oc.LibraryNotFoundError):
            await session.unload("missing")
