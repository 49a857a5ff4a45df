"""One client's largest calls do not keep the daemon from all others.

How long its event loop may stand still depends on the machine. What this looks for took seconds, or
a minute, on any.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from opdispatch_wire.calls import call_request
from opdispatch_wire.v1 import execution_pb2, remote_pb2, values_pb2
from tests.service.running_daemon import RunningDaemon
from tests.waits import join

pytestmark = pytest.mark.slow

LIBRARY = """
from opdispatch import Library

lib = Library("big", "DEF")
for kind in ("int", "float", "str", "Tensor", "int[]"):
    name = kind.strip("[]").lower() + "s" * kind.count("[")
    lib.define(f"{name}(Tensor x, {kind}[] values) -> int")
    lib.impl(name, lambda x, values: len(values), "CPU")
"""
X = np.arange(3.0)
# How long the loop may stand still, in times of `fixed_work`: a second, where that takes 0.1.
LONGEST = 10
ANSWERS = (grpc.StatusCode.OK, grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND)

Request = execution_pb2.CallRequest
One = values_pb2.Value


def of_list(operator: str, item: values_pb2.Value, count: int) -> Request:
    request = call_request(operator, [X], {})
    request.args.add().list.items.extend([item] * count)
    return request


def of_program(steps: int, references: int) -> Request:
    program = remote_pb2.Program()
    for _ in range(steps):
        step = program.steps.add(operator="big::nothing")
        for _ in range(references):
            step.args.add().reference.input = 0
    request = call_request("", [X], {})
    request.program = program.SerializeToString()
    return request


def of_arguments(count: int) -> Request:
    request = call_request("big::int", [X], {})
    for i in range(count):
        request.kwargs[f"argument_{i}"].integer = i
    return request


def of_inputs(count: int) -> Request:
    request = of_program(1, 1)
    request.args.extend([request.args[0]] * (count - 1))
    return request


def nested(count: int) -> Request:
    value = One(integer=1)
    for _ in range(30):
        outer = One()
        outer.list.items.append(value)
        value = outer
    return of_list("big::ints", value, count)


CALLS: dict[str, Callable[[], Request]] = {
    "packed integers": lambda: call_request("big::int", [X, [1] * 4_000_000], {}),
    "packed floats": lambda: call_request("big::float", [X, [0.5] * 4_000_000], {}),
    "integers": lambda: of_list("big::int", One(integer=1), 100_000),
    "too many integers": lambda: of_list("big::int", One(integer=1), 5_000_000),
    "texts": lambda: of_list("big::str", One(text="abc"), 100_000),
    "tensors": lambda: call_request("big::tensor", [X, [X] * 50_000], {}),
    "too many tensors": lambda: of_list("big::tensor", call_request("", [X], {}).args[0], 300_000),
    "one large tensor": lambda: call_request("big::tensor", [X, [np.zeros(6_000_000)]], {}),
    "lists in lists": lambda: nested(20_000),
    "arguments": lambda: of_arguments(300_000),
    "a name": lambda: Request(operator="big::" + "a" * 4_000_000),
    "a program": lambda: of_program(10_000, 50),
    "inputs of a program": lambda: of_inputs(9_000),
}
UNKNOWN_FIELDS = b"\xf8\x3f\x01" * 15_000_000


def fixed_work() -> float:
    """Return how long this machine, and what else it does, takes for some work, in seconds."""
    began = time.monotonic()
    sum(number % 7 for number in range(1_500_000))
    return time.monotonic() - began


class Onlooker:
    """A client that asks for the daemon's health again and again.

    Often enough to see what takes a second, and not so often that it takes a core to answer.
    """

    def __init__(self, target: str) -> None:
        self._channel = grpc.insecure_channel(target)
        self._ends = threading.Event()
        self.longest = 0.0
        self._thread = threading.Thread(target=self._ask)
        self._thread.start()

    def _ask(self) -> None:
        health = health_pb2_grpc.HealthStub(self._channel)
        while not self._ends.wait(0.005):
            began = time.monotonic()
            health.Check(health_pb2.HealthCheckRequest(), timeout=60)
            self.longest = max(self.longest, time.monotonic() - began)

    def stop(self) -> None:
        self._ends.set()
        join(self._thread)
        self._channel.close()


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder: Path = tmp_path_factory.mktemp("loop")
    daemon = RunningDaemon(folder, workers=1)
    try:
        daemon.wait_until_ready()
        (folder / "big.py").write_text(LIBRARY)
        with daemon.connect() as session:
            session.load(folder / "big.py")
        yield daemon.address.replace("unix://", "unix:")
    finally:
        daemon.clean_up()


@pytest.mark.parametrize("name", [*CALLS, "unknown fields"])
def test_others_are_served_during_a_large_call(target: str, name: str):
    data = UNKNOWN_FIELDS if name == "unknown fields" else bytes(CALLS[name]().SerializeToString())
    options = [("grpc.max_send_message_length", -1)]
    before = fixed_work()
    onlooker = Onlooker(target)
    try:
        with grpc.insecure_channel(target, options=options) as channel:
            call = channel.unary_unary("/opdispatch.v1.ExecutionService/Call")
            code = call.future(data, timeout=60).code()
    finally:
        onlooker.stop()
    assert code in ANSWERS
    assert onlooker.longest < LONGEST * max(0.1, before, fixed_work())
