"""An interpreter's lane: what a call has brought goes when it has ended."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from opdispatch import DispatchKey, DispatchKeySet, default_dispatcher
from opdispatch_server.blame.fitness import Fitness
from opdispatch_server.blame.flight_record import FlightRecorder
from opdispatch_server.library_code.unpacked_libraries import UnpackedLibraries
from opdispatch_server.metrics.call_counts import CallCounts
from opdispatch_server.worker.execution.call_accounting import CallAccounting
from opdispatch_server.worker.execution.daemon_lane import DaemonLane
from opdispatch_server.worker.execution.kernel_error_log import KernelErrorLog
from opdispatch_server.worker.execution.kernels import KernelExecution
from opdispatch_server.worker.execution.programs import ProgramExecution
from opdispatch_server.worker.execution.slow_call_log import SlowCallLog
from opdispatch_server.worker.incoming import direct_calls
from opdispatch_server.worker.incoming.call_rules import CallRules, DaemonCalls
from opdispatch_server.worker.incoming.direct_calls import DirectCalls
from opdispatch_server.worker.incoming.kernel_lane import KernelLane
from opdispatch_server.worker.incoming.kernel_lanes import KernelLanes
from opdispatch_server.worker.incoming.lane_pace import patience_on
from opdispatch_server.worker.incoming.turn_watch import TurnWatch
from opdispatch_server.worker.libraries.instructions import InterpreterLibraries
from opdispatch_server.worker.values.device_exports import DeviceExports
from opdispatch_server.worker.values.peers import PeerValues
from opdispatch_server.worker.values.store import ValueStore
from opdispatch_wire.caller_tensors import CallerTensors
from opdispatch_wire.calls import call_request, returns_of_reply
from opdispatch_wire.chunks import CHUNK_BYTES
from opdispatch_wire.lanes import lane_socket
from opdispatch_wire.lanes.blocking_lane import BlockingLane
from opdispatch_wire.lanes.frame_writer import FrameWriter
from opdispatch_wire.lanes.lane_messages import LaneClosedError
from opdispatch_wire.message_size import MAX_MESSAGE_BYTES_HIGHEST
from opdispatch_wire.planned_requests import RequestForm
from opdispatch_wire.v1 import execution_pb2, interpreter_pb2
from tests.unit.lane_peer import LIMIT
from tests.waits import LONGEST_WAIT, accept, join

LOAD_ID = 7
PLACE = 2  # of the kernel: after the namespace, and the definition
FAILING_PLACE = PLACE + 2
QUICK_PLACE = PLACE + 4
# The thread that reads may not be back at it in each of them.
ROUNDS = 50
EPOCH = 7
X = np.zeros(2)
KEYS = DispatchKeySet(DispatchKey.CPU)
LIBRARY = b"""
import threading, weakref
from opdispatch import Library

max_concurrency = 2
was_released = threading.Event()
is_inside = threading.Event()
may_leave = threading.Event()

def fail(x):
    is_inside.set()
    may_leave.wait(60)
    raise ValueError("as it was asked to")

def size(x):
    frame = x
    while (base := getattr(frame, "obj", getattr(frame, "base", None))) is not None:
        frame = base
    weakref.finalize(frame, was_released.set)
    return x.size

