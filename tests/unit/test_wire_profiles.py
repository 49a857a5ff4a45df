"""Profiles on their way: what is written is read, and what is hostile does no harm."""

import numpy as np
import pytest

from opdispatch import Library, ops, profile, record_function, register_flop_formula
from opdispatch.profiler.recorder import Place, Process, Recorder, Span, this_process
from opdispatch_wire.profiles import CallSpan, absorb_profile, profile_to_proto
from opdispatch_wire.v1 import execution_pb2, profile_pb2

X = np.ones((2, 3), np.float32)
WORKER = Process("worker-1", 77, this_process().machine)


@pytest.fixture(scope="module", autouse=True)
def library():
    register_flop_formula("wired::outer")(lambda x, *, out_shape: 7)
    with Library("wired", "DEF") as lib:
        lib.define("leaf(Tensor x) -> Tensor")
        lib.impl("leaf", lambda x: x, "CPU")
        lib.define("outer(Tensor x) -> Tensor")
        lib.impl("outer", lambda x: ops.wired.leaf(x), "CPU")
        yield lib


def recorded(**options):
    with profile(**options) as prof:
        ops.wired.outer(X)
        with pytest.raises(ZeroDivisionError), record_function("bad"):
            1 / 0  # noqa: B018
    return prof._recorder


def a_place():
    """A recorder, and a place in it that has ended, from 1000 to 2000."""
    recorder = Recorder(record_shapes=False, with_flops=False, record_keys=True)
    span = recorder.begin("rpc", "rpc", None)
    span.begin, span.end = 1000, 2000
    return Place(recorder, span)


def test_profile_round_trips():
    there = recorded(record_shapes=True, with_flops=True)
    message = profile_to_proto(there, WORKER)
    place = a_place()
    absorb_profile(place, profile_pb2.Profile.FromString(message.SerializeToString()))
    rpc, outer, leaf, bad = place.recorder.spans
    for span, original in zip((outer, leaf, bad), there.spans, strict=True):
        for field in ("name", "kind", "begin", "end", "thread", "failed"):
            assert getattr(span, field) == getattr(original, field)
        assert span.process == WORKER
    assert outer.parent is rpc
    assert leaf.parent is outer
    assert bad.parent is rpc
    assert outer.inputs == ((2, 3),)
    assert outer.flops == 7
    assert leaf.flops is None
    assert (
        place.recorder.visits
        == there.visits
        == {
            ("wired::outer", "CPU"): 1,
            ("wired::leaf", "CPU"): 1,
        }
    )


def test_a_request_asks_for_what_the_profiles_of_a_task_want():
    def asked():
        span = CallSpan.begin("x")
        request = execution_pb2.CallRequest()
        if span is not None:
            span.ask(request)
        return request.profile if request.HasField("profile") else None

    assert asked() is None
    with profile(record_keys=False):
        inner = asked()
        assert (inner.record_shapes, inner.with_flops, inner.record_keys) == (False,) * 3
        assert inner.max_events == 4096
        with profile(record_shapes=True, max_events=100):
            both = asked()
    assert (both.record_shapes, both.with_flops, both.record_keys) == (True, False, True)
    with profile(max_events=3):
        assert asked().max_events == 2


def test_events_come_to_every_profile_of_a_task():
    message = profile_to_proto(recorded(), WORKER)
    with profile() as outer, profile() as inner:
        span = CallSpan.begin("x")
        reply = execution_pb2.CallReply(profile=message)
        span.end(reply)
        span.end(reply)  # does nothing
    for prof in (outer, inner):
        names = sorted(event.name for event in prof.events())
        assert names == ["bad", "rpc x", "wired::leaf", "wired::outer"]


def test_a_profile_is_as_long_as_it_may_be():
    there = recorded()
    whole = profile_to_proto(there, WORKER)
    short = profile_to_proto(there, WORKER, max_bytes=whole.ByteSize() - 60)
    assert 0 < len(short.events) < len(whole.events)
    assert short.dropped == len(whole.events) - len(short.events)
    assert len(profile_to_proto(there, WORKER, max_bytes=10).events) == 0
    there.spans[0].name = "n" * 1000
    assert len(profile_to_proto(there, WORKER).events[0].name) == 256


def test_events_of_another_machine_are_moved_into_the_middle():
    elsewhere = Process("far", 5, "another machine")
    there = Recorder(record_shapes=False, with_flops=False, record_keys=False)
    first = Span("kernel", "operator", None, 1)
    first.begin, first.end = 10**15, 10**15 + 600
    inner = Span("inner", "operator", first, 1)
    inner.begin, inner.end = 10**15 + 100, 10**15 + 200
    there.spans += [first, inner]
    place = a_place()
    absorb_profile(place, profile_to_proto(there, elsewhere))
    _, kernel, inside = place.recorder.spans
    assert (kernel.begin, kernel.end) == (1200, 1800)
    assert (inside.begin, inside.end) == (1300, 1400)
    here = this_process().machine
    assert kernel.process == inside.process == Process("far (clock adjusted)", 5, here)


HOSTILE = {
    "a parent that is not there": {"parent": 9},
    "itself as its parent": {"parent": 1},
    "a process that is not there": {"process": 1000},
    "times at the end of time": {"begin": 2**64 - 1, "duration": 2**64 - 1},
    "a thread of any number": {"thread": 2**64 - 1},
    "no fields at all": {},
    "a strange kind": {"kind": "<script>", "name": "<script>\x00"},
}


@pytest.mark.parametrize("fields", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_profile_does_no_harm(fields, tmp_path):
    message = profile_pb2.Profile(dropped=2**64 - 1)
    message.events.add(**fields)
    message.visits.add(operator="", key="Nonsense", count=2**64 - 1)
    with profile() as prof:
        span = CallSpan.begin("x")
        span.end(execution_pb2.CallReply(profile=message))
    rpc, event = sorted(prof.events(), key=lambda event: event.name != "rpc x")
    assert event.cpu_parent is rpc
    assert rpc.self_ns >= 0
    assert prof.dropped == 2**64 - 1
    assert "Nonsense" in str(prof.key_grid())
    prof.key_averages().table(sort_by="cpu_time")
    prof.export_chrome_trace(tmp_path / "trace.json")
    prof.export_flame_chart(tmp_path / "flames.svg")


def test_there_is_no_room_for_more_events_than_the_profile_takes():
    message = profile_pb2.Profile()
    for _ in range(50):
        message.events.add(name="e", begin=1)
    with profile(max_events=4) as prof:
        span = CallSpan.begin("x")
        span.end(execution_pb2.CallReply(profile=message))
    assert len(prof.events()) == 4
    assert prof.dropped == 47
