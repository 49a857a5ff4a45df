"""A program as an interpreter runs it: names resolved, references converted to indices.

All values of a program are in one list, the registers: its inputs, its constants, and then the
result of each step. A step is an operator and the indices of its arguments.
"""

from __future__ import annotations

import operator
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from opdispatch import Dispatcher, OperatorHandle
from opdispatch.arrays import describe_type
from opdispatch.errors import ArgumentError, OpdispatchError
from opdispatch_server.blame.flight_record import KERNEL, FlightRecorder, Subject
from opdispatch_server.operator_names import parse_operator_name
from opdispatch_wire.programs import CheckedProgram, checked_program
from opdispatch_wire.v1 import remote_pb2, values_pb2
from opdispatch_wire.values import step_value_from_proto

Registers = list[Any]
_Gather = Callable[[Registers], Sequence[Any]]

_CACHED = 256
_CACHED_BYTES = 64 << 20
# The memory of a compiled program, measured with long programs of steps with one argument and with
# many.
_STEP_BYTES = 600
_BYTES_OF_ONE = 8


class StepError(Exception):
    """Makes the error of a step by its ``number``; the raised exception is its cause."""

    def __init__(self, number: int, operator: str) -> None:
        super().__init__(number, operator)
        self.number = number
        self.operator = operator


class _Step(NamedTuple):
    """``gather`` returns the positional arguments, ``keywords`` the others, if there are any.

    ``last_uses`` are the registers that are not used afterwards.
    """

    call: Callable[..., Any]
    gather: _Gather
    keywords: Callable[[Registers], dict[str, Any]] | None
    last_uses: tuple[int, ...]


# A program without steps: it runs no kernel.
_TRANSFER = Subject(KERNEL, "", "a transfer of values")


