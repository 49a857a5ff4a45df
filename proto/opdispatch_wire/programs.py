"""Programs as messages: what is checked before anything of one runs.

A program travels as bytes, so that a receiver recognizes it by them.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

from google.protobuf.message import DecodeError

from opdispatch_wire.errors import WireError
from opdispatch_wire.nesting import check_depth
from opdispatch_wire.v1 import remote_pb2, values_pb2

MAX_STEPS = 10_000
"""How many steps a program may have, and how many outputs."""
MAX_PROGRAM_BYTES = 4 << 20
"""How long a program may be; what is large is an input of it."""

_STEP = remote_pb2.Program.STEPS_FIELD_NUMBER << 3 | 2  # a message, with its length
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_VARINT_BITS = 64
_MAX_FIELDS = 2 * MAX_STEPS
_MAX_ITEMS = 32
_DEVICE = re.compile(r"[a-z]{1,32}(:[0-9]{1,4})?", re.ASCII)
_MAX_DEVICES = 64


class ProgramOutline(NamedTuple):
    """Calls and needs of a program, without its steps, each of which takes some hundred bytes."""

    steps: Mapping[str, int]
    """How many steps call each operator, in order of first use."""
    inputs: int
    """The inputs that it needs: one more than the last one that it refers to."""
    last_input: str
    """Where it refers to that one."""
    devices: frozenset[str]
    """The first texts among its arguments that could be names of devices."""

    def check_inputs(self, count: int) -> None:
        """Raise WireError if ``count`` inputs are fewer than it refers to."""
        if count < self.inputs:
            raise WireError(
                f"{self.last_input} refers to input {self.inputs - 1}, and the program was given "
                f"{count} inputs"
            )


class CheckedProgram(NamedTuple):
    """A program in which every reference to a step leads back."""

    message: remote_pb2.Program
    outline: ProgramOutline


def checked_program(data: bytes) -> CheckedProgram:
    """Parse and check a program. Raises WireError.

    One of too many steps is refused after a glance at their number.
    """
    if len(data) > 2 * MAX_STEPS:  # none is shorter
        _check_count(data)
    if len(data) > MAX_PROGRAM_BYTES:
        raise WireError(
            f"$.program has {len(data)} bytes; the limit is {MAX_PROGRAM_BYTES}",
            hint="make large values inputs of a program, not parts of it",
            limit=str(MAX_PROGRAM_BYTES),
        )
    program = remote_pb2.Program()
    try:
        program.ParseFromString(data)
    except DecodeError as error:
        raise WireError(f"$.program is no Program: {error}") from None
    if len(program.steps) > MAX_STEPS:
        raise _too_many(f"{len(program.steps)}")
    if len(program.outputs) > MAX_STEPS:
        raise WireError(
            f"$.program has {len(program.outputs)} outputs; the limit is {MAX_STEPS}",
            limit=str(MAX_STEPS),
        )
    check = _ReferenceCheck()
    for number, step in enumerate(program.steps):
        at = f"$.program.steps[{number}]"
        for i, value in enumerate(step.args):
            check.value(value, number, f"{at}.args[{i}]")
        for name, value in step.kwargs.items():
            check.value(value, number, f"{at}.kwargs[{name[:60]!r}]")
    for i, output in enumerate(program.outputs):
        check.reference(output.what, len(program.steps), f"$.program.outputs[{i}]")
    steps = Counter(step.operator for step in program.steps)
    outline = ProgramOutline(steps, check.inputs, check.last_input, frozenset(check.devices))
    return CheckedProgram(program, outline)


class _ReferenceCheck:
    """Looks at one reference after the other."""

    def __init__(self) -> None:
        self.inputs = 0
        self.last_input = ""
        self.devices: set[str] = set()

    def value(self, value: values_pb2.Value, before: int, at: str, depth: int = 0) -> None:
        """Check what is in an argument of step ``before``."""
        kind = value.WhichOneof("kind")
        if kind == "reference":
            self.reference(value.reference, before, at)
        elif kind in ("text", "device"):
            name: str = getattr(value, kind)
            if len(self.devices) < _MAX_DEVICES and _DEVICE.fullmatch(name):
                self.devices.add(name)
        elif kind == "list":
            check_depth(at, depth, WireError)
            for i, item in enumerate(value.list.items):
                self.value(item, before, f"{at}[{i}]", depth + 1)
        elif kind == "dict":
            check_depth(at, depth, WireError)
            for i, entry in enumerate(value.dict.entries):
                self.value(entry.value, before, f"{at}.entries[{i}].value", depth + 1)

    def reference(self, reference: values_pb2.Reference, before: int, at: str) -> None:
        """Raise WireError unless it refers to an input, or to a step ``before`` that one."""
        source = reference.WhichOneof("source")
        if source is None:
            raise WireError(f"{at} refers to nothing; expected an input or a step")
        if len(reference.items) > _MAX_ITEMS:
            raise WireError(f"{at} has {len(reference.items)} items; the limit is {_MAX_ITEMS}")
        if source == "step" and reference.step >= before:
            raise WireError(
                f"{at} refers to the result of step {reference.step}, which has not run by then; "
                "a step can use only the results of earlier ones"
            )
        if source == "input" and reference.input >= self.inputs:
            self.inputs, self.last_input = reference.input + 1, at


def _check_count(data: bytes) -> None:
    """Count the steps without parsing them; who parses says what else may be wrong.

    Not for long, whatever else there is: no other caller is served meanwhile.
    """
    position = steps = fields = 0
    while position < len(data):
        fields += 1
        if fields > _MAX_FIELDS:
            raise WireError(
                f"$.program has more than {_MAX_FIELDS} fields; it has at most {MAX_STEPS} steps "
                "and as many outputs"
            )
        tag, position = _read_varint(data, position)
        kind = tag & 7
        if kind == _BYTES:
            length, position = _read_varint(data, position)
            position += length
        elif kind == _VARINT:
            _, position = _read_varint(data, position)
        elif kind in (_FIXED64, _FIXED32):
            position += 8 if kind == _FIXED64 else 4
        else:
            return
        steps += tag == _STEP
        if steps > MAX_STEPS:
            raise _too_many(f"more than {MAX_STEPS}")


def _read_varint(data: bytes, position: int) -> tuple[int, int]:
    """Read the number there; return it and its end: the end of all data if there is none."""
    number = 0
    for shift in range(0, _VARINT_BITS, 7):
        if position >= len(data):
            break
        byte = data[position]
        position += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, position
    return 0, len(data)


def _too_many(steps: str) -> WireError:
    return WireError(
        f"$.program has {steps} steps; the limit is {MAX_STEPS}",
        hint="send it in parts, which hand their results on as remote tensors",
        limit=str(MAX_STEPS),
    )
