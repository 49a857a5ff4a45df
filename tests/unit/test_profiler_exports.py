"""Exports of a profile: a trace for Perfetto, and a picture."""

import asyncio
import gzip
import json
import os
import threading
from collections import defaultdict
from contextvars import copy_context
from xml.etree import ElementTree

import numpy as np
import pytest

from opdispatch import Library, ops, profile, record_function
from opdispatch.profiler.chrome_trace import build_chrome_trace
from opdispatch.profiler.flame_chart import draw_flame_chart
from opdispatch.profiler.function_events import FunctionEvent
from opdispatch.profiler.recorder import Process
from tests.waits import join

X = np.ones((2, 3), np.float32)
HERE = Process("client", 10, "m")


@pytest.fixture(scope="module", autouse=True)
def library():
    with Library("exported", "DEF") as lib:
        lib.define("leaf(Tensor x) -> Tensor")
        lib.impl("leaf", lambda x: x + 1, "CPU")
        lib.define("twice(Tensor x) -> Tensor")
        lib.impl("twice", lambda x: ops.exported.leaf(ops.exported.leaf(x)), "CPU")
        yield lib


# The Trace Event format: the fields that each phase of an event must have, and their types.
COMMON = {"ph": str, "pid": int, "tid": int, "name": str}
TIMED = {**COMMON, "ts": float, "cat": str}
FIELDS = {
    "X": {**TIMED, "dur": float, "args": dict},
    "M": {**COMMON, "args": dict},
    "s": {**TIMED, "id": int},
    "f": {**TIMED, "id": int, "bp": str},
}
METADATA = {
    "process_name": ("name", str),
    "process_sort_index": ("sort_index", int),
    "thread_name": ("name", str),
    "thread_sort_index": ("sort_index", int),
}


def check_trace(trace):
    """That a viewer can show it: every field is there, and tracks have a name and nest."""
    assert isinstance(trace["traceEvents"], list)
    assert trace["displayTimeUnit"] in ("ms", "ns")
    tracks, named, arrows = defaultdict(list), set(), defaultdict(list)
    for event in trace["traceEvents"]:
        fields = FIELDS[event["ph"]]
        assert set(event) == set(fields), event
        for name, kind in fields.items():
            assert type(event[name]) is kind, (name, event)
        track = event["pid"], event["tid"]
        if event["ph"] == "M":
            name, kind = METADATA[event["name"]]
            assert type(event["args"][name]) is kind
            named.add((event["name"], *track))
        elif event["ph"] == "X":
            assert event["dur"] >= 0
            tracks[track].append((event["ts"], event["ts"] + event["dur"]))
        else:
            arrows[event["id"]].append((event["ph"], event["ts"], track))
    for (pid, tid), times in tracks.items():
        assert ("process_name", pid, 0) in named
        assert ("thread_name", pid, tid) in named
        open_ends = []
        for begin, end in times:  # written in order of their beginning
            while open_ends and open_ends[-1] <= begin:
                open_ends.pop()
            assert not open_ends or end <= open_ends[-1] + 1e-3, "neither nested nor apart"
            open_ends.append(end)
    for ends in arrows.values():
        assert [phase for phase, _, _ in ends] == ["s", "f"]
        assert all(track in tracks for _, _, track in ends)


def calls_of(trace):
    return [event for event in trace["traceEvents"] if event["ph"] == "X"]


def test_a_trace_is_valid_and_complete(tmp_path):
    with profile(record_shapes=True) as prof:
        with record_function("ünicode <&> \n"):
            ops.exported.twice(X)
        with pytest.raises(TypeError):
            ops.exported.leaf()
    prof.export_chrome_trace(tmp_path / "trace.json")
    prof.export_chrome_trace(str(tmp_path / "trace.json.gz"))
    text = (tmp_path / "trace.json").read_bytes()
    assert gzip.decompress((tmp_path / "trace.json.gz").read_bytes()) == text
    trace = json.loads(text)
    check_trace(trace)
    assert [(event["name"], event["cat"]) for event in calls_of(trace)] == [
        ("ünicode <&> \n", "user_annotation"),
        ("exported::twice", "cpu_op"),
        ("exported::leaf", "cpu_op"),
        ("exported::leaf", "cpu_op"),
    ]
    assert calls_of(trace)[1]["args"]["Input Dims"] == [[2, 3]]
    assert {event["pid"] for event in trace["traceEvents"]} == {os.getpid()}
    for written, event in zip(calls_of(trace), prof.events(), strict=True):
        assert written["dur"] == event.cpu_time_total


