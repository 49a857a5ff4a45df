"""Profiles of calls that travel: the client, the daemon and the interpreters in one picture."""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import opdispatch_client as oc
from opdispatch import profile, record_function
from opdispatch.profiler import FunctionEvent, schedule
from tests.service.running_daemon import RunningDaemon
from tests.unit.test_profiler_exports import calls_of, check_trace

X = np.ones((2, 3), np.float32)

LEAVES = """
import time
import opdispatch

lib = opdispatch.Library("leaves", "DEF")
lib.define("leaf(Tensor x, *, float seconds=0.0) -> Tensor")

def leaf(x, *, seconds=0.0):
    time.sleep(seconds)
    return x + 1

lib.impl("leaf", leaf, "CPU")
lib.define("fails(Tensor x) -> Tensor")
lib.impl("fails", lambda x: 1 / 0, "CPU")
"""

TREES = """
import opdispatch
from opdispatch import ops

lib = opdispatch.Library("trees", "DEF")
lib.define("tree(Tensor x) -> Tensor")

def tree(x):
    with opdispatch.record_function("two leaves"):
        return ops.leaves.leaf(ops.leaves.leaf(x), seconds=0.002)

lib.impl("tree", tree, "CPU")
lib.define("bush(Tensor x) -> Tensor")

def bush(x):
    for _ in range(4200):
        x = ops.trees.twig(x)
    return x

lib.impl("bush", bush, "CPU")
lib.define("twig(Tensor x) -> Tensor")
lib.impl("twig", lambda x: x, "CPU")
lib.define("storm(Tensor x) -> Tensor")
lib.impl("storm", lambda x: ops.leaves.fails(ops.trees.twig(x)), "CPU")
"""


FILTERS = """
import numpy as np
import opdispatch

lib = opdispatch.Library("filters", "DEF")
lib.define("smooth(Tensor x) -> Tensor")
lib.impl("smooth", lambda x: sum(np.roll(x, n, 0) for n in range(-3, 4)) / 7, "CPU")
"""

PICTURE = """
import opdispatch
import opdispatch.array_library
from opdispatch import array_api as xp, ops

lib = opdispatch.Library("picture", "DEF")
lib.define("edges(Tensor x) -> Tensor")

def edges(x):
    smooth = opdispatch.Tensor(ops.filters.smooth(x))
    with opdispatch.record_function("differences"):
        across, down = smooth - xp.roll(smooth, 1, axis=0), smooth - xp.roll(smooth, 1, axis=1)
    return xp.sqrt(across * across + down * down)

lib.impl("edges", edges, "CPU")
"""


