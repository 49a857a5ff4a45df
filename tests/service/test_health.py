"""The standard health and reflection services."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator

import grpc
import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

import opdispatch_client as oc
from tests.service.conftest import StartDaemon, WriteLibrary
from tests.service.libraries import GATE, constant
from tests.service.running_daemon import Background, RunningDaemon, wait_for
from tests.waits import LONGEST_WAIT

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
UNKNOWN = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
SERVICES = ("", "opdispatch.v1.ExecutionService", "opdispatch.v1.RegistryService")


def channel_to(daemon: RunningDaemon) -> grpc.Channel:
    return grpc.insecure_channel(daemon.address.replace("unix://", "unix:"))


@pytest.fixture
def channel(lent_daemon: RunningDaemon) -> Iterator[grpc.Channel]:
    """A plain gRPC channel to the shared daemon."""
    with channel_to(lent_daemon) as channel:
        yield channel


@pytest.fixture
def health(channel: grpc.Channel) -> health_pb2_grpc.HealthStub:
    """Its health service."""
    return health_pb2_grpc.HealthStub(channel)


@pytest.fixture
def own_health(daemon: RunningDaemon) -> Iterator[health_pb2_grpc.HealthStub]:
    """The health service of the test's own daemon."""
    with channel_to(daemon) as channel:
        yield health_pb2_grpc.HealthStub(channel)


def check(health: health_pb2_grpc.HealthStub, service: str) -> int:
    return health.Check(health_pb2.HealthCheckRequest(service=service), timeout=LONGEST_WAIT).status


def test_everything_serves_when_the_daemon_is_ready(health):
    assert [check(health, service) for service in SERVICES] == [SERVING] * 3


def test_unknown_name_is_not_found(health):
    with pytest.raises(grpc.RpcError) as caught:
        check(health, "library/missing")
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND


def test_a_library_has_a_status_of_its_own(health, shared: oc.Session, write_library: WriteLibrary):
    path = write_library("const", constant(1))
    watch = health.Watch(
        health_pb2.HealthCheckRequest(service="library/const"), timeout=LONGEST_WAIT
    )
    assert next(watch).status == UNKNOWN
    shared.load(path)
    assert next(watch).status == SERVING
    assert check(health, "library/const") == SERVING
    shared.unload("const")
    assert next(watch).status == UNKNOWN
    with pytest.raises(grpc.RpcError) as caught:
        check(health, "library/const")
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND
    watch.cancel()


def test_health_is_not_serving_until_the_next_interpreter_is_ready(
    start_daemon: StartDaemon, write_library: WriteLibrary
):
    daemon = start_daemon(workers=1)
    daemon.expects_errors = True
    with daemon.connect() as session, channel_to(daemon) as channel:
        session.load(write_library("const", constant(1)))
        health = health_pb2_grpc.HealthStub(channel)
        watches = [
            health.Watch(health_pb2.HealthCheckRequest(service=service), timeout=LONGEST_WAIT)
            for service in ("", "library/const")
        ]
        assert [next(watch).status for watch in watches] == [SERVING] * 2
        os.kill(session.interpreters()[0].pid, signal.SIGKILL)
        assert [next(watch).status for watch in watches] == [NOT_SERVING] * 2
        assert check(health, "opdispatch.v1.RegistryService") == SERVING
        assert [next(watch).status for watch in watches] == [SERVING] * 2
        for watch in watches:
            watch.cancel()


class Changes:
    """Changes that a watch reports."""

    def __init__(self, health: health_pb2_grpc.HealthStub, service: str) -> None:
        self._watch = health.Watch(health_pb2.HealthCheckRequest(service=service), timeout=120)
        assert next(self._watch).status == SERVING

    def expect(self, status: int) -> None:
        """The next change is to this status; raises where none comes before the call's deadline."""
        assert next(self._watch).status == status

    def cancel(self) -> None:
        self._watch.cancel()


def test_death_of_an_interpreter_is_reported_before_a_heartbeat_is_missed(
    start_daemon: StartDaemon, write_library: WriteLibrary
):
    daemon = start_daemon("--heartbeat", "300")
    daemon.expects_errors = True
    with daemon.connect() as session, channel_to(daemon) as channel:
        session.load(write_library("const", constant(1)), interpreter="worker-1")
        check_deaths_are_reported(session, health_pb2_grpc.HealthStub(channel))


