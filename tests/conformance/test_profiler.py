"""The events of a profile beside PyTorch's: which there are, in which others, with which shapes.

Each side has the same operators, whose kernels call others as a plan says. Plans are random: calls,
ranges, modes, threads, calls that fail, tensors that require gradients.
"""

import json
import threading
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import opdispatch
from opdispatch import array_api as xp
from opdispatch.dispatch import inspection
from tests.waits import join

torch = pytest.importorskip("torch")
their_profiler = pytest.importorskip("torch.profiler")
CPU_ONLY = {"activities": [their_profiler.ProfilerActivity.CPU]}
TheirMode = pytest.importorskip("torch.utils._python_dispatch").TorchDispatchMode

SCHEMAS = {
    "leaf": "leaf(Tensor x) -> Tensor",
    "tree": "tree(Tensor x, str plan, *, Tensor? bias=None) -> Tensor",
    "sum": "sum.of_list(Tensor[] xs, float scale=1.0) -> Tensor",
    "make": "make(int n) -> Tensor",
    "fails": "fails(Tensor x) -> Tensor",
}


class PlannedError(Exception):
    """Raised by the operator ``fails``."""


class Side:
    """One of the two: its operators, and how to run a plan with them."""

    def __init__(self, package, library, ops, mode, profiler):
        self.ops, self.profiler, self.no_grad = ops, profiler, package.no_grad
        kernels = {
            "leaf": (lambda x: self.new(2), "CPU"),
            "tree": (self.tree, "CPU"),
            "sum.of_list": (lambda xs, scale=1.0: self.new(3), "CPU"),
            "make": (lambda n: self.new(n), "CompositeExplicitAutograd"),
            "fails": (self.fail, "CPU"),
        }
        for schema in SCHEMAS.values():
            library.define(schema)
        for name, (kernel, key) in kernels.items():
            library.impl(name, kernel, key)

        class Passing(mode):
            def __torch_dispatch__(self, func, types, args=(), kwargs=None):
                return func(*args, **(kwargs or {}))

        self.mode = Passing

    def fail(self, x):
        raise PlannedError

    def tree(self, x, plan, *, bias=None):
        self.run(json.loads(plan), x)
        return self.new(1)

    def run(self, plan, x):
        for what, inner in plan:
            if what == "leaf":
                self.ops.leaf(x)
            elif what == "sum":
                self.ops.sum([x, x], 2.0)
            elif what == "make":
                self.ops.make(2)
            elif what == "fails":
                with pytest.raises(PlannedError):
                    self.ops.fails(x)
            elif what == "tree":
                self.ops.tree(x, json.dumps(inner))
            elif what == "biased tree":
                self.ops.tree(x, json.dumps(inner), bias=x)
            elif what == "thread":
                thread = threading.Thread(target=self.run, args=(inner, x))
                thread.start()
                join(thread)
            else:
                block = {"range": self.range, "mode": self.mode, "no_grad": self.no_grad}[what]
                with block():
                    self.run(inner, x)

    def range(self):
        return self.profiler.record_function("range")

    def new(self, n):
        return self.plain((n,))


class Ours(Side):
    def plain(self, shape, requires_grad=False):
        return opdispatch.Tensor(np.ones(shape), requires_grad=requires_grad)


class Theirs(Side):
    def plain(self, shape, requires_grad=False):
        return torch.ones(shape, requires_grad=requires_grad)


@pytest.fixture(scope="module")
def sides():
    with opdispatch.Library("profiled", "DEF") as library:
        ours = Ours(
            opdispatch,
            library,
            opdispatch.ops.profiled,
            opdispatch.TorchDispatchMode,
            opdispatch,
        )
        their_library = torch.library.Library("profiled", "DEF")
        theirs = Theirs(torch, their_library, torch.ops.profiled, TheirMode, their_profiler)
        yield ours, theirs
        their_library._destroy()


def is_merged(event):
    """Whether PyTorch takes it for the same as the one that it is in: alone there, with its name.

    Of operators that does not happen here: their kernels make a tensor, too.
    """
    parent = event.cpu_parent
    return event.name == "range" == getattr(parent, "name", "") and len(parent.cpu_children) == 1


def events_of(prof):
    """The events that both have, in order, each with the place of the one it is in, and shapes."""
    kept = [
        event
        for event in sorted(prof.events(), key=lambda event: event.id)
        if event.name.startswith("profiled::") or event.name == "range"
        if not is_merged(event)
    ]

    def place_of_parent(event):
        parent = event.cpu_parent
        while parent is not None and parent not in kept:
            parent = parent.cpu_parent
        return kept.index(parent) if parent is not None else None

    return [
        (event.name, place_of_parent(event), [list(shape) for shape in event.input_shapes])
        for event in kept
    ]