@pytest.fixture(scope="module")
def forest(
    shared_daemon: RunningDaemon, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[oc.Session]:
    folder = tmp_path_factory.mktemp("forest")
    with shared_daemon.connect() as session:
        for name, text, worker in (
            ("leaves", LEAVES, "worker-1"),
            ("trees", TREES, "worker-2"),
            ("filters", FILTERS, "worker-1"),
            ("picture", PICTURE, "worker-2"),
        ):
            (folder / f"{name}.py").write_text(text)
            session.load(folder / f"{name}.py", on=worker)
        yield session


def tree(prof: profile) -> list[tuple[int, str, str]]:
    """The events with their depths and processes; this process is called "here"."""

    def depth(event: FunctionEvent) -> int:
        return 0 if event.cpu_parent is None else 1 + depth(event.cpu_parent)

    return [
        (depth(each), each.name, "here" if each.process.pid == os.getpid() else each.process.name)
        for each in prof.events()
    ]


def check_times(prof: profile) -> None:
    """All clocks are one: what is in a call is in its time, too."""
    for event in prof.events():
        assert event.begin_ns <= event.end_ns
        below = 0
        for child in event.cpu_children:
            assert event.begin_ns <= child.begin_ns <= child.end_ns <= event.end_ns
            below += child.end_ns - child.begin_ns
        assert event.self_ns + below == event.end_ns - event.begin_ns


THROUGH_THE_DAEMON = [
    (0, "rpc leaves::leaf", "here"),
    (1, "daemon leaves::leaf", "daemon"),
    (2, "queue leaves::leaf", "daemon"),
    (2, "leaves::leaf", "worker-1"),
]


def test_a_call_is_measured_in_every_process_that_has_a_part_in_it(
    shared_daemon: RunningDaemon, forest: oc.Session
):
    with shared_daemon.connect(direct=False) as session:
        with session.profile(record_shapes=True) as prof:
            result = session.ops.leaves.leaf(X, seconds=0.002)
        np.testing.assert_array_equal(result, X + 1)
    assert tree(prof) == THROUGH_THE_DAEMON
    check_times(prof)
    kernel = prof.events()[-1]
    assert kernel.self_cpu_time_total >= 2000
    assert kernel.input_shapes == ((2, 3), ())
    pids = {each.name: each.pid for each in forest.interpreters()}
    assert kernel.process.pid == pids["worker-1"]
    assert prof.events()[1].process.pid == shared_daemon.process.pid
    assert str(prof.key_grid()).splitlines() == ["operator      CPU", "leaves::leaf    1"]


def test_direct_calls_have_no_part_of_the_daemon(forest: oc.Session):
    forest.call("leaves::leaf", X)  # asks for the route
    forest.call("leaves::leaf", X)
    with forest.profile() as prof, record_function("both"):
        forest.call("leaves::leaf", X)
        assert forest.submit("leaves::leaf", X).result().shape == X.shape
    assert tree(prof) == [
        (0, "both", "here"),
        (1, "rpc leaves::leaf", "here"),
        (2, "leaves::leaf", "worker-1"),
        (1, "rpc leaves::leaf", "here"),
        (2, "leaves::leaf", "worker-1"),
    ]
    check_times(prof)
    counts = {(row.key, row.process): row.count for row in prof.key_averages()}
    assert counts["leaves::leaf", "worker-1"] == 2


def test_nested_calls_elsewhere_are_within_their_kernel(forest: oc.Session, tmp_path: Path):
    with forest.profile() as prof:
        forest.call("trees::tree", X)
    events = tree(prof)
    nested = [(name, process) for _, name, process in events if process.startswith("worker")]
    one = [("leaves::leaf", "worker-2"), ("rpc leaves::leaf", "worker-2")]
    assert nested == [
        ("trees::tree", "worker-2"),
        ("two leaves", "worker-2"),
        *[*one, ("leaves::leaf", "worker-1")],
        *[*one, ("leaves::leaf", "worker-1")],
    ]
    check_times(prof)
    grid = prof.key_grid()
    assert grid.count("trees::tree", "CPU") == 1
    assert grid.count("leaves::leaf", "CPU") == 4  # where it was called, and where it ran

    prof.export_chrome_trace(tmp_path / "trace.json")
    trace = json.loads((tmp_path / "trace.json").read_text())
    check_trace(trace)
    assert len(calls_of(trace)) == len(prof.events())
    rows = {
        item["args"]["name"]: item["pid"]
        for item in trace["traceEvents"]
        if item["name"] == "process_name"
    }
    assert {"daemon", "worker-1", "worker-2"} < set(rows)
    assert rows["worker-1"] != rows["worker-2"]
    assert sum(item["ph"] == "s" for item in trace["traceEvents"]) >= 5


def test_events_of_a_call_are_bounded(forest: oc.Session):
    with forest.profile() as prof:
        forest.call("trees::bush", X)
    names = [name for _, name, _ in tree(prof)]
    assert names.count("trees::twig") == 4095  # and the kernel itself
    assert prof.dropped == 4201 - 4096
    assert prof.key_grid().count("trees::twig", "CPU") == 4200
    with profile(max_events=10) as prof:
        forest.call("trees::bush", X)
    assert len(prof.events()) == 10
    assert prof.dropped >= 4192
    with profile(record_keys=False) as prof:
        forest.call("trees::tree", X)
    assert prof.key_grid().total() == 0


def failures(prof: profile) -> list[tuple[int, str, str, bool]]:
    events = zip(tree(prof), prof.events(), strict=True)
    return [(*where, event.failed) for where, event in events]


def test_a_call_that_fails_has_its_times_until_then(
    shared_daemon: RunningDaemon, forest: oc.Session
):
    with shared_daemon.connect(direct=False) as session, session.profile() as prof:
        with pytest.raises(oc.KernelError, match="division by zero"):
            session.call("trees::storm", X)
        with pytest.raises(oc.OperatorNotFoundError):
            session.call("leaves::nothing", X)
    check_times(prof)
    assert failures(prof) == [
        (0, "rpc trees::storm", "here", True),
        (1, "daemon trees::storm", "daemon", True),
        (2, "queue trees::storm", "daemon", False),
        (2, "trees::storm", "worker-2", True),
        (3, "trees::twig", "worker-2", False),
        (3, "leaves::fails", "worker-2", True),
        (4, "rpc leaves::fails", "worker-2", True),
        (5, "daemon leaves::fails", "daemon", True),
        (6, "queue leaves::fails", "daemon", False),
        (6, "leaves::fails", "worker-1", True),
        (0, "rpc leaves::nothing", "here", True),
        (1, "daemon leaves::nothing", "daemon", True),
    ]
    assert prof.key_grid().count("leaves::fails", "CPU") == 2
    with forest.profile() as prof, pytest.raises(oc.KernelError):
        forest.call("leaves::fails", X)  # the second time, if direct calls are made
    assert failures(prof)[-1][1:] == ("leaves::fails", "worker-1", True)


def test_a_call_without_a_reply_has_its_round_trip_alone(
    shared_daemon: RunningDaemon, forest: oc.Session
):
    hasty = forest.with_options(timeout=0.05)  # a session of that timeout may fail to connect
    with shared_daemon.connect(lane="grpc") as plain, forest.profile() as prof:
        with pytest.raises(oc.WireError):
            forest.call("leaves::leaf", object())
        with pytest.raises(oc.KernelError):
            plain.call("leaves::fails", X)  # a status of gRPC has no room for a profile
        with pytest.raises(oc.DeadlineExceededError):
            hasty.call("leaves::leaf", X, seconds=1.0)
    [unsent, plain_call, late] = [each for each in prof.events() if each.kind == "rpc"]
    assert unsent.failed
    assert not unsent.cpu_children
    assert plain_call.failed
    assert not plain_call.cpu_children
    assert late.failed
    assert 40_000 < late.cpu_time_total < 950_000


def test_memory_and_lines_of_calls_that_travel(forest: oc.Session):
    with forest.profile(profile_memory=True, with_stack=True) as prof:
        forest.call("trees::tree", X)
    call = prof.events()[0]
    assert call.name == "rpc trees::tree"
    assert call.stack[0].startswith(f"{__file__}(")
    assert call.stack[0].endswith(": test_memory_and_lines_of_calls_that_travel")
    kernels = [each for each in prof.events() if each.name == "leaves::leaf"]
    assert {each.result_bytes for each in kernels} == {X.nbytes}
    assert not any(each.stack for each in prof.events()[1:])  # lines of other processes


def test_steps_of_a_session(forest: oc.Session):
    steps = []

    def ready(prof: profile) -> None:
        steps.append([name for _, name, _ in tree(prof)])

    cycle = schedule(wait=1, warmup=0, active=1)
    with forest.profile(schedule=cycle, on_trace_ready=ready) as prof:
        for _ in range(4):
            forest.call("trees::twig", X)
            prof.step()
    for number, names in zip((1, 3), steps, strict=True):
        assert names[0] == f"ProfilerStep#{number}"
        assert "trees::twig" in names


def test_the_page_prints_such_a_table(
    forest: oc.Session, shared_daemon: RunningDaemon, capsys: pytest.CaptureFixture[str]
):
    """The program under "Calls that travel", with operators of those names."""
    text = (Path(__file__).parents[2] / "docs/profiler.md").read_text()
    program, shown = re.findall(
        r"```(?:python)?\n(.*?)```", text.partition("## Calls that travel")[2], re.DOTALL
    )[:2]
    names = {"picture": X}
    exec(
        program.replace("oc.connect()", f"oc.connect({shared_daemon.address!r})"),
        names,
    )
    printed = capsys.readouterr().out

    def facts(table: str) -> tuple[list[str], set[tuple[str, str, int]], str]:
        rows = [re.split(r"\s{2,}", line.strip()) for line in table.splitlines()]
        counted = {(row[0], row[1], int(row[-1])) for row in rows if row[-1].isdigit()}
        last = table.splitlines()[-1]
        return rows[1], counted, re.sub(r"[\d.]+[mu]?s", "", last)

    # Which of them are the eight that took longest is another thing on every machine.
    heads, counted, end = facts(printed)
    assert heads == facts(shown)[0]
    assert end == facts(shown)[2]
    assert len(counted) == 8
    everything = names["prof"].key_averages().table()
    here = Path(sys.argv[0]).name
    for name, process, count in facts(shown)[1]:
        assert (name, here if process == "run.py" else process, count) in facts(everything)[1]
    assert len(facts(everything)[1]) == 8 + int(re.search(r"(\d+) more rows", shown)[1])


def test_without_a_profile_nothing_is_asked_for(forest: oc.Session):
    with forest.profile():
        pass
    _, lines = forest.trace("leaves::leaf", X)
    assert len(lines) == 1
    with forest.profile() as prof:
        _, lines = forest.trace("trees::tree", X)
    assert [line.operator for line in lines] == ["trees::tree", "leaves::leaf", "leaves::leaf"]
    assert "leaves::leaf" in [name for _, name, _ in tree(prof)]


@pytest.mark.parametrize("lane", ["local", "stream", "grpc"])
def test_every_lane_carries_profiles(shared_daemon: RunningDaemon, forest: oc.Session, lane: str):
    with shared_daemon.connect(lane=lane, direct=False) as session, session.profile() as prof:
        session.call("leaves::leaf", X)
    assert tree(prof) == THROUGH_THE_DAEMON


def test_programs_and_remote_tensors_have_events(forest: oc.Session):
    with forest.profile() as prof:
        x = forest.put(X)
        y = forest.with_options(remote=True).call("leaves::leaf", x)
        np.testing.assert_array_equal(y.numpy(), X + 1)
    names = [(name, process) for _, name, process in tree(prof)]
    assert ("rpc array", "here") in names
    assert ("leaves::leaf", "worker-1") in names
    check_times(prof)


def test_tasks_of_an_asyncio_session_are_apart(shared_daemon: RunningDaemon, forest: oc.Session):
    async def main() -> profile:
        async with oc.aio.connect(shared_daemon.address, direct=False) as session:

            async def one(name: str) -> None:
                with record_function(name):
                    await session.call("leaves::leaf", X, seconds=0.02)

            with session.profile() as prof:
                await asyncio.gather(one("a"), one("b"))
            return prof

    prof = asyncio.run(main())
    for name in "ab":
        [root] = [event for event in prof.events() if event.name == name]
        [call] = root.cpu_children
        assert call.name == "rpc leaves::leaf"
        assert [event.name for event in call.cpu_children] == ["daemon leaves::leaf"]
    check_times(prof)
    # An interpreter runs one call of the library at a time: the other one has waited.
    waits = [each.cpu_time_total for each in prof.events() if each.kind == "queue"]
    assert max(waits) > 1000
