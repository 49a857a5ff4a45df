"""The profiler: which events there are, what is in what, and that times add up."""

import asyncio
import contextvars
import threading
import time

import numpy as np
import pytest

from opdispatch import (
    ArgumentError,
    DispatchKey,
    ExcludeDispatchKeyGuard,
    FlopCounterMode,
    Library,
    LoggingMode,
    Tensor,
    capture_dispatch_trace,
    no_grad,
    ops,
    profile,
    record_function,
    register_flop_formula,
)
from opdispatch import array_api as xp
from opdispatch.dispatch.inspection import UNOBSERVED_OPERATORS
from opdispatch.local_state.local_dispatch_key_set import DEFAULT_STATE, LOCAL_STATE
from opdispatch.profiler.function_events import FunctionEvent
from opdispatch.profiler.recorder import Process
from tests.waits import LONGEST_WAIT, join

X = np.ones((2, 3), np.float32)


@pytest.fixture(scope="module", autouse=True)
def library():
    with Library("prof", "DEF") as lib:
        lib.define("leaf(Tensor x) -> Tensor")
        lib.impl("leaf", lambda x: x + 1, "CPU")
        lib.define("twice(Tensor x, int n=2, *, Tensor? bias=None) -> Tensor")
        lib.impl("twice", twice, "CPU")
        lib.define("fails(Tensor x) -> Tensor")
        lib.impl("fails", fails, "CPU")
        lib.define("sleeps(Tensor x) -> Tensor")
        lib.impl("sleeps", sleeps, "CPU")
        lib.define("pair(Tensor x) -> (Tensor, Tensor)")
        lib.impl("pair", lambda x: (x, x), "CPU")
        yield lib


def twice(x, n=2, *, bias=None):
    for _ in range(n):
        x = ops.prof.leaf(x)
    return x


def fails(x):
    ops.prof.leaf(x)
    raise ValueError("no")


def sleeps(x):
    time.sleep(0.002)
    return ops.prof.leaf(x)


def tree(prof):
    """The events as pairs of depth and name."""

    def depth(event):
        return 0 if event.cpu_parent is None else 1 + depth(event.cpu_parent)

    return [(depth(event), event.name) for event in prof.events()]


def check_sums(prof):
    """Check the sums of a profile without tasks and threads that overlap."""
    for event in prof.events():
        below = sum(child.end_ns - child.begin_ns for child in event.cpu_children)
        assert event.self_ns + below == event.end_ns - event.begin_ns
        assert event.self_ns >= 0
        for child in event.cpu_children:
            assert event.begin_ns <= child.begin_ns <= child.end_ns <= event.end_ns
    averages = prof.key_averages()
    assert sum(row.count for row in averages) == len(prof.events())
    roots = sum(event.cpu_time_total for event in prof.events() if event.cpu_parent is None)
    assert averages.self_cpu_time_total == pytest.approx(roots)
    assert averages.total_average().count == len(prof.events())


# -- events --------------------------------------------------------------------------------------


def test_calls_are_events_in_the_calls_that_made_them():
    with profile() as prof:
        ops.prof.twice(X, 2)
        ops.prof.leaf(X)
    expected = [(0, "prof::twice"), (1, "prof::leaf"), (1, "prof::leaf"), (0, "prof::leaf")]
    assert tree(prof) == expected
    check_sums(prof)
    counts = {row.key: row.count for row in prof.key_averages()}
    assert counts == {"prof::twice": 1, "prof::leaf": 3}


def test_a_boxed_call_is_an_event_too():
    with profile(record_shapes=True) as prof:
        stack = [X, 1, None]
        ops.prof.twice.default.call_boxed(stack)
        ops.prof.twice.default.call_boxed_for_dispatch_key(DispatchKey.CPU, [X, 0, None])
    assert tree(prof) == [(0, "prof::twice"), (1, "prof::leaf"), (0, "prof::twice")]
    assert np.array_equal(stack[0], X + 1)


def test_redispatches_belong_to_their_call():
    op = ops.prof.leaf.default
    with profile() as prof:
        xp.exp(Tensor(X, requires_grad=True))
        op.redispatch(op.dispatch_keys([X]), X)
        op.redispatch_boxed(op.dispatch_keys([X]), [X])
    assert tree(prof) == [(0, "array::exp")]