def check_deaths_are_reported(session: oc.Session, own_health: health_pb2_grpc.HealthStub) -> None:
    changes = {
        interpreter.name: Changes(own_health, f"interpreter/{interpreter.name}")
        for interpreter in session.interpreters()
    }
    library, whole = Changes(own_health, "library/const"), Changes(own_health, "")
    for _ in range(2):
        [holder] = session.libraries()[0].interpreters
        pid = next(i.pid for i in session.interpreters() if i.name == holder)
        os.kill(pid, signal.SIGKILL)
        for watch in (changes[holder], library):
            watch.expect(NOT_SERVING)  # a watch ends long before a heartbeat is missed
        for watch in (library, changes[holder]):
            watch.expect(SERVING)
    assert check(own_health, "") == SERVING  # as it was all the time: there was another one
    for watch in (*changes.values(), library, whole):
        watch.cancel()


def test_hang_is_reported_when_heartbeats_are_missed(start_daemon: StartDaemon, write_library):
    heartbeat = 0.5
    daemon = start_daemon("--heartbeat", str(heartbeat), workers=1)
    daemon.expects_errors = True
    with daemon.connect() as session, channel_to(daemon) as channel:
        session.load(write_library("const", constant(1)))
        health = health_pb2_grpc.HealthStub(channel)
        services = ("", "library/const", "interpreter/worker-1")
        watches = [Changes(health, service) for service in services]
        os.kill(session.interpreters()[0].pid, signal.SIGSTOP)
        for status in (NOT_SERVING, SERVING):
            for watch in watches:
                watch.expect(status)
        [age] = re.findall(r"went away: no heartbeat for ([0-9.]+) s", daemon.log())
        assert float(age) >= 3 * heartbeat
        for watch in watches:
            watch.cancel()


def test_watcher_that_does_not_read_delays_no_other(
    shared: oc.Session, channel: grpc.Channel, health, write_library: WriteLibrary
):
    idle = health.Watch(health_pb2.HealthCheckRequest(service="library/const"), timeout=60)
    path = write_library("const", constant(1))
    for _ in range(50):
        shared.load(path)
        shared.unload("const")
    assert check(health, "") == SERVING
    assert next(idle).status == UNKNOWN
    idle.cancel()


def test_a_daemon_that_is_meant_to_have_no_interpreters_serves_without(start_daemon: StartDaemon):
    daemon = start_daemon(workers=0)
    with channel_to(daemon) as channel:
        assert check(health_pb2_grpc.HealthStub(channel), "") == SERVING


def test_health_is_not_serving_as_soon_as_the_daemon_stops(
    daemon: RunningDaemon, session: oc.Session, own_health, write_library: WriteLibrary
):
    session.load(write_library("gate", GATE))
    watch = own_health.Watch(health_pb2.HealthCheckRequest(service=""), timeout=LONGEST_WAIT)
    assert next(watch).status == SERVING
    with Background(session.ops.gate.wait, np.zeros(1), str(daemon.folder), 1) as call:
        assert wait_for((daemon.folder / "entered-1").exists)
        daemon.signal(signal.SIGTERM)
        assert next(watch).status == NOT_SERVING
        assert check(own_health, "library/gate") == NOT_SERVING
        (daemon.folder / "open").touch()
        assert call.result() == 1
    assert daemon.wait() == 0


def test_the_services_can_be_listed_and_read_by_reflection(channel: grpc.Channel):
    stub = reflection_pb2_grpc.ServerReflectionStub(channel)
    requests = [
        reflection_pb2.ServerReflectionRequest(list_services=""),
        reflection_pb2.ServerReflectionRequest(
            file_containing_symbol="opdispatch.v1.ExecutionService"
        ),
    ]
    listed, described = stub.ServerReflectionInfo(iter(requests), timeout=LONGEST_WAIT)
    names = {service.name for service in listed.list_services_response.service}
    assert {*SERVICES[1:], "grpc.health.v1.Health"} <= names
    assert described.file_descriptor_response.file_descriptor_proto