def steps(inner):
    alone = st.sampled_from(["leaf", "sum", "make", "fails"]).map(lambda what: (what, []))
    kinds = ["tree", "biased tree", "range", "mode", "no_grad", "thread"]
    return st.lists(alone | st.tuples(st.sampled_from(kinds), inner), max_size=3)


PLANS = st.recursive(st.just([]), steps, max_leaves=6)


@settings(max_examples=30, deadline=None)
@given(plan=PLANS, requires_grad=st.booleans())
def test_the_events_are_those_of_pytorch(sides, plan, requires_grad):
    seen = []
    for side in sides:
        record = side.profiler.profile(record_shapes=True)
        with record as prof:
            side.run(plan, side.plain((2, 3), requires_grad))
        events = events_of(prof)
        seen.append(events)
        for by_shape in (False, True):
            expected = Counter((name, str(shapes) * by_shape) for name, _, shapes in events)
            rows = prof.key_averages(group_by_input_shape=by_shape)
            averages = {
                (row.key, str([list(shape) for shape in row.input_shapes]) * by_shape): row.count
                for row in rows
                if row.key.startswith("profiled::")
            }
            assert averages == {key: n for key, n in expected.items() if key[0] != "range"}
    ours, theirs = seen
    assert ours == theirs


def test_self_times_are_what_is_left_of_the_total_on_both_sides(sides):
    plan = [("range", [("tree", [("leaf", []), ("tree", [("leaf", [])])])])]
    for side in sides:
        with side.profiler.profile() as prof:
            side.run(plan, side.plain((2, 3)))
        for event in prof.events():
            below = sum(child.cpu_time_total for child in event.cpu_children)
            assert event.self_cpu_time_total == pytest.approx(
                event.cpu_time_total - below, abs=0.01
            )
        averages = prof.key_averages()
        assert averages.self_cpu_time_total == pytest.approx(
            sum(row.self_cpu_time_total for row in averages), abs=0.01
        )


def test_steps_of_the_backward_pass_are_events_on_both_sides():
    def program(array, side):
        x = array(np.ones((2, 3)))
        x.requires_grad = True
        with side.profile() as prof:
            ((x * 2) * x).sum().backward() if side is their_profiler else xp.sum(
                (x * 2) * x
            ).backward()
        prefix = "autograd::engine::evaluate_function: "
        names = [event.name.removeprefix(prefix) for event in prof.events() if prefix in event.name]
        return [name.removeprefix("torch::autograd::").removesuffix("0") for name in names]

    theirs = program(torch.from_numpy, their_profiler)
    ours = program(opdispatch.Tensor, opdispatch)
    assert [name.replace("Multiply", "Mul") for name in ours] == theirs


@settings(max_examples=50, deadline=None)
@given(
    numbers=st.fixed_dictionaries(
        {
            "wait": st.integers(0, 3),
            "warmup": st.integers(1, 2),
            "active": st.integers(1, 3),
            "repeat": st.integers(0, 2),
            "skip_first": st.integers(0, 2),
            "skip_first_wait": st.integers(0, 1),
        }
    )
)
def test_schedules_are_pytorchs(numbers):
    ours, theirs = opdispatch.profiler.schedule(**numbers), their_profiler.schedule(**numbers)
    assert [ours(n).name for n in range(25)] == [theirs(n).name for n in range(25)]


def test_memory_of_results_is_what_pytorchs_allocator_gives():
    """Of operators that take no other memory."""
    ours = opdispatch.Tensor(np.ones((100, 10)))
    theirs = torch.ones(100, 10, dtype=torch.float64)
    with opdispatch.profile(profile_memory=True) as one:
        xp.exp(ours)
        xp.permute_dims(ours, (1, 0))
        xp.concat([ours, ours])
        ours[0] = ours[1]
        xp.astype(ours, np.dtype("float32"))
    with their_profiler.profile(profile_memory=True, **CPU_ONLY) as other:
        torch.exp(theirs)
        torch.permute(theirs, (1, 0))
        torch.cat([theirs, theirs])
        theirs[0] = theirs[1]
        theirs.to(torch.float32)
    sizes = [event.result_bytes for event in one.events() if event.cpu_parent is None]
    outermost = [event for event in other.events() if event.cpu_parent is None]
    allocated = [max(event.cpu_memory_usage, 0) for event in outermost if "mem" not in event.name]
    assert [size for size in sizes if size] == [size for size in allocated if size]
    assert [size for size in sizes if size] == [8000, 16000, 4000]


def test_the_operators_that_are_not_observed_are_pytorchs():
    with their_profiler.profile() as prof:
        x = torch.ones(2)
        torch.ops.aten.size(x)
        torch.ops.aten.is_leaf(x)
        torch.ops.aten._version(x)
        torch.ops.aten.is_complex(x)
        torch.ops.aten.output_nr(x)
    assert not {event.name for event in prof.events()} & inspection.UNOBSERVED_OPERATORS
