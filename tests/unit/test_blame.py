"""The daemon's blame over time, and for calls of several operators."""

from __future__ import annotations

import asyncio

import pytest

from opdispatch_server.blame import circuit_breaker, suspicion
from opdispatch_server.blame.flight_record import KERNEL, Subject
from opdispatch_server.blame.suspicion import Cause
from opdispatch_server.daemon.interpreters.blame import Blame
from opdispatch_server.daemon.interpreters.session import InterpreterSession
from opdispatch_wire.errors import CircuitOpenError
from opdispatch_wire.message_size import MAX_MESSAGE_BYTES_DEFAULT
from opdispatch_wire.v1 import interpreter_pb2
from tests.waits import LONGEST_WAIT

A, B = ("lib", "lib::a"), ("lib", "lib::b")


class Watched:
    """A ``Blame`` of two interpreters, which says when other libraries are apart."""

    def __init__(self) -> None:
        self.changed = asyncio.Event()
        names = ["worker-1", "worker-2"]
        self.blame = Blame(list, lambda: names, lambda operator: "lib", self.changed.set)

    def crash(self, operator: str) -> None:
        session = InterpreterSession(
            interpreter_pb2.Hello(address="127.0.0.1:1"),
            "worker-1",
            supervised=True,
            max_message_bytes=MAX_MESSAGE_BYTES_DEFAULT,
        )
        session.end("it crashed", cause=Cause.CRASHED, named=Subject(KERNEL, "lib", operator))
        self.blame.judge(session)


@pytest.fixture
async def watched() -> Watched:
    return Watched()


async def test_library_ends_being_apart_though_no_call_comes(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(suspicion, "FIRST_SPELL", 0.05)
    watched.crash("lib::a")
    assert watched.blame.separation.apart == {"lib"}
    watched.changed.clear()
    async with asyncio.timeout(LONGEST_WAIT):
        await watched.changed.wait()
    assert watched.blame.separation.apart == watched.blame.separation.cells == set()


async def test_call_that_one_circuit_refuses_is_no_probe_of_another(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(circuit_breaker, "FIRST_PAUSE", 1e-9)
    for operator in ("lib::a", "lib::a", "lib::b", "lib::b"):
        watched.crash(operator)
    admitted = watched.blame.admitted
    with admitted([B]):
        with pytest.raises(CircuitOpenError, match="lib::b has"), admitted([A, B]):
            pytest.fail("the circuit of lib::b has a probe")
        with admitted([A]), pytest.raises(CircuitOpenError), admitted([B]):
            pytest.fail("the probe of lib::b has not ended")
    with admitted([A]), admitted([B]):
        pass


async def test_operator_of_two_libraries_is_one_probe(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(circuit_breaker, "FIRST_PAUSE", 1e-9)
    watched.crash("lib::a")
    watched.crash("lib::a")
    with watched.blame.admitted([A, ("other", "lib::a")]):
        pass