def test_an_empty_profile_has_an_empty_trace(tmp_path):
    with profile() as prof:
        pass
    prof.export_chrome_trace(tmp_path / "trace.json")
    check_trace(json.loads((tmp_path / "trace.json").read_text()))
    ElementTree.fromstring(draw_flame_chart([], 100))


def test_tasks_that_overlap_have_tracks_of_their_own(tmp_path):
    async def one(name):
        with record_function(name):
            await asyncio.sleep(0.001)
            ops.exported.leaf(X)
            await asyncio.sleep(0.001)

    async def main():
        await asyncio.gather(*(one(name) for name in "abc"))

    with profile() as prof:
        asyncio.run(main())
        thread = threading.Thread(target=copy_context().run, args=(ops.exported.leaf, X))
        thread.start()
        join(thread)
    prof.export_chrome_trace(tmp_path / "trace.json")
    trace = json.loads((tmp_path / "trace.json").read_text())
    check_trace(trace)
    assert len(calls_of(trace)) == 7
    assert len({event["tid"] for event in calls_of(trace)}) == 4


def event(number, name, begin, end, process=HERE, parent=None, thread=7, **more):
    made = FunctionEvent(number, name, "operator", process, thread, begin, end, **more)
    if parent is not None:
        made.cpu_parent = parent
        parent.cpu_children.append(made)
    return made


def events_of_three_processes():
    first, other = Process("worker-1", 11, "m"), Process("worker-2", 11, "elsewhere")
    root = event(0, "rpc a::b", 0, 90_000)
    there = event(1, "a::b", 10_000, 80_000, first, root)
    below = event(2, "a::c", 20_000, 70_000, other, there, flops=12, failed=True)
    return [root, there, below]


def test_processes_are_rows_and_arrows_lead_from_one_to_the_other():
    trace = build_chrome_trace(events_of_three_processes(), {7: "MainThread"}, HERE, 3)
    check_trace(trace)
    names = {
        item["pid"]: item["args"]["name"]
        for item in trace["traceEvents"]
        if item["name"] == "process_name"
    }
    assert sorted(names.values()) == ["client", "worker-1", "worker-2"]  # of equal pids, too
    assert names[10] == "client"
    assert sum(item["ph"] == "s" for item in trace["traceEvents"]) == 2
    assert trace["droppedEvents"] == 3
    assert calls_of(trace)[2]["args"] == {"External id": 2, "flops": 12, "failed": True}


def test_the_picture_has_a_box_for_each_event(tmp_path):
    picture = draw_flame_chart(events_of_three_processes(), 500)
    root = ElementTree.fromstring(picture)
    space = "{http://www.w3.org/2000/svg}"
    boxes = root.findall(f"{space}g")
    assert [box.find(f"{space}title").text for box in boxes] == [
        "rpc a::b: 90.000us",
        "a::b: 70.000us",
        "a::c: 50.000us, failed",
    ]
    assert float(boxes[1].find(f"{space}rect").get("width")) == pytest.approx(498 * 7 / 9, abs=0.01)
    with profile() as prof, record_function("<a & b>"):
        ops.exported.twice(X)
    prof.export_flame_chart(tmp_path / "flames.svg")
    root = ElementTree.parse(tmp_path / "flames.svg").getroot()
    assert root.findall(f"{space}g/{space}title")[0].text.startswith("<a & b>: ")
    # What is called is below its caller, and what follows it beside it.
    tops = [int(box.get("y")) for box in root.findall(f"{space}g/{space}rect")]
    assert tops[0] < tops[1] < tops[2] == tops[3]
