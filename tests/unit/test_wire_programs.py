"""Programs as messages: what is refused before anything runs, and how quickly."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opdispatch_wire.errors import WireError
from opdispatch_wire.programs import MAX_PROGRAM_BYTES, MAX_STEPS, checked_program
from opdispatch_wire.v1 import remote_pb2


def _program() -> remote_pb2.Program:
    program = remote_pb2.Program()
    first = program.steps.add(operator="a::b")
    first.args.add().reference.input = 1
    second = program.steps.add(operator="a::c.Scalar")
    second.args.add().list.items.add().reference.step = 0
    second.kwargs["by"].integer = 3
    program.outputs.add().what.step = 1
    return program


def test_a_program_says_what_it_needs():
    checked = checked_program(_program().SerializeToString())
    assert tuple(checked.outline.steps) == ("a::b", "a::c.Scalar")
    assert checked.outline.inputs == 2
    checked.outline.check_inputs(2)
    with pytest.raises(
        WireError, match=r"steps\[0\]\.args\[0\] refers to input 1, and the program was given 1"
    ):
        checked.outline.check_inputs(1)


def test_a_program_says_which_texts_may_name_devices():
    program = _program()
    for text in ("cuda:0", "meta", "not one", "UPPER", "sum"):
        program.steps[0].args.add().text = text
    program.steps[1].kwargs["device"].device = "xpu"
    found = checked_program(program.SerializeToString()).outline.devices
    assert found == {"cuda:0", "meta", "sum", "xpu"}


def _forward(program: remote_pb2.Program) -> None:
    program.steps[0].args.add().reference.step = 1


def _to_itself(program: remote_pb2.Program) -> None:
    program.steps[1].kwargs["x"].reference.step = 1


def _in_a_dict(program: remote_pb2.Program) -> None:
    entry = program.steps[0].args.add().dict.entries.add()
    entry.key.integer = 1
    entry.value.reference.step = 7


def _output(program: remote_pb2.Program) -> None:
    program.outputs.add().what.step = 2


def _nothing(program: remote_pb2.Program) -> None:
    program.outputs.add()


def _many_items(program: remote_pb2.Program) -> None:
    program.outputs[0].what.items.extend([0] * 33)


def _deep(program: remote_pb2.Program) -> None:
    value = program.steps[0].args.add()
    for _ in range(34):
        value = value.list.items.add()


@pytest.mark.parametrize(
    ("spoil", "problem"),
    [
        (_forward, r"\$\.program\.steps\[0\]\.args\[1\] refers to the result of step 1, which"),
        (_to_itself, r"\$\.program\.steps\[1\]\.kwargs\['x'\] refers to the result of step 1"),
        (_in_a_dict, r"args\[1\]\.entries\[0\]\.value refers to the result of step 7"),
        (_output, r"\$\.program\.outputs\[1\] refers to the result of step 2"),
        (_nothing, r"\$\.program\.outputs\[1\] refers to nothing"),
        (_many_items, r"\$\.program\.outputs\[0\] has 33 items; the limit is 32"),
        (_deep, "nest more than 32 levels"),
    ],
)
def test_invalid_program_error_names_the_place(spoil, problem: str):
    program = _program()
    spoil(program)
    with pytest.raises(WireError, match=problem):
        checked_program(program.SerializeToString())


def test_garbage_is_refused():
    with pytest.raises(WireError, match=r"\$\.program is not a serialized Program"):
        checked_program(b"\xff\xff\xff")


def test_program_is_limited_to_max_steps():
    program = remote_pb2.Program()
    for _ in range(MAX_STEPS):
        program.steps.add(operator="a::b")
    assert len(checked_program(program.SerializeToString()).message.steps) == MAX_STEPS
    program.steps.add()
    with pytest.raises(WireError, match="steps; the limit is 10000") as caught:
        checked_program(program.SerializeToString())
    assert caught.value.facts["limit"] == "10000"


def test_a_million_steps_are_refused_without_looking_at_them():
    step = remote_pb2.Program(steps=[remote_pb2.Step(operator="math::add")]).SerializeToString()
    data = step * 1_000_000
    checked_program(step)
    began = time.process_time()
    with pytest.raises(WireError, match="more than 10000 steps; the limit is 10000"):
        checked_program(data)
    assert time.process_time() - began < 0.25, "parsing alone takes longer"


@pytest.mark.parametrize("field", [b"\x08\x00", b"\x18\x00", b"\x12\x00"])
def test_million_unknown_fields_are_refused_quickly(field: bytes):
    """Of no program, of another kind than a step, and outputs."""
    began = time.process_time()
    with pytest.raises(WireError, match="more than 20000 fields"):
        checked_program(field * 1_000_000)
    assert time.process_time() - began < 0.25


def test_a_program_with_large_constants_is_refused():
    program = remote_pb2.Program()
    program.steps.add(operator="a::b").args.add().text = "x" * MAX_PROGRAM_BYTES
    with pytest.raises(WireError, match="pass large values as inputs") as caught:
        checked_program(program.SerializeToString())
    assert caught.value.facts["limit"] == str(MAX_PROGRAM_BYTES)


@given(st.binary(max_size=200), st.integers(0, 3))
def test_any_bytes_are_a_program_or_raise_wire_error(data: bytes, copies: int):
    """Also beyond the size from which on steps are counted first."""
    data = data + (b"\x0a\x02\x0a\x00" * 6000) * copies + data
    try:
        checked = checked_program(data)
    except WireError:
        return
    assert checked_program(checked.message.SerializeToString()).outline == checked.outline


def test_a_number_that_never_ends_is_no_way_to_keep_us_busy():
    with pytest.raises(WireError):
        checked_program(b"\xff" * (3 * MAX_STEPS))
