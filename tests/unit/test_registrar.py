"""The daemon's instructions, carried out in order by one thread."""

import asyncio
import threading

import pytest

from opdispatch.errors import RegistrationError
from opdispatch_server.worker.registrar import Registrar
from opdispatch_wire.v1 import interpreter_pb2 as pb
from tests.waits import LONGEST_WAIT


class Libraries:
    """Carries out an instruction once ``may_end`` is set; number 2 fails."""

    def __init__(self):
        self.may_end = threading.Event()
        self.obeyed = []

    def subject_of(self, message):
        return None

    def obey(self, message):
        assert self.may_end.wait(LONGEST_WAIT)
        self.obeyed.append(message.instruction_id)
        if message.instruction_id == 2:
            raise RegistrationError("no")
        return pb.InterpreterMessage(instruction_id=message.instruction_id, done=pb.Done())

    def drop_all(self):
        self.obeyed.append("dropped")


class Plans:
    forgotten = 0

    def forget_plans(self):
        self.forgotten += 1


@pytest.fixture
def libraries():
    made = Libraries()
    yield made
    made.may_end.set()


def make(libraries, plans):
    return Registrar(libraries, plans, None, None, lambda: "i-1")


def test_instructions_are_answered_in_order_even_if_one_fails(libraries):
    plans = Plans()

    async def run():
        registrar = make(libraries, plans)
        answers = [
            registrar.carry_out(pb.DaemonMessage(instruction_id=number)) for number in (1, 2, 3)
        ]
        libraries.may_end.set()
        first, second, third = await asyncio.gather(*answers)
        await registrar.drop_all(10)
        return first, second, third

    first, second, third = asyncio.run(run())
    assert libraries.obeyed == [1, 2, 3, "dropped"]
    assert first.WhichOneof("kind") == third.WhichOneof("kind") == "done"
    assert second.instruction_id == 2
    assert "no" in second.failed.message
    assert plans.forgotten == 3


def test_drop_all_gives_up_on_an_instruction_that_does_not_end(libraries):
    async def run():
        registrar = make(libraries, Plans())
        stuck = registrar.carry_out(pb.DaemonMessage(instruction_id=1))
        with pytest.raises(TimeoutError):
            await registrar.drop_all(0)
        libraries.may_end.set()
        await stuck

    asyncio.run(run())
    assert libraries.obeyed == [1]