def test_backward_pass_has_events():
    x = Tensor(X, requires_grad=True)
    y = xp.sum(x * 2)
    with profile() as prof:
        y.backward()
    names = [name for depth, name in tree(prof) if depth == 0]
    steps = [name for name in names if name.startswith("autograd::engine::evaluate_function: ")]
    assert [name.partition(": ")[2] for name in steps] == [
        "SumBackward",
        "MultiplyBackward",
        "AccumulateGrad",
    ]
    multiply = next(event for event in prof.events() if event.name == "array::multiply")
    assert multiply.cpu_parent.name.endswith("MultiplyBackward")
    assert multiply.cpu_parent.kind == "backward"
    check_sums(prof)


def test_operators_that_are_not_observed_are_no_events():
    name = "profiler::_record_function_exit"
    assert name in UNOBSERVED_OPERATORS
    with Library("profiler", "FRAGMENT") as lib:
        lib.define("_record_function_exit(Tensor x) -> Tensor")
        lib.impl("_record_function_exit", lambda x: ops.prof.leaf(x), "CPU")
        with profile() as outer, record_function("around"), profile() as prof:
            ops.profiler._record_function_exit(X)
    assert tree(prof) == [(0, "prof::leaf")]
    assert tree(outer) == [(0, "around"), (1, "prof::leaf")]
    assert prof.key_grid().count(name, "CPU") == 1


def test_a_call_that_fails_is_an_event_and_leaves_nothing_behind():
    with profile() as prof:
        with pytest.raises(ValueError, match="no"):
            ops.prof.fails(X)
        with pytest.raises(ArgumentError):
            ops.prof.leaf(X, X)
        ops.prof.leaf(X)
    assert tree(prof) == [(0, "prof::fails"), (1, "prof::leaf"), (0, "prof::leaf")]
    assert [event.failed for event in prof.events()] == [True, False, False]
    assert LOCAL_STATE.get() is DEFAULT_STATE


def test_guards_and_modes_inside_keep_the_profile():
    with profile() as prof:
        with no_grad(), ExcludeDispatchKeyGuard(DispatchKey.AutogradCPU):
            ops.prof.leaf(X)
        with LoggingMode(lambda line: None):
            ops.prof.leaf(X)
    # A mode that calls the operator makes a call of it within the call, as in PyTorch.
    assert tree(prof)[0] == (0, "prof::leaf")
    assert len(prof.events()) == 2
    check_sums(prof)


def test_a_trace_inside_or_outside_gets_its_lines():
    with capture_dispatch_trace() as outside, profile() as prof, capture_dispatch_trace() as inside:
        ops.prof.twice(X, 1)
    assert list(map(str, inside)) == [
        "[call] op=[prof::twice], key=[CPU]",
        " [call] op=[prof::leaf], key=[CPU]",
    ]
    assert outside == []  # as where the inner block is one of traces alone
    with capture_dispatch_trace() as outside, profile() as prof:
        ops.prof.twice(X, 1)
    assert outside == inside
    assert prof.key_grid().count("prof::leaf", "CPU") == 1


def test_time_of_its_own_is_what_no_call_below_took():
    with profile() as prof:
        ops.prof.sleeps(X)
    sleeping, leaf = prof.events()
    assert sleeping.self_cpu_time_total >= 2000
    assert sleeping.cpu_time_total == pytest.approx(
        sleeping.self_cpu_time_total + leaf.cpu_time_total
    )
    assert leaf.time_range.start >= sleeping.time_range.start
    assert sleeping.time_range.elapsed_us() == pytest.approx(sleeping.cpu_time_total)


def test_children_that_overlap_are_not_subtracted_twice():
    process = Process("p", 1, "")

    def event(begin, end):
        return FunctionEvent(0, "e", "user", process, 1, begin, end)

    parent = event(0, 100)
    parent.cpu_children = [event(10, 50), event(40, 60), event(45, 55), event(90, 130)]
    assert parent.self_ns == 100 - (60 - 10) - (100 - 90)


# -- ranges --------------------------------------------------------------------------------------


