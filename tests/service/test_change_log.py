"""Changes in the daemon's log: what was done, and who has asked for it."""

from __future__ import annotations

import getpass
import socket
from typing import Any

import grpc
import pytest

import opdispatch_client as oc
from opdispatch_wire.addresses import grpc_target
from opdispatch_wire.v1 import registry_pb2, registry_pb2_grpc
from tests.service.conftest import StartDaemon, WriteLibrary
from tests.service.libraries import constant
from tests.service.running_daemon import RunningDaemon, wait_for

SELF = f"{getpass.getuser()}@{socket.gethostname()}"


def events(daemon: RunningDaemon, *names: str) -> list[dict[str, Any]]:
    return [each for each in daemon.log_records() if each.get("event") in names]


def test_every_change_of_a_library_is_logged_as_what_it_is(
    daemon: RunningDaemon, write_library: WriteLibrary
):
    with daemon.connect() as session:
        for value in (1, 2):
            session.load(write_library("const", constant(value)))
        session.rollback("const")
        session.scale("const", 2)
        with pytest.raises(oc.LibraryLoadError):
            session.load(write_library("const", "raise ValueError('broken')"))
        session.unload("const", version=1)
        session.unload("const")
    names = [
        *("library_loaded", "library_replaced", "library_rolled_back", "library_scaled"),
        *("library_load_failed", "library_unloaded", "library_unloaded"),
    ]
    found = events(daemon, *names)
    assert [each["event"] for each in found] == names
    assert [each.get("version") for each in found] == [1, 2, 1, 1, None, 1, 2]
    assert {each["library"] for each in found} == {"const"}
    who = f"{SELF} via unix socket"
    assert {each["identity"] for each in found} == {who}
    loaded, replaced, back, scaled, failed, below, gone = (each["message"] for each in found)
    where = found[0]["interpreter"]
    assert loaded == f"loaded const v1 into interpreter {where}, asked by {who}"
    assert replaced.endswith(f", in the place of v1, asked by {who}")
    assert back == f"rolled const back from v2 to v1 in interpreter {where}, asked by {who}"
    assert scaled == f"const v1 shall be in 2 interpreters, asked by {who}"
    assert "const was not loaded" in failed
    assert "ValueError: broken" in failed
    assert below == f"unloaded const v1; const v2 is active now, asked by {who}"
    assert gone == f"unloaded const v2, asked by {who}"
    joined, *_ = events(daemon, "replica_joined")
    assert (joined["library"], joined["version"]) == ("const", 1)


def test_drain_and_its_end_are_logged_with_the_identity(daemon: RunningDaemon):
    with daemon.connect() as session:
        session.drain("worker-1")
        session.drain("worker-1", undo=True)
    found = events(daemon, "interpreter_draining", "interpreter_in_use")
    who = f"{SELF} via unix socket"
    assert [(each["interpreter"], each["identity"]) for each in found] == [("worker-1", who)] * 2
    assert found[0]["message"] == f"interpreter worker-1 is being drained, asked by {who}"


def test_client_over_tcp_is_known_by_its_address(
    start_daemon: StartDaemon, write_library: WriteLibrary
):
    """Take the address from the connection: a client's own statement is only a claim."""
    daemon = start_daemon(workers=1, listen=["127.0.0.1:0"])
    with daemon.connect() as session:
        session.load(write_library("const", constant(1)))
        session.unload("const")
        session.load(write_library("const", constant(1)))
    with grpc.insecure_channel(grpc_target(daemon.address)) as channel:
        stub = registry_pb2_grpc.RegistryServiceStub(channel)
        stub.UnloadLibrary(registry_pb2.UnloadLibraryRequest(name="const"))
    *own, foreign = events(daemon, "library_loaded", "library_unloaded")
    assert len(own) == 3
    assert all(each["identity"].startswith(f"{SELF} from 127.0.0.1:") for each in own)
    assert foreign["identity"].startswith("127.0.0.1:")


def test_library_that_is_served_again_is_no_new_load(
    start_daemon: StartDaemon, write_library: WriteLibrary
):
    daemon = start_daemon(workers=1)
    with daemon.connect() as session:
        session.load(write_library("const", constant(1)))
    daemon.stop()
    again = start_daemon(workers=1)
    assert wait_for(lambda: events(again, "library_restored"))
    (restored,) = events(again, "library_loaded", "library_restored")
    assert restored["message"] == "loaded const v1 into interpreter worker-1 again"
    assert "identity" not in restored
