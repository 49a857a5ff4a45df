"""Clients that claim to be kernels: they are not believed."""

from __future__ import annotations

import secrets
import signal

import grpc
import numpy as np
import pytest

import opdispatch_client as oc
from opdispatch_server.call_context import CONTEXT_KEY, CallContext
from opdispatch_wire.calls import call_request
from opdispatch_wire.v1 import execution_pb2_grpc
from tests.service.conftest import StartDaemon, WriteLibrary
from tests.service.doors import Doors, door_library
from tests.service.libraries import IMAGE
from tests.service.running_daemon import RunningDaemon, wait_for
from tests.waits import LONGEST_WAIT

SHARED_WORKERS = 1
X = np.zeros(2)
FORGED = [
    "1 0 0 0",
    "1 1 0 0",
    "32 2 7 1000000",
    "999999999 3 1 0",
    f"5 {2**127 + 1} 1 1",
    f"1 {'9' * 39} {'9' * 19} {'9' * 19} 999999999.000000",
    "1 1",
    "-1 -1 -1 -1",
    "1 1 1 1 nan",
]


def plain_channel(daemon: RunningDaemon) -> grpc.Channel:
    return grpc.insecure_channel(daemon.address.replace("unix://", "unix:"))


def call_as_kernel(channel: grpc.Channel, claim: str, operator: str, *args: object):
    stub = execution_pb2_grpc.ExecutionServiceStub(channel)
    return stub.Call.future(
        call_request(operator, args, {}), timeout=LONGEST_WAIT, metadata=((CONTEXT_KEY, claim),)
    )


@pytest.mark.parametrize("claim", FORGED)
def test_a_forged_context_changes_nothing(unharmed: oc.Session, channel: grpc.Channel, claim: str):
    reply = call_as_kernel(channel, claim, "image::pipeline", X).result()
    assert len(reply.returns) == 1


def test_forged_call_waits_in_the_queue_and_is_refused_if_it_is_full(
    start_daemon: StartDaemon, doors: Doors, write_library: WriteLibrary
):
    daemon = start_daemon("--queue", "3", workers=1)
    with daemon.connect() as session, plain_channel(daemon) as channel:
        session.load(write_library("slow", door_library("slow")))

        def forge(claim: str):
            return call_as_kernel(channel, claim, "slow::enter", X, doors.folder, "in")

        calls = [forge(FORGED[0])]
        assert doors.next_inside() == "in"
        calls += [forge(claim) for claim in FORGED[1:4]]
        assert wait_for(lambda: session.interpreters()[0].calls_queued == 3)
        assert doors.no_other_is_inside()
        refused = forge(FORGED[4])
        with pytest.raises(grpc.RpcError) as caught:
            refused.result()
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        for number in range(4):
            doors.let_out()
            calls[number].result()
            if number < 3:
                assert doors.next_inside() == "in"
                assert doors.no_other_is_inside()
        assert session.check_invariants() == []


def test_forged_call_is_refused_by_a_stopping_daemon(
    start_daemon: StartDaemon, doors: Doors, write_library: WriteLibrary
):
    daemon = start_daemon(workers=1)
    with daemon.connect() as session, plain_channel(daemon) as channel:
        session.load(write_library("slow", door_library("slow")))
        session.load(write_library("image", IMAGE))
        running = call_as_kernel(channel, FORGED[0], "slow::enter", X, doors.folder, "in")
        assert doors.next_inside() == "in"
        daemon.signal(signal.SIGTERM)

        errors: list[grpc.RpcError] = []

        def is_refused() -> bool:
            try:
                call_as_kernel(channel, FORGED[1], "image::invert", X).result()
            except grpc.RpcError as error:
                errors.append(error)
            return bool(errors)

        assert wait_for(is_refused)
        assert errors[0].code() is grpc.StatusCode.UNAVAILABLE
        assert "the daemon is stopping" in errors[0].details()
        doors.let_out()
        assert running.result().returns
    assert daemon.wait() == 0


def test_the_number_of_a_run_survives_the_header():
    number = secrets.randbits(128) | 1 << 127
    [(key, text)] = CallContext(run=number).metadata

    class Context:
        def time_remaining(self) -> None:
            return None

        def invocation_metadata(self) -> tuple[tuple[str, str], ...]:
            return ((key, text),)

    assert CallContext.of(Context()).run == number  # type: ignore[arg-type]


def test_numbers_of_runs_cannot_be_guessed(start_daemon: StartDaemon, write_library: WriteLibrary):
    daemon = start_daemon(workers=1)
    text = (
        "from opdispatch import Library\n"
        "from opdispatch_server.call_context import RUNNING_CALL\n"
        "lib = Library('runs', 'DEF')\n"
        "lib.define('number(Tensor x) -> str')\n"
        "lib.impl('number', lambda x: str(RUNNING_CALL.get().run), 'CPU')\n"
    )
    with daemon.connect(direct=False) as session, plain_channel(daemon) as channel:
        session.load(write_library("runs", text))
        numbers = [int(session.ops.runs.number(X)) for _ in range(50)]
        assert len(set(numbers)) == 50
        assert max(numbers).bit_length() > 120
        ones = [sum(number >> bit & 1 for number in numbers) for bit in range(128)]
        assert all(0 < count < 50 for count in ones)  # each bit, of 50, by chance: 2 ** -49
        # One that has ended is worth nothing.
        reply = call_as_kernel(channel, f"1 {numbers[-1]} 0 0", "runs::number", X).result()
        assert reply.returns
