"""The daemon's plans of programs, and the interpreters that run them."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref

import pytest

from opdispatch import Registration, parse_schema
from opdispatch_server.daemon.calls import program_plans
from opdispatch_server.daemon.calls.program_plans import ProgramPlans
from opdispatch_server.daemon.libraries.operator_registry import OperatorRegistry
from opdispatch_wire.programs import CheckedProgram, checked_program
from opdispatch_wire.v1 import remote_pb2


def program_of(steps: int) -> bytes:
    program = remote_pb2.Program()
    for _ in range(steps):
        program.steps.add(operator="a::b").args.add().reference.input = 0
    return bytes(program.SerializeToString())


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each program was checked in the event loop's own thread."""
    here, found = threading.get_ident(), []

    def noting(data: bytes) -> CheckedProgram:
        found.append(threading.get_ident() == here)
        return checked_program(data)

    monkeypatch.setattr(program_plans, "checked_program", noting)
    return found


def test_a_long_program_is_checked_in_a_thread_and_a_short_one_at_once(threads: list[bool]):
    plans = ProgramPlans(OperatorRegistry(), lambda: ())
    assert asyncio.run(plans.get(program_of(3))).description == "a program of 3 steps"
    assert asyncio.run(plans.get(program_of(9_000))).description == "a program of 9000 steps"
    assert threads == [True, False]


def test_a_program_that_two_calls_bring_at_once_is_kept_once(threads: list[bool]):
    plans = ProgramPlans(OperatorRegistry(), lambda: ())

    async def get_both() -> list[program_plans.ProgramPlan]:
        return await asyncio.gather(plans.get(program_of(9_000)), plans.get(program_of(9_000)))

    one, two = asyncio.run(get_both())
    assert one is two
    asyncio.run(plans.get(program_of(9_000)))
    assert len(threads) == 2


class Version:
    """Stand-in for a library's version in a plan."""

    operators = ("a::b",)

    def __init__(self, load_id: int, *, is_active: bool) -> None:
        self.load_id = load_id
        self.is_active = is_active


def test_a_plan_is_made_anew_when_the_versions_have_followed_the_publication():
    """In between, the dispatcher has what was published, and another version is active still."""
    operators = OperatorRegistry()
    old, new = Version(1, is_active=True), Version(2, is_active=False)
    plans = ProgramPlans(operators, lambda: [old, new])  # type: ignore[list-item]

    def used() -> list[object]:
        plan = asyncio.run(plans.get(program_of(1)))
        return [version for version, _ in plan.libraries]

    assert used() == [old]
    operators.publish([Registration("def", schema=parse_schema("a::b() -> ()"))], ())
    assert used() == [old]
    old.is_active, new.is_active = False, True
    operators.begin_epoch()
    assert used() == [new]


def test_no_plan_keeps_a_version_that_is_gone():
    operators, versions = OperatorRegistry(), []
    plans = ProgramPlans(operators, lambda: versions)  # type: ignore[arg-type]
    gone = []
    for steps in range(1, 4):
        versions[:] = [Version(steps, is_active=True)]
        gone.append(weakref.ref(versions[0]))
        operators.begin_epoch()
        [(version, count)] = asyncio.run(plans.get(program_of(steps))).libraries
        assert (version, count) == (versions[0], steps)
    del version
    versions.clear()
    operators.begin_epoch()
    asyncio.run(plans.get(program_of(9)))
    gc.collect()
    assert [reference() for reference in gone] == [None, None, None]
