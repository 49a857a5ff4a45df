"""Programs in an interpreter: random ones give what NumPy gives, and errors name their step."""

from __future__ import annotations

import threading
import weakref
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from opdispatch import Dispatcher, Library
from opdispatch.errors import ArgumentError, OperatorNotFoundError
from opdispatch_server.blame.flight_record import FlightRecorder
from opdispatch_server.worker.execution.compiled_program import (
    CompiledProgram,
    ProgramCache,
    StepError,
)
from opdispatch_wire.errors import WireError
from opdispatch_wire.programs import checked_program
from opdispatch_wire.v1 import remote_pb2
from tests.waits import LONGEST_WAIT, join


def _boom(x: Any) -> Any:
    raise ZeroDivisionError("no")


def _iadd(x: Any, y: Any) -> Any:
    x += y
    return x


DISPATCHER = Dispatcher()
LIBRARY = Library("m", "DEF", dispatcher=DISPATCHER)
for schema, kernel in {
    "add(Tensor x, Tensor y) -> Tensor": lambda x, y: x + y,
    "scale(Tensor x, *, int by=2) -> Tensor": lambda x, *, by=2: x * by,
    "sum(Tensor[] xs) -> Tensor": lambda xs: sum(xs[1:], xs[0]),
    "both(Tensor x, Tensor y) -> (Tensor, Tensor)": lambda x, y: (x + y, x - y),
    "halves(Tensor x) -> Tensor[]": lambda x: [x[:2].repeat(2), x[2:].repeat(2)],
    "one() -> Tensor": lambda: np.ones(4, np.int64),
    "boom(Tensor x) -> Tensor": _boom,
    "iadd_(Tensor(a!) x, Tensor y) -> Tensor(a!)": _iadd,
    "over.Tensor(Tensor x, Tensor y) -> Tensor": lambda x, y: x + y,
    "over.Scalar(Tensor x, int y) -> Tensor": lambda x, y: x * y,
}.items():
    LIBRARY.define(schema)
    LIBRARY.impl(schema.partition("(")[0], kernel, "CompositeExplicitAutograd")


def _compiled(program: remote_pb2.Program) -> CompiledProgram:
    return CompiledProgram(checked_program(program.SerializeToString()), DISPATCHER)


# Each instruction: its name, and two numbers that say which earlier values it takes.
INSTRUCTIONS = st.lists(
    st.tuples(
        st.sampled_from(["add", "scale", "sum", "both", "halves", "one", "over"]),
        st.integers(0, 1000),
        st.integers(0, 1000),
    ),
    min_size=1,
    max_size=30,
)


@given(INSTRUCTIONS, st.lists(st.integers(0, 1000), max_size=5))
def test_random_programs_give_what_numpy_gives(instructions, asked):
    """Each value is a reference and, beside it, what NumPy says it must be."""
    inputs = [np.arange(4), np.arange(4) * 7 + 1]
    program = remote_pb2.Program()
    values: list[tuple[dict[str, Any], Any]] = [
        ({"input": 0}, inputs[0]),
        ({"input": 1}, inputs[1]),
    ]
    for number, (name, a, b) in enumerate(instructions):
        (ref_a, x), (ref_b, y) = values[a % len(values)], values[b % len(values)]
        step = program.steps.add(operator=f"m::{name}")
        result: list[tuple[dict[str, Any], Any]]
        if name in ("add", "both"):
            _refer(step.args.add(), ref_a)
            _refer(step.args.add(), ref_b)
            if name == "add":
                result = [({"step": number}, x + y)]
            else:
                result = [({"step": number, "items": [i]}, v) for i, v in enumerate((x + y, x - y))]
        elif name == "scale":
            _refer(step.args.add(), ref_a)
            step.kwargs["by"].integer = b
            result = [({"step": number}, x * b)]
        elif name == "sum":
            operands = step.args.add()
            for ref in (ref_a, ref_b, ref_a):
                _refer(operands, ref, in_list=True)
            result = [({"step": number}, x + y + x)]
        elif name == "halves":
            _refer(step.kwargs["x"], ref_a)
            parts = (x[:2].repeat(2), x[2:].repeat(2))
            result = [({"step": number, "items": [i]}, v) for i, v in enumerate(parts)]
        elif name == "over":
            _refer(step.args.add(), ref_a)
            if b % 2:
                step.args.add().integer = b
                result = [({"step": number}, x * b)]
            else:
                _refer(step.args.add(), ref_b)
                result = [({"step": number}, x + y)]
        else:
            result = [({"step": number}, np.ones(4, np.int64))]
        values += result
    expected = []
    for place in asked:
        reference, value = values[place % len(values)]
        _set(program.outputs.add().what, reference)
        expected.append(value)
    found = _compiled(program).run(inputs, FlightRecorder())
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)
    np.testing.assert_array_equal(inputs[0], np.arange(4))


def _refer(message: Any, reference: dict[str, Any], *, in_list: bool = False) -> None:
    _set((message.list.items.add() if in_list else message).reference, reference)


