"""What the daemon makes of a program before it sends it to an interpreter."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from opdispatch_server.libraries.library_version import LibraryVersion
from opdispatch_server.operator_registry import OperatorRegistry
from opdispatch_wire.programs import CheckedProgram, checked_program

_CACHED = 256
_CACHED_BYTES = 16 << 20
# A longer program is checked in a thread: others are served meanwhile.
_AT_ONCE_BYTES = 32 * 1024


@dataclass(slots=True)
class ProgramPlan:
    """One program, and the libraries that it uses now.

    ``libraries`` has each active version that defines or implements one of its operators, with
    the number of steps that call such an operator. ``writes`` says whether any operator writes
    to an argument, so that the program cannot simply run again; ``missing`` are the operators
    that are not registered.
    """

    program: CheckedProgram
    epoch: int
    libraries: Sequence[tuple[LibraryVersion, int]]
    writes: bool
    missing: Sequence[str]

    @property
    def description(self) -> str:
        """For messages, in the place of an operator's name."""
        count = len(self.program.message.steps)
        if not count:
            return "a transfer of values"
        return f"a program of {count} step{'s' * (count > 1)}"


class ProgramPlans:
    """Plans by the bytes of their programs. Belongs to the event loop.

    At most 256, and of 16 MiB of programs, are kept: those that were used last. They are of one
    epoch of the registry: see Note [Two epochs] in ``operator_registry``.
    """

    def __init__(
        self, operators: OperatorRegistry, versions: Callable[[], Iterable[LibraryVersion]]
    ) -> None:
        self._operators = operators
        self._versions = versions
        self._epoch = -1
        self._by_operator: dict[str, list[LibraryVersion]] = {}
        self._plans: OrderedDict[bytes, ProgramPlan] = OrderedDict()
        self._bytes = 0

    async def get(self, data: bytes) -> ProgramPlan:
        """The plan of a program, for what is loaded when this returns. Raises WireError."""
        if data in self._plans:
            return self._known(data)
        if len(data) > _AT_ONCE_BYTES:
            program = await asyncio.to_thread(checked_program, data)
        else:
            program = checked_program(data)
        if data not in self._plans:  # nor has another call checked it meanwhile
            self._update()
            self._plans[data] = self._make(program)
            self._bytes += len(data)
            while len(self._plans) > _CACHED or self._bytes > _CACHED_BYTES:
                dropped, _ = self._plans.popitem(last=False)
                self._bytes -= len(dropped)
        return self._known(data)

    def _known(self, data: bytes) -> ProgramPlan:
        self._update()
        plan = self._plans[data]
        self._plans.move_to_end(data)
        if plan.epoch != self._epoch:
            plan = self._plans[data] = self._make(plan.program)
        return plan

    def _update(self) -> None:
        """Looks again which library has which operator, if that may have changed."""
        epoch = self._operators.epoch
        if epoch == self._epoch:
            return
        self._epoch = epoch
        self._by_operator = {}
        for version in self._versions():
            if version.is_active:
                for name in {_base(operator) for operator in version.operators}:
                    self._by_operator.setdefault(name, []).append(version)

    def _make(self, program: CheckedProgram) -> ProgramPlan:
        steps: dict[LibraryVersion, int] = {}
        for step in program.message.steps:
            for version in self._by_operator.get(_base(step.operator), ()):
                steps[version] = steps.get(version, 0) + 1
        dispatcher = self._operators.dispatcher
        handles = [
            dispatcher.find_schema(overload)
            for name in {_base(operator) for operator in program.operators}
            for overload in dispatcher.overloads(name)
        ]
        writes = any(handle is not None and handle.schema.is_mutable for handle in handles)
        ordered = sorted(steps.items(), key=lambda item: item[0].load_id)
        missing = [name for name in program.operators if not dispatcher.overloads(_base(name))]
        return ProgramPlan(program, self._epoch, ordered, writes, missing)


def _base(operator: str) -> str:
    return operator.partition(".")[0]
