"""Options of a profile: memory, lines of Python, and the steps that it records."""

import json
from pathlib import Path

import numpy as np
import pytest

from opdispatch import (
    ArgumentError,
    Library,
    Tensor,
    autocast,
    func,
    inference_mode,
    is_autocast_enabled,
    no_grad,
    ops,
    profile,
    record_function,
    sparse_coo_tensor,
    vmap,
)
from opdispatch import array_api as xp
from opdispatch.local_state.local_dispatch_key_set import DEFAULT_STATE, LOCAL_STATE
from opdispatch.profiler import ProfilerAction, schedule

X = np.ones((2, 3), np.float32)
HERE = Path(__file__).name
SPARSE = sparse_coo_tensor(np.array([[0, 1], [1, 2]]), np.array([1.0, 2.0]), (2, 3))


@pytest.fixture(scope="module", autouse=True)
def library():
    with Library("noted", "DEF") as lib:
        for schema, kernel in {
            "make(Tensor x, int n) -> Tensor": lambda x, n: np.zeros(n, np.float64),
            "part(Tensor x) -> Tensor": lambda x: np.zeros((1000, 3))[:1],
            "same(Tensor(a) x) -> Tensor(a)": lambda x: x,
            "view(Tensor(a) x) -> Tensor(a)": lambda x: x[:1],
            "write_(Tensor(a!) x) -> Tensor(a!)": _written,
            "both(Tensor[] xs) -> Tensor[]": lambda xs: [xs[0], xs[0] + 1, np.zeros(5)[2:]],
            "twin(Tensor x) -> (Tensor, Tensor)": lambda x: (lambda y: (y[:1], y[1:]))(x + 1),
            "fails(Tensor x) -> Tensor": lambda x: 1 / 0,
            "number(Tensor x) -> int": lambda x: 3,
            "outer(Tensor x) -> Tensor": lambda x: ops.noted.make(ops.noted.make(x, 10), 2),
        }.items():
            lib.define(schema)
            lib.impl(schema.partition("(")[0], kernel, "CPU")
        lib.impl("same", lambda x: x, "SparseCPU")
        lib.impl("make", _sparse, "SparseCPU")
        yield lib


def _sparse(x, n):
    places = np.stack([np.zeros(n, np.int64), np.arange(n)])
    return sparse_coo_tensor(places, np.ones(n), (1, n))


def _written(x):
    x[...] = 2
    return x


# -- memory --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (lambda: ops.noted.make(X, 10), 80),
        (lambda: ops.noted.make(Tensor(X), 0), 0),
        (lambda: ops.noted.part(X), 24_000),  # all that it keeps alive
        (lambda: ops.noted.same(X), 0),
        (lambda: ops.noted.view(X[:, :2]), 0),
        (lambda: ops.noted.write_(X.copy()), 0),
        (lambda: ops.noted.both([X, X]), 24 + 40),
        (lambda: ops.noted.twin(X), 24),  # one memory, of two results
        (lambda: ops.noted.number(X), 0),
        (lambda: ops.noted.view(np.frombuffer(memoryview(bytes(24)), np.float32)), 0),
        (lambda: xp.add(Tensor(X, requires_grad=True), 1), 24),
        (lambda: xp.permute_dims(Tensor(X), (1, 0)), 0),
        (lambda: xp.add(Tensor(X).to("meta"), 1), 0),
        (lambda: ops.noted.same(SPARSE), 0),
        (lambda: ops.noted.make(SPARSE, 4), (2 + 1) * 4 * 8),  # places of two dimensions, elements
    ],
)
def test_the_memory_of_results_that_arguments_had_not(call, expected):
    with profile(profile_memory=True) as prof:
        call()
    assert [event.result_bytes for event in prof.events() if event.cpu_parent is None][-1] == (
        expected
    )


def test_memory_of_calls_within_others_and_of_those_that_fail():
    with profile(profile_memory=True) as prof:
        ops.noted.outer(X)
        with pytest.raises(ZeroDivisionError):
            ops.noted.fails(X)
        with record_function("range"):
            pass
    assert [(each.name, each.result_bytes) for each in prof.events()] == [
        ("noted::outer", 16),
        ("noted::make", 80),
        ("noted::make", 16),
        ("noted::fails", None),
        ("range", None),
    ]
    rows = {row.key: row.result_bytes for row in prof.key_averages()}
    assert rows == {"noted::outer": 16, "noted::make": 96, "noted::fails": None, "range": None}
    lines = prof.key_averages().table(sort_by="result_bytes").splitlines()
    assert lines[1].endswith("# of Calls  Result Mem")
    assert lines[3].startswith("noted::make")
    assert lines[3].endswith(" 96 B")
    assert lines[-3].endswith(" --")
    assert all(span.owners is None for span in prof._recorder.spans)
    with profile() as prof:
        ops.noted.outer(X)
    assert {event.result_bytes for event in prof.events()} == {None}
    assert "Result Mem" not in prof.key_averages().table()