def _set(message: Any, reference: dict[str, Any]) -> None:
    for name, value in reference.items():
        if name == "items":
            message.items.extend(value)
        else:
            setattr(message, name, value)


def _chain(*operators: str) -> remote_pb2.Program:
    """Each takes the result of the one before, the first one the input."""
    program = remote_pb2.Program()
    for number, name in enumerate(operators):
        reference = program.steps.add(operator=name).args.add().reference
        if number:
            reference.step = number - 1
        else:
            reference.input = 0
    program.outputs.add().what.step = len(operators) - 1
    return program


def test_an_error_names_its_step():
    with pytest.raises(StepError) as caught:
        _compiled(_chain("m::scale", "m::boom", "m::scale")).run([np.arange(4)], FlightRecorder())
    assert (caught.value.number, caught.value.operator) == (1, "m::boom")
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_an_operator_that_is_not_there_is_found_before_anything_runs():
    with pytest.raises(StepError) as caught:
        _compiled(_chain("m::scale", "m::skale"))
    assert caught.value.number == 1
    assert isinstance(caught.value.__cause__, OperatorNotFoundError)


def test_an_item_that_is_not_there_is_an_error():
    program = _chain("m::both")
    program.steps[0].args.add().reference.input = 0
    program.outputs[0].what.items.append(2)
    with pytest.raises(
        ArgumentError, match=r"outputs\[0\] refers to item 2 of a list with 2 items"
    ):
        _compiled(program).run([np.arange(4)], FlightRecorder())
    program = _chain("m::scale")
    program.outputs[0].what.items.append(0)
    with pytest.raises(ArgumentError, match=r"of a value of type numpy\.ndarray; expected a list"):
        _compiled(program).run([np.arange(4)], FlightRecorder())


def test_a_tensor_in_a_step_is_refused():
    program = _chain("m::scale")
    program.steps[0].args[0].tensor.dtype = "int64"
    with pytest.raises(WireError, match="expected a reference to an input"):
        _compiled(program)


def test_unneeded_results_are_released():
    """The results of a long program do not pile up."""
    alive: list[Any] = []

    def look(x: Any) -> Any:
        alive.append(sum(each() is not None for each in made))
        result = x + 1
        made.append(weakref.ref(result))
        return result

    made: list[Any] = []
    library = Library("look", "DEF", dispatcher=DISPATCHER)
    library.define("at(Tensor x) -> Tensor")
    library.impl("at", look, "CompositeExplicitAutograd")
    [result] = _compiled(_chain(*["look::at"] * 20)).run([np.zeros(4)], FlightRecorder())
    assert result.tolist() == [20.0] * 4
    assert max(alive) <= 2


def test_compiled_program_knows_whether_it_writes():
    program = _chain("m::iadd_")
    program.steps[0].args.add().reference.input = 0
    compiled = _compiled(program)
    assert compiled.writes
    x = np.arange(4)
    [result] = compiled.run([x], FlightRecorder())
    assert result is x
    assert x.tolist() == [0, 2, 4, 6]
    assert not _compiled(_chain("m::scale")).writes


def test_many_threads_run_one_program():
    compiled = _compiled(_chain(*["m::scale"] * 50))
    results: list[Any] = []
    barrier = threading.Barrier(4)

    def run(start: int) -> None:
        barrier.wait(LONGEST_WAIT)
        for _ in range(20):
            [result] = compiled.run([np.full(4, start)], FlightRecorder())
            results.append((start, int(result[0])))

    threads = [threading.Thread(target=run, args=(start,)) for start in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        join(thread)
    assert len(results) == 80
    assert all(found == start * 2**50 for start, found in results)


def test_a_program_is_compiled_once_until_something_is_registered():
    cache = ProgramCache(DISPATCHER)
    data = _chain("m::scale").SerializeToString()
    first = cache.get(data)
    assert cache.get(bytes(data)) is first
    library = Library("later", "DEF", dispatcher=DISPATCHER)
    library.define("anything() -> int")
    second = cache.get(data)
    assert second is not first
    for number in range(300):
        program = _chain("m::scale")
        program.steps[0].kwargs["by"].integer = number
        cache.get(program.SerializeToString())
    assert cache.get(data) is not second, "the oldest ones go"


def test_programs_are_kept_by_what_they_take_and_not_by_their_bytes():
    """Compiled, one takes some tens of times its bytes."""
    cache = ProgramCache(DISPATCHER)
    programs = []
    for number in range(10):
        program = _chain(*["m::scale"] * 9_000)
        program.steps[0].kwargs["by"].integer = number
        programs.append(program.SerializeToString())
        cache.get(programs[-1])
    assert sum(map(len, programs)) < 2 << 20
    assert cache.size <= 64 << 20
    assert cache.get(programs[-1]) is cache.get(programs[-1])
    before = cache.size
    cache.get(programs[0])
    assert cache.size <= before + (1 << 20), "the oldest ones went for it"
