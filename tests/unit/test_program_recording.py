"""Recorded programs, without a daemon."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from types import FrameType
from typing import Any

import numpy as np
import pytest

from opdispatch import LoggingMode, autocast, inference_mode, no_grad
from opdispatch.errors import ArgumentError
from opdispatch_client.blocking.program import Program, as_program
from opdispatch_client.program_recording import PlaceholderUsed, Recording, find_recording
from opdispatch_wire.calls import call_request
from opdispatch_wire.errors import WireError
from opdispatch_wire.nesting_limits import MAX_NESTING
from opdispatch_wire.programs import MAX_PROGRAM_BYTES, checked_program
from opdispatch_wire.v1 import remote_pb2

X, Y = np.arange(3), np.ones(3)


class Sent:
    """Stands where the session is: notes what is to be sent, and answers with the inputs."""

    def __init__(self) -> None:
        self.programs: list[remote_pb2.Program] = []
        self.inputs: list[list[Any]] = []

    def run(self, data: bytes, inputs: Sequence[Any], keeps: bool) -> list[Any]:
        program = checked_program(data)
        program.outline.check_inputs(len(inputs))
        assert keeps == any(output.keep for output in program.message.outputs)
        self.programs.append(program.message)
        self.inputs.append(list(inputs))
        return [f"output {i}" for i in range(len(program.message.outputs))]


def test_a_tensor_is_an_input_once_and_anything_else_a_part_of_the_program():
    sent = Sent()
    with Program(sent.run) as p:
        z = p.ops.a.add(X, Y, by=3)
        p.call("a::stack.list", [X, z, [z[1][2]]], {"k": Y}, None, np.float32)
        p.output(z[0], X)
        p.output(z, remote=True)
    [program], [inputs] = sent.programs, sent.inputs
    assert [id(value) for value in inputs] == [id(X), id(Y)]
    first, second = program.steps
    assert (first.operator, second.operator) == ("a::add", "a::stack.list")
    assert [value.reference.input for value in first.args] == [0, 1]
    assert first.kwargs["by"].integer == 3
    one, two, three = second.args[0].list.items
    assert (one.reference.input, two.reference.step) == (0, 0)
    assert list(three.list.items[0].reference.items) == [1, 2]
    assert second.args[1].dict.entries[0].value.reference.input == 1
    assert [second.args[i].WhichOneof("kind") for i in (2, 3)] == ["none", "dtype"]
    assert [list(output.what.items) for output in program.outputs] == [[0], [], []]
    assert [output.keep for output in program.outputs] == [False, False, True]
    assert p.result == ("output 0", "output 1", "output 2")


def test_a_call_that_cannot_be_recorded_leaves_nothing_behind():
    recording = Recording()
    recording.call("a::b", X)
    with pytest.raises(WireError, match=r"\$\.program\.steps\[1\]\.kwargs\['y'\]"):
        recording.call("a::b", X, y=object())
    again = recording.call("a::b", X)
    assert repr(again) == "<Placeholder step 1>"
    assert len(recording.message.steps) == 2


def test_a_placeholder_in_an_ordinary_call_leads_to_its_recording():
    recording = Recording()
    x = recording.new_input(X)
    for args in ([x], [[1, [x]]], [{"k": x}]):
        with pytest.raises(PlaceholderUsed) as caught:
            call_request("a::b", args, {})
        assert caught.value.recording is recording
    assert find_recording([1, [2, (x,)]], {}) is recording
    assert find_recording([], {"y": x}) is recording
    assert find_recording([X, [1]], {"y": "z"}) is None


def test_the_same_constants_are_the_same_bytes():
    def record() -> bytes:
        recording = Recording()
        recording.add_output(
            recording.call("a::b", recording.new_input(X), z=1, y=2.0, x="t"), remote=False
        )
        return recording.message.SerializeToString(deterministic=True)

    assert record() == record()


def test_a_function_is_traced_once_for_each_kind_of_call():
    sent, traced = Sent(), []

    def function(x: Any, *rest: Any, by: Any = 1) -> Any:
        traced.append(by)
        recording = x.recording
        return recording.call("a::b", x, Y, by), [by, recording.call("a::c", *rest)]

    call = as_program(function, sent.run, remote=False)
    assert call(X, X) == ("output 0", [1, "output 1"])
    assert call(Y, X) == ("output 0", [1, "output 1"])
    assert call(X, X, by=True) == ("output 0", [True, "output 1"])
    assert call(X, X, by=1.0)[1][0] == 1.0
    assert traced == [1, True, 1.0], "1, True and 1.0 are different constants"
    assert [[id(value) for value in each] for each in sent.inputs[:2]] == [
        [id(X), id(X), id(Y)],
        [id(Y), id(X), id(Y)],
    ]
    call(X, [X, 1, (Y, "t")])
    call(Y, [Y, 1, (X, "t")])
    assert [id(value) for value in sent.inputs[-1]] == [id(Y), id(Y), id(X), id(Y)]
    assert len(traced) == 4, "in lists as well"
    call(X, [X, 2, (Y, "t")])
    assert len(traced) == 5
    call(X, {1: X, "w": [Y]})
    call(Y, {1: Y, "w": [X]})
    assert [id(value) for value in sent.inputs[-1]] == [id(Y), id(Y), id(X), id(Y)]
    assert len(traced) == 6, "in dicts as well"
    call(X, {True: X, "w": [Y]})
    assert len(traced) == 7
    for number in range(100):
        call(X, number)
    assert call(X, X)[0] == "output 0"
    assert traced.count(1) > 2, "the oldest ones go"


def test_zero_and_negative_zero_are_two_constants_and_nan_is_one():
    sent, traced = Sent(), []

    def function(x: Any, by: Any) -> Any:
        traced.append(str(by))
        return x.recording.call("a::b", x, by)

    call = as_program(function, sent.run, remote=False)
    for by in (0.0, -0.0, float("nan"), complex(0.0, -0.0), 0j, 0.0, -0.0, float("nan"), 0j):
        call(X, by)
    assert traced == ["0.0", "-0.0", "nan", "-0j", "0j"]


def test_a_program_within_a_program_is_refused():
    inner = as_program(lambda x: x, Sent().run, remote=False)
    outer = as_program(inner, Sent().run, remote=False)
    with pytest.raises(ArgumentError, match="called within another one"):
        outer(X)


@pytest.mark.parametrize("block", [no_grad, inference_mode, lambda: autocast("cpu")])
def test_a_block_within_a_program_is_refused(block):
    with block():
        recording = Recording()
        recording.call("a::f", np.zeros(1))  # around all of it, it is sent along
    with pytest.raises(ArgumentError, match="which cannot record blocks"):
        recording.call("a::f", np.zeros(1))
    recording = Recording()
    with pytest.raises(ArgumentError, match=r"no_grad or autocast, within a program"), block():
        recording.call("a::f", np.zeros(1))
    assert not recording.message.steps
    with LoggingMode():  # which stays in this process
        recording.call("a::f", np.zeros(1))


def test_arguments_that_nest_too_deep_are_refused_before_anything_is_recorded():
    loop: list[Any] = []
    loop.append(loop)
    deep: Any = []
    for _ in range(3000):
        deep = [deep]
    sent = Sent()
    for value in (loop, deep, {"a": loop}, (deep,)):
        assert find_recording([value], {}) is None
        with Program(sent.run) as p:
            with pytest.raises(ArgumentError, match=r"steps\[0\]\.args\[0\].*32 levels deep"):
                p.ops.a.add(value)
            with pytest.raises(ArgumentError, match=r"steps\[0\]\.kwargs\['x'\].*32 levels"):
                p.ops.a.add(x=value)
            assert not p.message.steps
        function = as_program(lambda x: x, sent.run, remote=False)
        for call in (lambda v=value, f=function: f(v), lambda v=value, f=function: f(x=v)):
            with pytest.raises(ArgumentError, match=r"\$\.args\[(0|x)\].*32 levels deep"):
                call()
        with pytest.raises(ArgumentError, match=r"the result.*32 levels deep"):
            as_program(lambda x, v=value: v, sent.run, remote=False)(X)


def test_a_recording_refuses_more_bytes_than_a_program_may_have():
    recording = Recording()
    texts = ["t" * 1000] * 1000
    for _ in range(MAX_PROGRAM_BYTES // 1_010_000):
        recording.call("t::f", texts)
    with pytest.raises(ArgumentError, match=f"the limit is {MAX_PROGRAM_BYTES}"):
        recording.call("t::f", texts)
    checked_program(recording.message.SerializeToString())  # without the call that was too much


def test_a_placeholder_is_found_among_lists_that_share_their_parts():
    recording = Recording()
    shared = []
    for _ in range(MAX_NESTING - 1):
        shared = [shared, shared]
    assert find_recording([shared], {}) is None
    assert find_recording([shared, [recording.call("t::f")]], {}) is recording


def test_recording_a_step_enters_few_functions():
    recording, x = Recording(), np.ones(4, np.float32)
    value = recording.call("math::add", x, x)
    entered: list[str] = []

    def note(frame: FrameType, event: str, _: Any) -> None:
        if event == "call":
            entered.append(frame.f_code.co_qualname)

    sys.setprofile(note)
    try:
        for _ in range(10):
            value = recording.call("math::add", value, x)
    finally:
        sys.setprofile(None)
    assert len(entered) <= 50, entered  # 17 a step, where every argument is looked into
