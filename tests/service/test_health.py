"""The standard health and reflection services."""

from __future__ import annotations

import os
import signal
import time
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
    return health.Check(health_pb2.HealthCheckRequest(service=service), timeout=10).status


def test_everything_serves_when_the_daemon_is_ready(health):
    assert [check(health, service) for service in SERVICES] == [SERVING] * 3


def test_a_name_that_nobody_has_is_not_found(health):
    with pytest.raises(grpc.RpcError) as caught:
        check(health, "library/nobody")
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND


def test_a_library_has_a_status_of_its_own(health, shared: oc.Session, write_library: WriteLibrary):
    path = write_library("const", constant(1))
    watch = health.Watch(health_pb2.HealthCheckRequest(service="library/const"), timeout=30)
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


def test_it_is_not_serving_without_an_interpreter_and_serving_with_the_next(
    start_daemon: StartDaemon, write_library: WriteLibrary
):
    daemon = start_daemon(workers=1)
    daemon.expects_errors = True
    with daemon.connect() as session, channel_to(daemon) as channel:
        session.load(write_library("const", constant(1)))
        health = health_pb2_grpc.HealthStub(channel)
        watches = [
            health.Watch(health_pb2.HealthCheckRequest(service=service), timeout=30)
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
    """What a watch has told so far, and when."""

    def __init__(self, health: health_pb2_grpc.HealthStub, service: str) -> None:
        self._watch = health.Watch(health_pb2.HealthCheckRequest(service=service), timeout=120)
        assert next(self._watch).status == SERVING

    def seconds_until(self, status: int, since: float) -> float:
        """How long after a moment of the monotonic clock the next change, to this one, came."""
        assert next(self._watch).status == status
        return time.monotonic() - since

    def cancel(self) -> None:
        self._watch.cancel()


def test_the_death_of_an_interpreter_is_told_within_a_tenth_of_a_second(
    daemon: RunningDaemon, session: oc.Session, own_health, write_library: WriteLibrary
):
    daemon.expects_errors = True
    session.load(write_library("const", constant(1)), interpreter="worker-1")
    changes = {
        interpreter.name: Changes(own_health, f"interpreter/{interpreter.name}")
        for interpreter in session.interpreters()
    }
    library, whole = Changes(own_health, "library/const"), Changes(own_health, "")
    delays = []
    for _ in range(5):
        [holder] = session.libraries()[0].interpreters
        pid = next(i.pid for i in session.interpreters() if i.name == holder)
        killed = time.monotonic()
        os.kill(pid, signal.SIGKILL)
        delays.append(
            max(
                changes[holder].seconds_until(NOT_SERVING, killed),
                library.seconds_until(NOT_SERVING, killed),
            )
        )
        library.seconds_until(SERVING, killed)
        changes[holder].seconds_until(SERVING, killed)
    # The machine may have other things to do once in a while.
    assert sorted(delays)[2] < 0.1, delays
    assert check(own_health, "") == SERVING  # as it was all the time: there was another one
    for watch in (*changes.values(), library, whole):
        watch.cancel()


def test_a_hang_is_told_within_three_heartbeats(start_daemon: StartDaemon, write_library):
    heartbeat = 0.4
    daemon = start_daemon("--heartbeat", str(heartbeat), workers=1)
    daemon.expects_errors = True
    with daemon.connect() as session, channel_to(daemon) as channel:
        session.load(write_library("const", constant(1)))
        health = health_pb2_grpc.HealthStub(channel)
        services = ("", "library/const", "interpreter/worker-1")
        watches = [Changes(health, service) for service in services]
        delays = []
        for _ in range(3):
            stopped = time.monotonic()
            os.kill(session.interpreters()[0].pid, signal.SIGSTOP)
            delays.append(max(w.seconds_until(NOT_SERVING, stopped) for w in watches))
            for watch in watches:
                watch.seconds_until(SERVING, stopped)
        # And the pause between two looks at the leases.
        assert sorted(delays)[1] < 3 * heartbeat + heartbeat / 2, delays
        for watch in watches:
            watch.cancel()


def test_one_that_watches_and_does_not_read_holds_up_nobody(
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


def test_it_says_not_serving_as_soon_as_it_stops(
    daemon: RunningDaemon, session: oc.Session, own_health, write_library: WriteLibrary
):
    session.load(write_library("gate", GATE))
    watch = own_health.Watch(health_pb2.HealthCheckRequest(service=""), timeout=30)
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
    listed, described = stub.ServerReflectionInfo(iter(requests), timeout=10)
    names = {service.name for service in listed.list_services_response.service}
    assert {*SERVICES[1:], "grpc.health.v1.Health"} <= names
    assert described.file_descriptor_response.file_descriptor_proto