lib = Library("kernel_lane", "DEF")
lib.define("size(Tensor x) -> int")
lib.impl("size", size, "CPU")
lib.define("fail(Tensor x) -> int")
lib.impl("fail", fail, "CPU")
lib.define("quick(Tensor x) -> int")
lib.impl("quick", lambda x: x.size, "CPU")
"""


DIGEST = hashlib.sha256(LIBRARY).hexdigest()


@pytest.fixture
def libraries(tmp_path: Path) -> Iterator[InterpreterLibraries]:
    with contextlib.closing(DaemonLane(f"unix:{tmp_path / 'daemon'}", LIMIT)) as daemon:
        unpacked = UnpackedLibraries(tmp_path / "unpacked")
        libraries = InterpreterLibraries(default_dispatcher(), daemon.kernel, unpacked)
        (upload := tmp_path / "upload").write_bytes(LIBRARY)
        stage = interpreter_pb2.Stage(
            load_id=LOAD_ID,
            name="kernel_lane",
            sha256=DIGEST,
            filename="kernel_lane.py",
            folder=str(unpacked.unpack(upload, DIGEST, "kernel_lane.py")),
        )
        libraries.obey(interpreter_pb2.DaemonMessage(stage=stage))
        commit = interpreter_pb2.Commit(load_id=LOAD_ID)
        libraries.obey(interpreter_pb2.DaemonMessage(commit=commit))
        yield libraries
        libraries.drop_all()


@pytest.fixture
def execution(libraries: InterpreterLibraries) -> Iterator[KernelExecution]:
    with contextlib.closing(PeerValues(LIMIT)) as peers:
        values = ValueStore()
        recorder = FlightRecorder()
        programs = ProgramExecution(
            libraries.dispatcher, values, peers, DeviceExports(), recorder, lambda: "here"
        )
        yield KernelExecution(
            libraries,
            lambda: "here",
            LIMIT,
            values,
            programs,
            recorder,
            Fitness(lambda: None),
            lambda error: None,
            KernelErrorLog(lambda: "here"),
            CallAccounting(CallCounts(), SlowCallLog(lambda: "here")),
        )


@pytest.fixture
def caller(execution: KernelExecution, tmp_path: Path) -> Iterator[BlockingLane]:
    """The calling side of a lane whose other side runs the kernels."""
    with calling(execution, DaemonCalls(ValueStore()), tmp_path) as caller:
        yield caller


@pytest.fixture
def direct_caller(
    execution: KernelExecution,
    libraries: InterpreterLibraries,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[BlockingLane]:
    """The same, of a client's: its calls are planned, and it shares no memory."""
    # On a busy machine, the loop may not run in time to show that it does.
    monkeypatch.setattr(direct_calls, "ATTENTION", LONGEST_WAIT)
    rules = direct_rules(libraries)
    is_attending, is_over = threading.Event(), threading.Event()

    async def attend() -> None:
        attending = asyncio.create_task(rules.attend(lambda run: asyncio.sleep(0)))
        await asyncio.sleep(0)
        is_attending.set()
        await asyncio.to_thread(is_over.wait)
        attending.cancel()

    thread = threading.Thread(target=lambda: asyncio.run(attend()))
    thread.start()
    assert is_attending.wait(LONGEST_WAIT)
    with calling(execution, rules, tmp_path) as caller:
        yield caller
    is_over.set()
    join(thread)


def direct_rules(libraries: InterpreterLibraries) -> DirectCalls:
    rules = DirectCalls(libraries, ValueStore())
    run = b"0123456789abcdef"
    rules.follow(
        interpreter_pb2.DirectCallRules(run=run, session=1, queue_calls=8, queue_bytes=LIMIT),
        "here",
    )
    rules.take(EPOCH)
    return rules


@contextlib.contextmanager
def calling(execution: KernelExecution, rules: CallRules, tmp_path: Path) -> Iterator[BlockingLane]:
    path = str(tmp_path / "lane")
    watch = TurnWatch()
    lanes: list[KernelLane] = []
    has_ended = threading.Event()

    def serve() -> None:
        connection = accept(listener)
        connection.setblocking(True)
        lane = KernelLane(
            connection, execution, rules, watch, LIMIT, 1, lambda lane: has_ended.set()
        )
        lanes.append(lane)
        lane.start()

    with contextlib.closing(lane_socket.listen(path)) as listener:
        accepting = threading.Thread(target=serve)
        accepting.start()
        with contextlib.closing(
            BlockingLane.connect(path, LIMIT, call_limit=MAX_MESSAGE_BYTES_HIGHEST)
        ) as caller:
            join(accepting)
            yield caller
    assert has_ended.wait(LONGEST_WAIT)
    watch.stop()


def call(lane: BlockingLane, *args: Any) -> Any:
    tensors = CallerTensors(lane.inline_bytes)
    request = call_request("kernel_lane::size", args, {}, memory=tensors)
    request.kernel.load_id, request.kernel.registration = LOAD_ID, PLACE
    request.kernel.dispatch_keys = KEYS.raw_repr()
    reply = lane.call(request, 30, "the call", tensors=tensors)
    return returns_of_reply(reply, args, {}, tensors)


def begin(lane: BlockingLane, form: RequestForm) -> Future[Any]:
    """Begin a planned call; the future has its reply."""
    future: Future[Any] = Future()
    lane.begin_plain(
        lambda number: form.write([X], LONGEST_WAIT, number),
        LONGEST_WAIT,
        future.set_result,
        lambda payload, place: None,
    )
    lane.flush()
    return future


def form_of(operator: str, place: int) -> RequestForm:
    request = call_request(f"kernel_lane::{operator}", (X,), {})
    request.kernel.load_id, request.kernel.registration = LOAD_ID, place
    request.kernel.dispatch_keys = KEYS.raw_repr()
    request.route_epoch = EPOCH
    form = RequestForm.of(request, (X,), {})
    assert form is not None
    return form