def test_arguments_do_not_outlive_their_calls():
    with profile(profile_memory=True, with_stack=True) as prof:
        ops.noted.same(X)
        unfinished = prof._place.begin_operator(
            "noted::same", ops.noted.same.default.signature, [X]
        )
    assert unfinished.span.owners is None
    unfinished.end(X, failed=False)
    assert unfinished.span.result_bytes is None


def test_memory_within_transforms():
    with profile(profile_memory=True) as prof:
        vmap(func.grad(lambda row: xp.sum(row * row)))(Tensor(X.astype(float)))
    sizes = [event.result_bytes for event in prof.events() if event.name == "array::multiply"]
    assert 48 in sizes  # below all levels, where there are elements


# -- lines of Python -----------------------------------------------------------------------------


def model(x):
    with record_function("in a range"):
        return xp.exp(ops.noted.outer(x))


def test_lines_that_call_are_noted_of_outermost_calls():
    line = model.__code__.co_firstlineno + 2
    with profile(with_stack=True) as prof:
        for _ in range(2):
            model(X)
        Tensor(X) + 1
    found = [(event.name, bool(event.stack)) for event in prof.events()]
    once = [("in a range", False), ("noted::outer", True), *[("noted::make", False)] * 2]
    assert found == [*once, ("array::exp", True), *once, ("array::exp", True), ("array::add", True)]
    own, caller, *_ = prof.events()[1].stack
    assert own == f"{__file__}({line}): model"
    assert caller.endswith(": test_lines_that_call_are_noted_of_outermost_calls")
    assert len(prof.events()[1].stack) <= 16
    with profile() as prof:
        model(X)
    assert not any(event.stack for event in prof.events())


def test_events_are_distinguished_by_lines():
    with profile(with_stack=True) as prof:
        ops.noted.make(X, 1)
        for _ in range(2):
            ops.noted.make(X, 1)
        ops.noted.outer(X)
    [everything] = [row for row in prof.key_averages() if row.key == "noted::make"]
    assert everything.count == 5
    assert everything.stack == ()
    rows = [row for row in prof.key_averages(group_by_stack_n=1) if row.key == "noted::make"]
    assert [row.count for row in rows] == [1, 2, 2]
    assert [len(row.stack) for row in rows] == [1, 1, 0]  # the last ones are in another call
    table = prof.key_averages(group_by_stack_n=3).table()
    assert "Source Location" in table
    assert (
        f"{HERE}({test_events_are_distinguished_by_lines.__code__.co_firstlineno + 2}): " in table
    )
    assert "Source Location" not in prof.key_averages().table()


