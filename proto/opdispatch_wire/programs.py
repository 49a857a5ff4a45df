"""Parse and check program messages before any step runs.

A program is sent as serialized bytes, so that a receiver can recognize one by comparing them.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

from google.protobuf.message import DecodeError

from opdispatch_wire.errors import WireError
from opdispatch_wire.nesting_limits import check_depth
from opdispatch_wire.v1 import remote_pb2, values_pb2

MAX_STEPS = 10_000
"""Most steps of a program, and most outputs."""
MAX_PROGRAM_BYTES = 4 << 20
"""Longest program in bytes. Large values are inputs, not parts of the program."""

_STEP = remote_pb2.Program.STEPS_FIELD_NUMBER << 3 | 2  # a message, with its length
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_VARINT_BITS = 64
_MAX_FIELDS = 2 * MAX_STEPS
_MAX_ITEMS = 32
_DEVICE = re.compile(r"[a-z]{1,32}(:[0-9]{1,4})?", re.ASCII)
_MAX_DEVICES = 64


class ProgramOutline(NamedTuple):
    """Summary of a program to keep without its steps, each of which takes some hundred bytes."""

    steps: Mapping[str, int]
    """The number of steps per operator, in order of first use."""
    inputs: int
    """The number of inputs it needs: the highest number referred to, plus one."""
    last_input: str
    """The place that refers to the highest input."""
    devices: frozenset[str]
    """Texts among its arguments that could be device names; at most the first 64."""

    def check_inputs(self, count: int) -> None:
        """Raise WireError if the program needs more than ``count`` inputs."""
        if count < self.inputs:
            raise WireError(
                f"{self.last_input} refers to input {self.inputs - 1}, and the program was given "
                f"{count} inputs"
            )


class CheckedProgram(NamedTuple):
    """A program in which every reference to a step is to an earlier one."""

    message: remote_pb2.Program
    outline: ProgramOutline


def checked_program(data: bytes) -> CheckedProgram:
    """Parse and check a program. Raises WireError if it is malformed or exceeds a limit.

    The steps are counted before protobuf parses them, so that too many are refused cheaply.
    """
    if len(data) > 2 * MAX_STEPS:  # a step takes at least two bytes
        _check_count(data)
    if len(data) > MAX_PROGRAM_BYTES:
        raise WireError(
            f"$.program has {len(data)} bytes; the limit is {MAX_PROGRAM_BYTES}",
            hint="pass large values as inputs of the program",
            limit=str(MAX_PROGRAM_BYTES),
        )
    program = remote_pb2.Program()
    try:
        program.ParseFromString(data)
    except DecodeError as error:
        raise WireError(f"$.program is not a serialized Program: {error}") from None
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
    """Checks each reference of a program, and collects its inputs and device names."""

    def __init__(self) -> None:
        self.inputs = 0
        self.last_input = ""
        self.devices: set[str] = set()

    def value(self, value: values_pb2.Value, before: int, at: str, depth: int = 0) -> None:
        """Check an argument of step ``before``, in lists and dicts as well."""
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
        """Raise WireError unless it refers to an input, or to a step numbered below ``before``."""
        source = reference.WhichOneof("source")
        if source is None:
            raise WireError(f"{at} refers to nothing; expected an input or a step")
        if len(reference.items) > _MAX_ITEMS:
            raise WireError(f"{at} has {len(reference.items)} items; the limit is {_MAX_ITEMS}")
        if source == "step" and reference.step >= before:
            raise WireError(
                f"{at} refers to the result of step {reference.step}, which has not run yet; "
                "a step can use only the results of earlier steps"
            )
        if source == "input" and reference.input >= self.inputs:
            self.inputs, self.last_input = reference.input + 1, at


def _check_count(data: bytes) -> None:
    """Raise WireError for too many steps, counted without parsing them.

    Other faults are left to the parser. The number of fields read is bounded, because this runs on
    the event loop, which serves no other call meanwhile.
    """
    position = steps = fields = 0
    while position < len(data):
        fields += 1
        if fields > _MAX_FIELDS:
            raise WireError(
                f"$.program has more than {_MAX_FIELDS} fields; the limit is {MAX_STEPS} steps "
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
    """Return the varint at ``position`` and its end; 0 and the end of ``data`` if malformed."""
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
        hint="split the program, and pass results between the parts as remote tensors",
        limit=str(MAX_STEPS),
    )
