"""Plans of programs: the libraries that a program uses, and whether its operators write."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from opdispatch_server.daemon.libraries.operator_registry import OperatorRegistry
from opdispatch_server.daemon.libraries.version import LibraryVersion
from opdispatch_wire.programs import ProgramOutline, checked_program

_CACHED = 256
_CACHED_BYTES = 16 << 20
# A longer program is checked in a thread, so that the event loop stays responsive.
_AT_ONCE_BYTES = 32 * 1024


@dataclass(slots=True)
class ProgramPlan:
    """One program, with the libraries that it currently uses.

    ``libraries`` maps each active version that defines or implements one of its operators to the
    number of steps that call such an operator. ``writes`` says whether any operator writes to an
    argument, so that the program cannot simply be rerun; ``missing`` names the operators that are
    not registered.
    """

    program: ProgramOutline
    libraries: Sequence[tuple[LibraryVersion, int]]
    writes: bool
    missing: Sequence[str]

    def find_watched(self, is_watched: Callable[[str, str], bool]) -> list[tuple[str, str]]:
        """Return the library and operator of each step for which ``is_watched`` is true."""
        return [
            (version.name, operator)
            for version, _ in self.libraries
            for operator in self.program.steps
            if version.has_operator(operator) and is_watched(version.name, operator)
        ]

    @property
    def description(self) -> str:
        """The text used in messages in place of the name of an operator."""
        count = sum(self.program.steps.values())
        if not count:
            return "a transfer of values"
        return f"a program of {count} step{'s' * (count > 1)}"


class ProgramPlans:
    """Plans by the bytes of their programs. For use in the event loop only.

    Keeps the plans used last: at most 256, and at most 16 MiB of programs. All are of one epoch of
    the registry: see Note [Two epochs] in ``operator_registry``.
    """

    def __init__(
        self, operators: OperatorRegistry, versions: Callable[[], Iterable[LibraryVersion]]
    ) -> None:
        self._operators = operators
        self._versions = versions
        self._epoch = -1
        self._by_operator: dict[str, list[LibraryVersion]] = {}
        self._programs: OrderedDict[bytes, ProgramOutline] = OrderedDict()
        self._bytes = 0
        # Only plans of this epoch: older ones would keep unloaded versions alive.
        self._plans: dict[bytes, ProgramPlan] = {}

    async def get(self, data: bytes) -> ProgramPlan:
        """Return the plan of a program for the libraries loaded on return. Raises WireError."""
        if data in self._programs:
            return self._known(data)
        if len(data) > _AT_ONCE_BYTES:
            program = await asyncio.to_thread(_outline_of, data)
        else:
            program = _outline_of(data)
        if data not in self._programs:  # unless another call has checked it meanwhile
            self._programs[data] = program
            self._bytes += len(data)
            while len(self._programs) > _CACHED or self._bytes > _CACHED_BYTES:
                dropped, _ = self._programs.popitem(last=False)
                self._plans.pop(dropped, None)
                self._bytes -= len(dropped)
        return self._known(data)

    def _known(self, data: bytes) -> ProgramPlan:
        self._update()
        program = self._programs[data]
        self._programs.move_to_end(data)
        plan = self._plans.get(data)
        if plan is None:
            plan = self._plans[data] = self._make(program)
        return plan

    def _update(self) -> None:
        """Look up the libraries of all operators again if a publication may have changed them."""
        epoch = self._operators.epoch
        if epoch == self._epoch:
            return
        self._epoch = epoch
        self._plans = {}
        self._by_operator = {}
        for version in self._versions():
            if version.is_active:
                for name in {_base(operator) for operator in version.operators}:
                    self._by_operator.setdefault(name, []).append(version)

    def _make(self, program: ProgramOutline) -> ProgramPlan:
        steps: dict[LibraryVersion, int] = {}
        for operator, count in program.steps.items():
            for version in self._by_operator.get(_base(operator), ()):
                steps[version] = steps.get(version, 0) + count
        dispatcher = self._operators.dispatcher
        handles = [
            dispatcher.find_schema(overload)
            for name in {_base(operator) for operator in program.steps}
            for overload in dispatcher.overloads(name)
        ]
        writes = any(handle is not None and handle.schema.is_mutable for handle in handles)
        ordered = sorted(steps.items(), key=lambda item: item[0].load_id)
        missing = [name for name in program.steps if not dispatcher.overloads(_base(name))]
        return ProgramPlan(program, ordered, writes, missing)


def _outline_of(data: bytes) -> ProgramOutline:
    return checked_program(data).outline


def _base(operator: str) -> str:
    return operator.partition(".")[0]
