"""Where libraries are loaded, who waits for whom, and what lists say of that."""

from __future__ import annotations

import re

import numpy as np
import pytest

import opdispatch_client as oc
from opdispatch_wire.client_identity import describe_self
from tests.service.conftest import StartDaemon, WriteLibrary
from tests.service.libraries import constant
from tests.service.running_daemon import Background, RunningDaemon, wait_for
from tests.service.test_scaling import pid_of

X = np.zeros(2)


def test_libraries_load_while_the_import_of_another_one_blocks(
    start_daemon: StartDaemon, write_library: WriteLibrary
):
    daemon = start_daemon(workers=3)
    gate = daemon.folder / "open"
    slow = (
        "import os, time\n"
        f"open({str(daemon.folder / 'importing')!r}, 'w').close()\n"
        f"while not os.path.exists({str(gate)!r}):\n    time.sleep(0.005)\n"
    )
    with daemon.connect() as session:
        path = write_library("slow", slow + constant(9, namespace="slow"))
        with Background(session.load, path, interpreter="worker-1") as blocked:
            assert wait_for((daemon.folder / "importing").exists)
            for number in range(1, 4):
                load = session.load(write_library("const", constant(number)), interpreters=2)
                assert "worker-1" not in load.interpreters
                assert session.ops.const.get(X) == number
            session.scale("const", 1)
            session.rollback("const")
            assert session.ops.const.get(X) == 2
            session.unload("const")
            with (
                daemon.connect(timeout=2) as impatient,
                pytest.raises(oc.WaitTimeoutError) as caught,
            ):
                impatient.load(write_library("next", constant(1)), on="worker-1")
            assert "was waiting for interpreter worker-1 that is importing something" in str(
                caught.value
            )
            assert [library.name for library in session.libraries()] == []
            gate.touch()
            assert blocked.result().interpreters == ("worker-1",)
        # It has heard of everything that was published meanwhile.
        outer = (
            "from opdispatch import Library, ops\nlib = Library('outer', 'DEF')\n"
            "lib.define('get(Tensor x) -> int')\n"
            "lib.impl('get', lambda x: ops.const.get(x) + ops.slow.get(x), 'CPU')\n"
        )
        session.load(write_library("const", constant(5)), interpreter="worker-2")
        session.load(write_library("outer", outer), interpreter="worker-1")
        assert session.ops.outer.get(X) == 14
        assert session.check_invariants() == []


def test_timeout_of_a_wait_for_another_import_names_importer_and_time(
    daemon: RunningDaemon, session: oc.Session, write_library: WriteLibrary
):
    gate = daemon.folder / "open"
    text = (
        "import os, time\n"
        f"open({str(daemon.folder / 'importing')!r}, 'w').close()\n"
        f"while not os.path.exists({str(gate)!r}):\n    time.sleep(0.005)\n"
    ) + constant(1)
    path = write_library("const", text)
    pid = pid_of(session, "worker-1")
    with Background(session.load, path, interpreter="worker-1") as first:
        assert wait_for((daemon.folder / "importing").exists)
        with daemon.connect(timeout=2) as impatient:
            with pytest.raises(oc.WaitTimeoutError) as same:
                impatient.load(path)
            with pytest.raises(oc.WaitTimeoutError) as other:
                impatient.load(write_library("x", constant(2)), name="const")
        for caught in (same, other):
            message = str(caught.value)
            assert re.match(r"library 'const' was not loaded within 1\.\d+ s: ", message)
            assert f"interpreter worker-1 (pid {pid}), which has been importing it for " in message
        gate.touch()
        assert first.result().role == "primary"
    assert [library.version for library in session.libraries(all_versions=True)] == [1]


def test_devices_are_known_and_asked_for(shared: oc.Session, write_library: WriteLibrary):
    path = write_library("const", constant(1))
    devices = {device for i in shared.interpreters() for device in i.devices}
    assert "cpu" in devices
    assert shared.load(path, on="cpu").device == "cpu"
    if not any(device.startswith("cuda") for device in devices):
        with pytest.raises(
            oc.InterpreterNotFoundError,
            match=r"no interpreter with a cuda:3 device; connected: worker-1 \(cpu\)",
        ):
            shared.load(write_library("other", constant(2, namespace="other")), on="cuda:3")


async def test_listings_show_the_loader_on_another_host(
    start_daemon: StartDaemon, write_library: WriteLibrary
):
    """A TCP connection comes from an address, which says less than what the client says."""
    daemon = start_daemon(workers=1, listen=["127.0.0.1:0"])
    with daemon.connect() as session:
        path = write_library("const", constant(1))
        assert session.load(path).loaded_by == describe_self()
    async with oc.aio.connect(daemon.address) as waiting:
        path = write_library("const", constant(2))
        assert (await waiting.load(path)).loaded_by == describe_self()


def test_listings_show_the_loader_of_a_library(shared: oc.Session, write_library: WriteLibrary):
    load = shared.load(write_library("const", constant(1)))
    user, _, host = load.loaded_by.partition("@")
    assert user
    assert host
    assert (load.state, load.interpreters_wanted, load.device) == ("active", 1, "")