class CompiledProgram:
    """One program. Immutable; any number of threads may run it."""

    def __init__(self, program: CheckedProgram, dispatcher: Dispatcher) -> None:
        """Raise WireError, and StepError for an operator that does not exist."""
        self._outline = program.outline
        # Only this is kept of the message, which takes several times the memory.
        self._kept = remote_pb2.Program(outputs=program.message.outputs)
        self._constants: list[Any] = []
        self._operators = [step.operator for step in program.message.steps]
        self._rows: list[int] | None = None  # the flight-record rows of the steps
        handles: dict[str, Callable[..., Any]] = {}
        self.writes = False
        """Whether any operator writes to an argument."""
        steps = []
        for number, step in enumerate(program.message.steps):
            call = handles.get(step.operator)
            if call is None:
                try:
                    call = handles[step.operator] = _find(dispatcher, step.operator)
                except OpdispatchError as error:
                    raise StepError(number, step.operator) from error
                self.writes = self.writes or _may_write(dispatcher, step.operator)
            steps.append((call, step))
        gathered = [self._compile(number, step) for number, (_, step) in enumerate(steps)]
        # Constants are between inputs and results, whose indices are known only now.
        self._offset = self._outline.inputs + len(self._constants)
        last_uses = self._find_last_uses(gathered)
        self._steps = [
            _Step(call, *parts.bound(self._offset), last_uses[number])
            for number, ((call, _), parts) in enumerate(zip(steps, gathered, strict=True))
        ]

    @property
    def steps(self) -> int:
        """The number of steps."""
        return len(self._steps)

    @property
    def is_transfer(self) -> bool:
        """Whether the program has no steps and returns one input."""
        return not self._steps and len(self.outputs) == 1

    @property
    def outputs(self) -> Sequence[remote_pb2.Output]:
        """The outputs, in the order of ``run``."""
        return self._kept.outputs

    def run(
        self,
        inputs: Sequence[Any],
        recorder: FlightRecorder,
        key: int = 0,
        counts_row: int = -1,
    ) -> list[Any]:
        """Run the program; return the outputs, to which nothing else refers any more.

        Records each running step in the flight record, for the call with that ``call_key``, which
        is counted in ``counts_row``. Raises StepError, caused by the exception of a step, WireError
        and ArgumentError.
        """
        self._outline.check_inputs(len(inputs))
        registers: Registers = [*inputs[: self._outline.inputs], *self._constants]
        if self._rows is None:
            subjects = [Subject(KERNEL, "", operator) for operator in self._operators]
            self._rows = [recorder.row_of(subject) for subject in subjects]
        number, rows = 0, self._rows
        row = rows[0] if rows else recorder.row_of(_TRANSFER)
        slot = recorder.begin(row, key, counts_row)
        words = recorder.words
        try:
            for call, gather, keywords, last_uses in self._steps:
                row = rows[number]
                words[slot] = row + 1
                if keywords is None:
                    registers.append(call(*gather(registers)))
                else:
                    registers.append(call(*gather(registers), **keywords(registers)))
                for place in last_uses:
                    registers[place] = None
                number += 1
        except BaseException as error:  # a kernel may raise anything
            raise StepError(number, self._operators[number]) from error
        finally:
            recorder.end(slot, row)
        return [
            _item_of(
                registers[self._place_of(output.what)],
                tuple(output.what.items),
                f"$.program.outputs[{i}]",
            )
            for i, output in enumerate(self.outputs)
        ]

    def _place_of(self, reference: values_pb2.Reference) -> int:
        if reference.WhichOneof("source") == "input":
            return reference.input
        return self._offset + reference.step

    def _compile(self, number: int, step: remote_pb2.Step) -> _Parts:
        at = f"$.program.steps[{number}]"
        args = [self._part(value, f"{at}.args[{i}]") for i, value in enumerate(step.args)]
        kwargs = {
            name: self._part(value, f"{at}.kwargs[{name[:60]!r}]")
            for name, value in step.kwargs.items()
        }
        return _Parts(args, kwargs)

    def _part(self, value: values_pb2.Value, at: str) -> _Part:
        found: list[_Ref] = []

        def reference(message: values_pb2.Reference, at: str) -> Any:
            is_input = message.WhichOneof("source") == "input"
            place = message.input if is_input else message.step
            found.append(_Ref(is_input, place, tuple(message.items), at))
            return found[-1]

        decoded = step_value_from_proto(value, at=at, reference=reference)
        if not found:
            self._constants.append(decoded)
            constant = self._outline.inputs + len(self._constants) - 1
            return _Part(_Ref(True, constant, (), at), (), None)
        if isinstance(decoded, _Ref) and not decoded.items:
            return _Part(decoded, (decoded,), None)
        return _Part(None, tuple(found), decoded)

    def _find_last_uses(self, gathered: Sequence[_Parts]) -> list[tuple[int, ...]]:
        """Return, for each step, the results that are not needed after it.

        Inputs belong to their owners.
        """
        wanted = {
            output.what.step
            for output in self.outputs
            if output.what.WhichOneof("source") == "step"
        }
        last = {number: number for number in range(len(gathered))}
        for number, parts in enumerate(gathered):
            for ref in parts.references():
                if not ref.is_input:
                    last[ref.place] = number
        uses: list[list[int]] = [[] for _ in gathered]
        for step, user in last.items():
            if step not in wanted:
                uses[user].append(self._offset + step)
        return [tuple(places) for places in uses]


class _Ref(NamedTuple):
    """A register, whose index is final once all constants are known: see CompiledProgram."""

    is_input: bool  # otherwise it is a constant
    place: int
    items: tuple[int, ...]
    at: str

    def bound(self, offset: int) -> int:
        return self.place if self.is_input else offset + self.place


class _Part(NamedTuple):
    """One argument: a register as it is, or ``template`` with references in it."""

    register: _Ref | None
    references: tuple[_Ref, ...]
    template: Any

    def bound(self, offset: int) -> Callable[[Registers], Any]:
        if self.register is not None:
            return operator.itemgetter(self.register.bound(offset))
        template = self.template
        return lambda registers: _filled(template, registers, offset)


