"""The dispatch trace: a line for each kernel that a call visits."""

import os
import subprocess
import sys
import threading

import numpy as np
import pytest

from opdispatch import (
    DispatchKey,
    DispatchKeySet,
    IncludeDispatchKeyGuard,
    KernelFunction,
    Tensor,
    TraceLine,
    capture_dispatch_trace,
    parse_schema,
    show_dispatch_trace,
)
from opdispatch.local_state.local_dispatch_key_set import DEFAULT_STATE, LOCAL_STATE
from opdispatch.local_state.trace_line import sink_from_environment
from tests.waits import LONGEST_WAIT

K = DispatchKey
pytestmark = pytest.mark.usefixtures("caller")


@pytest.fixture
def twice(dispatcher):
    """``t::twice``, a composite of two calls of ``t::add``, which has a CPU kernel."""
    add = parse_schema("t::add(Tensor x, Tensor y) -> Tensor")
    twice = parse_schema("t::twice(Tensor x) -> Tensor")
    for schema in (add, twice):
        dispatcher.register_def(schema)
    kernel = KernelFunction.from_unboxed(lambda x, y: np.asarray(x) + np.asarray(y))
    dispatcher.register_impl(add.name, K.CPU, kernel, site="lib.py:3")

    def double(x):
        op = dispatcher.get_schema("t::add")
        return op(op(x, x), x)

    dispatcher.register_impl(twice.name, None, KernelFunction.from_unboxed(double), site="lib.py:7")
    return dispatcher.get_schema("t::twice")


def test_a_line_says_which_kernel_was_visited_and_why(twice):
    with capture_dispatch_trace() as lines:
        twice(np.ones(2))
    assert lines == [
        TraceLine(0, "call", "t::twice", "CPU", "lib.py:7", "math kernel"),
        TraceLine(1, "call", "t::add", "CPU", "lib.py:3", "kernel"),
        TraceLine(1, "call", "t::add", "CPU", "lib.py:3", "kernel"),
    ]


def test_a_line_prints_as_in_pytorch(twice):
    with capture_dispatch_trace() as lines:
        twice(np.ones(2))
    assert [str(line) for line in lines[:2]] == [
        "[call] op=[t::twice], key=[CPU]",
        " [call] op=[t::add], key=[CPU]",
    ]


def test_a_redispatch_is_a_line_below_the_call_that_made_it(twice, dispatcher):
    with capture_dispatch_trace() as lines:
        dispatcher.get_schema("t::add")(Tensor(np.ones(2)), np.ones(2))
    assert [(line.depth, line.kind, line.key, line.reason) for line in lines] == [
        (0, "call", "AutogradCPU", "backend fallback"),
        (1, "redispatchBoxed", "CPU", "kernel"),
    ]


def test_boxed_and_unboxed_visits_are_distinguished(twice, dispatcher):
    add, x = dispatcher.get_schema("t::add"), np.ones(2)
    cpu = DispatchKeySet.of(K.CPU)
    with capture_dispatch_trace() as lines:
        add.redispatch(cpu, x, x)
        add.call_boxed([x, x])
        add.redispatch_boxed(cpu, [x, x])
        add.call_boxed_for_dispatch_key(K.CPU, [x, x])
    kinds = ["redispatch", "callBoxed", "redispatchBoxed", "callBoxed"]
    assert [line.kind for line in lines] == kinds
    assert {line.depth for line in lines} == {0}


def test_tracing_begins_and_ends_with_its_block(twice):
    twice(np.ones(2))  # found before, and compiled code knows the way
    with capture_dispatch_trace() as lines:
        twice(np.ones(2))
    twice(np.ones(2))
    assert len(lines) == 3
    assert LOCAL_STATE.get() is DEFAULT_STATE


def test_a_kernel_that_raises_leaves_the_depth_as_it_was(define):
    def fail(x):
        raise ValueError("no")

    op = define("t::f(Tensor x) -> Tensor", CPU=fail)
    with capture_dispatch_trace() as lines:
        for call in (op, lambda x: op.call_boxed([x])):
            with pytest.raises(ValueError, match="no"):
                call(np.ones(2))
    assert [line.depth for line in lines] == [0, 0]


def test_an_inner_capture_takes_the_lines_of_its_block(twice):
    with capture_dispatch_trace() as outer:
        with capture_dispatch_trace() as inner:
            twice(np.ones(2))
        twice(np.ones(2))
    assert [line.depth for line in outer] == [line.depth for line in inner] == [0, 1, 1]


def test_tracing_and_local_keys_do_not_disturb_each_other(define):
    op = define("t::f(Tensor x) -> Tensor", Tracer=lambda x: x)
    with capture_dispatch_trace() as lines, IncludeDispatchKeyGuard(K.Tracer):
        op(np.ones(2))
    with IncludeDispatchKeyGuard(K.Tracer), capture_dispatch_trace() as more:
        op(np.ones(2))
    assert [line.key for line in lines + more] == ["Tracer", "Tracer"]


def test_other_threads_are_not_traced(twice):
    with capture_dispatch_trace() as lines:
        thread = threading.Thread(target=twice, args=[np.ones(2)])
        thread.start()
        thread.join(LONGEST_WAIT)
    assert lines == []


def test_a_shown_trace_goes_to_stderr(twice, capsys):
    with show_dispatch_trace():
        twice(np.ones(2))
    assert capsys.readouterr().err.splitlines() == [
        "[call] op=[t::twice], key=[CPU]",
        " [call] op=[t::add], key=[CPU]",
        " [call] op=[t::add], key=[CPU]",
    ]


@pytest.mark.parametrize(
    ("value", "wanted"), [(None, False), ("", False), ("0", False), ("1", True)]
)
def test_the_environment_switches_the_trace_on(monkeypatch, value, wanted):
    monkeypatch.delenv("OPDISPATCH_SHOW_DISPATCH_TRACE", raising=False)
    if value is not None:
        monkeypatch.setenv("OPDISPATCH_SHOW_DISPATCH_TRACE", value)
    assert (sink_from_environment() is not None) == wanted


PROGRAM = """
import numpy as np
from opdispatch import Library, ops
lib = Library("t", "DEF")
lib.define("f(Tensor x) -> Tensor")
lib.impl("f", lambda x: x, "CPU")
ops.t.f(np.ones(2))
ops.t.f(np.ones(2))
"""


def test_a_program_is_traced_from_the_outside():
    environment = os.environ | {"OPDISPATCH_SHOW_DISPATCH_TRACE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, timeout=60
    )
    assert done.stderr.splitlines() == ["[call] op=[t::f], key=[CPU]"] * 2