def test_error_of_a_slow_planned_call_comes_while_another_thread_reads(
    direct_caller: BlockingLane, libraries: InterpreterLibraries
):
    imported = libraries.get(LOAD_ID).imported
    assert imported is not None
    module = imported.main_module()
    failing, quick = form_of("fail", FAILING_PLACE), form_of("quick", QUICK_PLACE)
    module.may_leave.set()
    assert begin(direct_caller, failing).result(LONGEST_WAIT).HasField("error")  # is planned now
    for _ in range(ROUNDS):
        module.may_leave.clear()
        module.is_inside.clear()
        slow = begin(direct_caller, failing)
        assert module.is_inside.wait(LONGEST_WAIT)
        # Nothing comes after this one, for which its thread would look for frames to be written.
        assert not begin(direct_caller, quick).result(LONGEST_WAIT).HasField("error")
        module.may_leave.set()
        reply = slow.result(LONGEST_WAIT)
        assert isinstance(reply, execution_pb2.CallReply), reply


@pytest.mark.parametrize("is_planned", [False, True], ids=["general", "planned"])
def test_a_lane_that_cannot_reply_ends_its_turn(
    direct_caller: BlockingLane,
    execution: KernelExecution,
    libraries: InterpreterLibraries,
    monkeypatch: pytest.MonkeyPatch,
    is_planned: bool,
):
    quick = form_of("quick", QUICK_PLACE)
    if is_planned:
        assert not begin(direct_caller, quick).result(LONGEST_WAIT).HasField("error")

    def fail(*_: object, **__: object) -> None:
        raise MemoryError

    monkeypatch.setattr(execution, "serialize", fail)
    monkeypatch.setattr(FrameWriter, "write", fail)
    result = begin(direct_caller, quick).result(LONGEST_WAIT)
    assert isinstance(result, LaneClosedError), result
    assert libraries.get(LOAD_ID).turns.begin_at_once(1), "no other call runs"


def test_lanes_end_when_all_that_was_sent_has_its_reply(
    execution: KernelExecution, libraries: InterpreterLibraries, tmp_path: Path
):
    rules = direct_rules(libraries)
    lanes = KernelLanes(execution, rules, LIMIT)
    imported = libraries.get(LOAD_ID).imported
    assert imported is not None
    module = imported.main_module()
    path = str(tmp_path / "lane")

    async def end_lanes() -> None:
        lanes.listen(path)
        attending = asyncio.create_task(rules.attend(lambda run: asyncio.sleep(0)))
        lane = await asyncio.to_thread(BlockingLane.connect, path, LIMIT)
        with contextlib.closing(lane):
            running = begin(lane, form_of("fail", FAILING_PLACE))
            assert await asyncio.to_thread(module.is_inside.wait, LONGEST_WAIT)
            rules.take(0)  # as an interpreter does that is to end
            refused = [begin(lane, form_of("quick", QUICK_PLACE)) for _ in range(10)]
            finishing = asyncio.create_task(lanes.finish(LONGEST_WAIT))
            # Another thread reads these, and then the end, while the first one runs its kernel.
            for each in refused:
                await asyncio.wait_for(asyncio.wrap_future(each), LONGEST_WAIT)
            assert not running.done()
            module.may_leave.set()
            await asyncio.wait_for(asyncio.wrap_future(running), LONGEST_WAIT)
            assert "as it was asked to" in running.result().error.message
            assert all("never started" in each.result().error.message for each in refused)
            await asyncio.wait_for(finishing, LONGEST_WAIT)
        attending.cancel()

    asyncio.run(end_lanes())


def test_an_idle_lane_keeps_nothing_of_the_last_call(
    caller: BlockingLane, libraries: InterpreterLibraries
):
    assert call(caller, np.zeros(CHUNK_BYTES)) == [CHUNK_BYTES]
    imported = libraries.get(LOAD_ID).imported
    assert imported is not None
    assert imported.main_module().was_released.wait(LONGEST_WAIT), "the argument is still there"


def test_patience_grows_with_a_slow_machine_but_not_with_one_call_that_was_interrupted():
    assert patience_on(0.0) == patience_on(1e-6) == 0.005
    assert 0.005 < patience_on(1e-4) < 0.1
    assert patience_on(1.0) == 0.1  # the first call of a lane, during which others had the core