def test_record_function_is_a_range():
    @record_function("step")
    def step(n):
        return step(n - 1) if n else ops.prof.leaf(X)

    step(0)  # where no profile is on, it does nothing
    with profile() as prof:
        with record_function("all"):
            step(1)
        with pytest.raises(ZeroDivisionError), record_function("bad"):
            1 / 0  # noqa: B018
    expected = [(0, "all"), (1, "step"), (2, "step"), (3, "prof::leaf"), (0, "bad")]
    assert tree(prof) == expected
    assert prof.events()[0].kind == "user"
    assert prof.events()[-1].failed
    check_sums(prof)


def test_record_function_wants_a_name():
    with pytest.raises(ArgumentError, match="takes a name, not function"):
        record_function(lambda: None)


# -- whose calls ---------------------------------------------------------------------------------


def test_threads_have_their_own_unless_they_run_in_a_copy_of_the_context():
    def work():
        ops.prof.leaf(X)

    with profile() as prof, record_function("outer"):
        apart = threading.Thread(target=work)
        together = threading.Thread(target=contextvars.copy_context().run, args=(work,))
        for thread in (apart, together):
            thread.start()
            join(thread)
    assert tree(prof) == [(0, "outer"), (1, "prof::leaf")]
    outer, leaf = prof.events()
    assert outer.thread != leaf.thread


def test_tasks_are_in_what_began_them():
    async def one(name):
        with record_function(name):
            await asyncio.sleep(0.001)
            ops.prof.leaf(X)
            await asyncio.sleep(0.001)

    async def main():
        with record_function("both"):
            await asyncio.gather(one("a"), one("b"))

    with profile() as prof:
        asyncio.run(main())
    assert sorted(tree(prof)) == [
        (0, "both"),
        (1, "a"),
        (1, "b"),
        (2, "prof::leaf"),
        (2, "prof::leaf"),
    ]
    both = prof.events()[0]
    assert 0 <= both.self_ns < both.end_ns - both.begin_ns


def test_open_events_end_with_the_block():
    started, go_on = threading.Event(), threading.Event()

    def work():
        with record_function("late"):
            started.set()
            go_on.wait(LONGEST_WAIT)
        ops.prof.leaf(X)

    with profile() as prof:
        thread = threading.Thread(target=contextvars.copy_context().run, args=(work,))
        thread.start()
        started.wait(LONGEST_WAIT)
    [late] = prof.events()
    end = late.end_ns
    go_on.set()
    join(thread)
    assert [event.name for event in prof.events()] == ["late"]
    assert late.end_ns == end >= late.begin_ns


def test_a_profile_within_another_takes_part_in_it():
    with profile() as outer:
        ops.prof.leaf(X)
        with profile() as inner:
            ops.prof.twice(X, 1)
        ops.prof.leaf(X)
    assert tree(inner) == [(0, "prof::twice"), (1, "prof::leaf")]
    assert tree(outer) == [(0, "prof::leaf"), *tree(inner), (0, "prof::leaf")]
    assert outer.key_grid().total() == 4
    assert inner.key_grid().total() == 2
    for prof in (inner, outer):
        check_sums(prof)


# -- what is noted of an event -------------------------------------------------------------------


def test_shapes_of_all_arguments_are_noted():
    with profile(record_shapes=True) as prof:
        ops.prof.twice(X, 1, bias=X[0])
        ops.prof.twice(X[:1], 0)
        ops.prof.twice(X[:1], n=0)
    assert prof.events()[0].input_shapes == ((2, 3), (), (3,))
    rows = prof.key_averages(group_by_input_shape=True)
    assert {(row.key, row.input_shapes): row.count for row in rows} == {
        ("prof::twice", ((2, 3), (), (3,))): 1,
        ("prof::leaf", ((2, 3),)): 1,
        ("prof::twice", ((1, 3), (), ())): 2,
    }
    assert "[[1, 3], [], []]" in rows.table()
    with profile() as prof:
        ops.prof.leaf(X)
    assert prof.events()[0].input_shapes == ()


def test_floating_point_operations_are_those_of_the_counter():
    def work():
        a = Tensor(np.ones((4, 5)), requires_grad=True)
        y = xp.sum(xp.exp(a @ xp.matrix_transpose(a)))
        y.backward()
        xp.linalg.svd(a.detach())

    counter = FlopCounterMode(display=False)
    with counter:
        work()
    with profile(with_flops=True) as prof:
        work()
    assert prof.key_averages().total_average().flops == counter.get_total_flops() > 0
    counted = {row.key: row.flops for row in prof.key_averages() if row.flops}
    assert counted == {name: n for name, n in counter.get_flop_counts().items() if n}