class _Parts(NamedTuple):
    """The arguments of one step."""

    args: list[_Part]
    kwargs: dict[str, _Part]

    def references(self) -> list[_Ref]:
        """Return every register that the step reads, except constants."""
        parts = [*self.args, *self.kwargs.values()]
        return [ref for part in parts for ref in part.references]

    def bound(self, offset: int) -> tuple[_Gather, Callable[[Registers], dict[str, Any]] | None]:
        """Return functions that read the arguments from the registers."""
        keywords = {name: part.bound(offset) for name, part in self.kwargs.items()}

        def gather_keywords(registers: Registers) -> dict[str, Any]:
            return {name: get(registers) for name, get in keywords.items()}

        return self._gather(offset), gather_keywords if keywords else None

    def _gather(self, offset: int) -> _Gather:
        registers = [part.register for part in self.args]
        places = [ref.bound(offset) for ref in registers if ref is not None]
        if len(places) == len(self.args) >= 2:
            return operator.itemgetter(*places)  # the fast path: one call in C
        getters = [part.bound(offset) for part in self.args]
        return lambda registers: [get(registers) for get in getters]


def _filled(template: Any, registers: Registers, offset: int) -> Any:
    if isinstance(template, _Ref):
        return _item_of(registers[template.bound(offset)], template.items, template.at)
    if isinstance(template, list):
        return [_filled(item, registers, offset) for item in template]
    if isinstance(template, dict):
        return {key: _filled(item, registers, offset) for key, item in template.items()}
    return template


def _item_of(value: Any, items: tuple[int, ...], at: str) -> Any:
    for item in items:
        if not isinstance(value, list | tuple):
            raise ArgumentError(
                f"{at} refers to item {item} of a value of type {describe_type(value)}; expected "
                "a list or tuple"
            )
        if item >= len(value):
            raise ArgumentError(
                f"{at} refers to item {item} of a list with {len(value)} items; items are counted "
                "from 0"
            )
        value = value[item]
    return value


def _find(dispatcher: Dispatcher, name: str) -> Callable[..., Any]:
    """Return the callable operator of that name. Raises OperatorNotFoundError."""
    parsed = parse_operator_name(name)
    if parsed.overload_name:
        return dispatcher.get_schema(parsed)
    handles = [h for n in dispatcher.overloads(name) if (h := dispatcher.find_schema(n))]
    if not handles:
        return dispatcher.get_schema(parsed)
    if len(handles) == 1:
        return handles[0]

    def call(*args: Any, **kwargs: Any) -> Any:
        return dispatcher.resolve_overload(name, args, kwargs)(*args, **kwargs)

    return call


def _may_write(dispatcher: Dispatcher, name: str) -> bool:
    base = name.partition(".")[0]
    handles: list[OperatorHandle | None] = [
        dispatcher.find_schema(each) for each in dispatcher.overloads(base)
    ]
    return any(handle is not None and handle.schema.is_mutable for handle in handles)


class ProgramCache:
    """Compiled programs by their bytes, valid while the registry stays the same.

    Its owner holds a lock while using it. Keeps the programs used last: at most 256, which take
    some 64 MiB.
    """

    def __init__(self, dispatcher: Dispatcher) -> None:
        self._dispatcher = dispatcher
        self._epoch = -1
        self._bytes = 0
        self._programs: OrderedDict[bytes, CompiledProgram] = OrderedDict()

    @property
    def size(self) -> int:
        """The estimated bytes of the kept programs."""
        return self._bytes

    def get(self, data: bytes) -> CompiledProgram:
        """Return the compiled program. Raises WireError and StepError."""
        epoch = self._dispatcher.epoch
        if epoch != self._epoch:
            # A name may select another overload now.
            self._programs.clear()
            self._bytes = 0
            self._epoch = epoch
        program = self._programs.get(data)
        if program is not None:
            self._programs.move_to_end(data)
            return program
        program = CompiledProgram(checked_program(data), self._dispatcher)
        self._programs[data] = program
        self._bytes += _estimated_bytes(data, program)
        while len(self._programs) > _CACHED or self._bytes > _CACHED_BYTES:
            self._bytes -= _estimated_bytes(*self._programs.popitem(last=False))
        return program


def _estimated_bytes(data: bytes, program: CompiledProgram) -> int:
    return _STEP_BYTES * program.steps + (_BYTES_OF_ONE + 1) * len(data)