def test_a_trace_has_what_was_noted(tmp_path):
    with profile(with_stack=True, profile_memory=True) as prof:
        ops.noted.make(X, 2)
    prof.export_chrome_trace(tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    [args] = [event["args"] for event in events if event["name"] == "noted::make"]
    assert args["Result bytes"] == 16
    assert args["Call stack"].splitlines()[0].startswith(__file__)


# -- steps ---------------------------------------------------------------------------------------


def test_steps_are_recorded_as_the_schedule_says():
    seen = []

    def ready(prof):
        names = [event.name for event in prof.events()]
        seen.append((prof.step_num, names, prof.key_grid().count("noted::make", "CPU")))

    with profile(
        schedule=schedule(wait=1, warmup=1, active=2, repeat=2), on_trace_ready=ready
    ) as prof:
        for step in range(10):
            assert (LOCAL_STATE.get() is DEFAULT_STATE) == (step in (0, 4, 8, 9))
            ops.noted.make(X, step)
            prof.step()
    one = ["ProfilerStep#2", "noted::make", "ProfilerStep#3", "noted::make"]
    two = ["ProfilerStep#6", "noted::make", "ProfilerStep#7", "noted::make"]
    assert seen == [(4, one, 2), (8, two, 2)]
    assert [event.name for event in prof.events()] == two  # the last cycle stays
    assert prof.events()[1].cpu_parent is prof.events()[0]
    assert prof.events()[0].cpu_time_total >= prof.events()[1].cpu_time_total
    assert LOCAL_STATE.get() is DEFAULT_STATE


def test_a_block_may_end_within_a_cycle():
    seen = []
    for steps, expected in ((1, 0), (2, 1), (3, 1), (4, 1), (5, 1)):
        cycle = schedule(wait=1, warmup=1, active=2, repeat=1)
        with profile(schedule=cycle, on_trace_ready=seen.append) as prof:
            for _ in range(steps):
                ops.noted.make(X, 1)
                prof.step()
        assert len(seen) == expected, steps
        if expected:
            assert seen == [prof]
            assert len(prof.events()) in (1, 3, 4)
        else:
            with pytest.raises(ArgumentError, match="has not recorded anything"):
                prof.events()
        seen.clear()
    with pytest.raises(ZeroDivisionError), profile(on_trace_ready=seen.append) as prof:
        1 / 0  # noqa: B018
    assert seen == [prof]


def test_steps_without_a_schedule_are_not_recorded_separately():
    with profile() as prof:
        for _ in range(2):
            ops.noted.make(X, 1)
            prof.step()
    assert [event.name for event in prof.events()] == ["noted::make"] * 2
    assert prof.step_num == 2
    with prof:
        pass
    assert prof.step_num == 0
    assert prof.events() == []


def test_a_schedule_of_ones_own():
    seen = []
    actions = [ProfilerAction[name] for name in ("RECORD", "WARMUP", "NONE", "RECORD_AND_SAVE")]
    with profile(
        schedule=lambda step: actions[step % 4],
        on_trace_ready=lambda prof: seen.append([event.name for event in prof.events()]),
    ) as prof:
        for _ in range(5):
            prof.step()
    assert seen == [["ProfilerStep#3"]]
    with pytest.raises(ArgumentError, match="returned 'RECORD' for step 0; expected a Profiler"):
        profile(schedule=lambda step: "RECORD").start()
    assert LOCAL_STATE.get() is DEFAULT_STATE


def test_steps_begin_where_the_profile_does():
    for block in (inference_mode, record_function):
        with profile(schedule=lambda step: ProfilerAction.RECORD) as prof:
            argument = ("name",) if block is record_function else ()
            with block(*argument):
                with pytest.raises(ArgumentError, match="within a nested block"):
                    prof.step()
                ops.noted.make(X, 1)
            with no_grad():  # switches no key
                prof.step()
            ops.noted.make(X, 1)
        assert [e.name for e in prof.events() if e.kind == "operator"] == ["noted::make"] * 2
    with pytest.raises(ArgumentError, match="outside the block of the profile"):
        prof.step()
    with pytest.raises(ArgumentError, match="is not recording"):
        prof.stop()
    assert LOCAL_STATE.get() is DEFAULT_STATE


def test_a_profile_with_steps_within_another_one():
    with (
        profile() as outer,
        profile(schedule=schedule(wait=1, warmup=0, active=1)) as inner,
    ):
        for _ in range(2):
            ops.noted.make(X, 1)
            inner.step()
    assert [event.name for event in outer.events()] == [
        "noted::make",
        "ProfilerStep#1",
        "noted::make",
    ]
    assert [event.name for event in inner.events()] == ["ProfilerStep#1", "noted::make"]


@pytest.mark.parametrize(
    "numbers",
    [
        {"wait": -1, "warmup": 0, "active": 1},
        {"wait": 0, "warmup": 0, "active": 0},
        {"wait": 0, "warmup": 0, "active": 1, "repeat": -1},
        {"wait": 0, "warmup": 0, "active": 1, "skip_first": -1},
    ],
)
def test_a_schedule_has_an_active_step(numbers):
    with pytest.raises(ArgumentError, match="active=1 or more"):
        schedule(**numbers)


def test_profile_may_start_and_stop_across_other_blocks():
    running = profile()
    running.start()
    with autocast("cpu"):
        xp.exp(X)
        running.stop()
        assert is_autocast_enabled("cpu"), "the profile alone has ended"
        xp.sin(X)
    assert LOCAL_STATE.get() is DEFAULT_STATE
    assert [each.name for each in running.events()] == ["array::exp"]

    block, running = autocast("cpu"), profile()
    block.__enter__()
    running.start()
    block.__exit__(None, None, None)
    assert not is_autocast_enabled("cpu")
    xp.sin(X)
    running.stop()
    assert LOCAL_STATE.get() is DEFAULT_STATE
    assert [each.name for each in running.events()] == ["array::sin"]