def test_operations_of_a_formula_are_not_counted_again_below():
    @register_flop_formula("prof::twice")
    def formula(x, n=2, *, bias=None, out_shape):
        return 1000 * n + len(out_shape)

    @register_flop_formula("prof::leaf")
    def of_leaf(x, *, out_shape):
        return 1

    with profile(with_flops=True) as prof:
        ops.prof.twice(X)
        ops.prof.leaf(X)
    assert [event.flops for event in prof.events()] == [2002, None, None, 1]


def test_the_grid_has_every_visit():
    with profile() as prof, capture_dispatch_trace() as lines:
        pass
    assert prof.key_grid().total() == 0
    assert str(prof.key_grid()) == "operator"
    x = Tensor(X, requires_grad=True)
    with profile() as prof:
        xp.exp(x)
        xp.exp(x)
        ops.prof.leaf(X)
    with capture_dispatch_trace() as lines:
        xp.exp(x)
    grid = prof.key_grid()
    assert grid.total() == 2 * len(lines) + 1
    assert grid.keys == ["AutogradCPU", "CPU"]
    assert str(grid).splitlines() == [
        "operator    AutogradCPU  CPU",
        "array::exp            2    2",
        "prof::leaf                 1",
    ]
    with profile(record_keys=False) as prof:
        xp.exp(x)
    assert prof.key_grid().total() == 0
    assert len(prof.events()) == 1


def test_events_beyond_the_limit_are_counted():
    with profile(max_events=2) as prof:
        ops.prof.twice(X, 3)
    assert tree(prof) == [(0, "prof::twice"), (1, "prof::leaf")]
    assert prof.dropped == 2
    assert prof.key_averages().table().endswith("Events that were dropped: 2")
    assert prof.key_grid().count("prof::leaf", "CPU") == 3
    with pytest.raises(ArgumentError, match="max_events=0; expected a positive int"):
        profile(max_events=0)


# -- the table and the states of a profile -------------------------------------------------------


def test_the_table_is_sorted_and_shortened():
    with profile() as prof:
        ops.prof.sleeps(X)
        for _ in range(3):
            ops.prof.leaf(X)
    averages = prof.key_averages()
    lines = averages.table(sort_by="self_cpu_time_total").splitlines()
    assert lines[1].split("  ")[0] == "Name"
    assert lines[3].startswith("prof::sleeps")
    assert lines[-1].startswith("Self CPU time total: ")
    assert averages.table(sort_by="count").splitlines()[3].startswith("prof::leaf")
    short = averages.table(sort_by="count", row_limit=1, max_name_column_width=7)
    assert "\nprof..." in short
    assert "\n1 more rows\n" in short
    with pytest.raises(ArgumentError, match="not by 'cuda_time'"):
        averages.table(sort_by="cuda_time")


def test_a_profile_is_read_when_it_has_ended():
    prof = profile()
    with pytest.raises(ArgumentError, match="has not recorded anything"):
        prof.events()
    with pytest.raises(ArgumentError, match="not recording"):
        prof.stop()
    prof.start()
    with pytest.raises(ArgumentError, match="already recording"):
        prof.start()
    with pytest.raises(ArgumentError, match="still recording"):
        prof.key_averages()
    ops.prof.leaf(X)
    prof.stop()
    assert len(prof.events()) == 1
    with prof:
        pass
    assert prof.events() == []


def test_off_it_leaves_no_trace_in_compiled_calls():
    ops.prof.leaf(X)
    with profile():
        ops.prof.leaf(X)
    assert LOCAL_STATE.get() is DEFAULT_STATE
    op = ops.prof.leaf.default
    interpreted = []
    original = type(op).interpret_call

    def noting(self, args, kwargs):
        interpreted.append(self)
        return original(self, args, kwargs)

    type(op).interpret_call = noting
    try:
        op(X)
        with profile():
            op(X)
    finally:
        del type(op).interpret_call
    assert len(interpreted) == 1  # the one in the block
