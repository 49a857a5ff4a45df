"""Costs of a remote call on one machine, compared with a bare gRPC echo of as many bytes; how many
a second one client makes with 64 in flight; and what a hundred that depend on each other cost, one
by one and as a program.

The echo is grpcio's own asyncio server in another process, which returns what it is sent: the
floor of one hop. A call through the daemon has two: to the daemon, and on to the interpreter.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import grpc
import numpy as np
from rich.console import Console
from rich.table import Table

import opdispatch_client as oc
from opdispatch_client.endpoint import LaneChoice
from tests.bench.timing import median_seconds

LIBRARY = """
from opdispatch import Library

lib = Library("bench", "DEF")
lib.define("first(Tensor x, Tensor y) -> Tensor")
lib.define("add(Tensor x, Tensor y) -> Tensor")
lib.impl("first", lambda x, y: x, "CPU")
lib.impl("add", lambda x, y: x + y, "CPU")
"""

ECHO_SERVER = """
import asyncio, sys
import grpc

async def echo(request, context):
    return request

async def main():
    server = grpc.aio.server(options=[("grpc.max_receive_message_length", -1)])
    handler = grpc.unary_unary_rpc_method_handler(echo)
    service = grpc.method_handlers_generic_handler("Echo", {"Call": handler})
    server.add_generic_rpc_handlers((service,))
    server.add_insecure_port(sys.argv[1])
    await server.start()
    print("ready", flush=True)
    await server.wait_for_termination()

asyncio.run(main())
"""


@contextmanager
def running(*command: str) -> Iterator[None]:
    """A process that says on its stdout when it is ready."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        if not process.stdout.readline():
            sys.exit(f"{command[0]} did not start")
        yield
    finally:
        process.terminate()
        process.wait(timeout=10)


WARM_UP_CALLS = 30
IN_FLIGHT = 64
MANY_CALLS = 3000
MANY_ROUNDS = 9
STEPS = 100


class Stage:
    """A daemon with one interpreter, which holds the library, and the echo."""

    def __init__(self, stack: ExitStack, folder: Path) -> None:
        self._stack = stack
        self._daemon = f"unix://{folder}/daemon.sock"
        echo = f"unix:{folder}/echo.sock"
        opdispatch = str(Path(sys.executable).with_name("opdispatch"))
        serve = ("serve", "--listen", self._daemon, "--workers", "1")
        state = ("--state", str(folder / "state"), "--log-level", "error")
        stack.enter_context(running(opdispatch, *serve, *state))
        stack.enter_context(running(sys.executable, "-c", ECHO_SERVER, echo))
        (folder / "bench.py").write_text(LIBRARY)
        self.connect("auto").load(folder / "bench.py")
        channel = stack.enter_context(
            grpc.insecure_channel(echo, options=[("grpc.max_receive_message_length", -1)])
        )
        self.echo: Any = channel.unary_unary("/Echo/Call")

    def connect(self, lane: LaneChoice) -> oc.Session:
        """A session that takes that lane."""
        return self._stack.enter_context(oc.connect(self._daemon, lane=lane))


def contestants(stage: Stage, elements: int) -> dict[str, Callable[[], object]]:
    """The calls to time, of two float32 arrays of that many elements."""
    local, stream = stage.connect("local"), stage.connect("stream")
    x = np.ones(elements, np.float32)
    payload = x.tobytes() * 2
    return {
        "opdispatch, direct, local lane": lambda: local.call("bench::first", x, x),
        "opdispatch, through the daemon, gRPC stream": lambda: stream.call("bench::first", x, x),
        "bare gRPC echo": lambda: stage.echo(payload),
    }


def many_in_flight(stage: Stage) -> dict[str, Callable[[], None]]:
    """The contestants that make MANY_CALLS, of two arrays of 16 bytes."""
    x = np.ones(4, np.float32)
    payload = x.tobytes() * 2

    def over(lane: LaneChoice) -> Callable[[], None]:
        session = stage.connect(lane)
        return lambda: deque(
            session.map("bench::first", [(x, x)] * MANY_CALLS, in_flight=IN_FLIGHT), maxlen=0
        ).clear()

    def echo() -> None:
        under_way: deque[Any] = deque()
        for _ in range(MANY_CALLS):
            if len(under_way) == IN_FLIGHT:
                under_way.popleft().result()
            under_way.append(stage.echo.future(payload))
        for call in under_way:
            call.result()

    return {
        "opdispatch, direct, local lane": over("local"),
        "opdispatch, through the daemon, gRPC stream": over("stream"),
        "opdispatch, through the daemon, a gRPC request each": over("grpc"),
        "bare gRPC echo, a request each": echo,
    }


def calls_per_second(stage: Stage) -> dict[str, float]:
    """The median over rounds in which the contestants take turns, after one to warm up."""
    rivals = many_in_flight(stage)
    rates: dict[str, list[float]] = {}
    for round_number in range(MANY_ROUNDS + 1):
        for name, make_calls in rivals.items():
            start = time.perf_counter()
            make_calls()
            took = time.perf_counter() - start
            if round_number:
                rates.setdefault(name, []).append(MANY_CALLS / took)
    return {name: statistics.median(each) for name, each in rates.items()}


def dependent_calls(stage: Stage) -> dict[str, Callable[[], object]]:
    """A hundred additions of 16 bytes, each to the result of the one before."""
    session = stage.connect("local")
    x = session.put(np.ones(4, np.float32))
    payload = bytes(32)

    def one_by_one() -> object:
        value = x
        for _ in range(STEPS):
            value = session.call("bench::add", value, x, remote=True)
        return value.numpy()

    def recorded() -> object:
        with session.program() as p:
            value = p.ops.bench.add(x, x)
            for _ in range(STEPS - 1):
                value = p.ops.bench.add(value, x)
            p.output(value)
        return p.result

    @session.as_program
    def traced(value: Any, x: Any) -> Any:
        for _ in range(STEPS):
            value = session.ops.bench.add(value, x)
        return value

    return {
        "calls with remote tensors": one_by_one,
        "a program, recorded each time": recorded,
        "a program, traced once": lambda: traced(x, x),
        "bare gRPC echoes": lambda: [stage.echo(payload) for _ in range(STEPS)],
    }


def _table(title: str, *headings: str) -> Table:
    table = Table(title=title)
    for heading in headings:
        table.add_column(heading, justify="left" if heading == "call" else "right")
    return table


def main() -> None:
    """Time all and print the tables."""
    one = _table(
        "one remote call with two float32 arrays, blocking client",
        *("call", "bytes an array", "us", "x bare gRPC echo"),
    )
    many = _table(
        f"{IN_FLIGHT} calls in flight, one client process, arrays of 16 bytes",
        *("call", "calls a second", "x bare gRPC echo"),
    )
    chain = _table(
        f"{STEPS} dependent additions of 16 bytes, through the daemon, local lane",
        *("call", "us in all", "x bare gRPC echoes"),
    )
    with tempfile.TemporaryDirectory(prefix="od-bench-") as folder, ExitStack() as stack:
        stage = Stage(stack, Path(folder))
        for elements in (250_000, 4):
            calls = contestants(stage, elements)
            for call in calls.values():
                # The first ones are slow: timed, they would make rounds of a single call.
                for _ in range(WARM_UP_CALLS):
                    call()
            seconds = median_seconds(calls)
            for name, took in seconds.items():
                ratio = took / seconds["bare gRPC echo"]
                one.add_row(name, f"{elements * 4:,}", f"{took * 1e6:,.0f}", f"{ratio:.1f}")
        hundred = dependent_calls(stage)
        for call in hundred.values():
            call()
        seconds = median_seconds(hundred)
        for name, took in seconds.items():
            ratio = took / seconds["bare gRPC echoes"]
            chain.add_row(name, f"{took * 1e6:,.0f}", f"{ratio:.3f}")
        rates = calls_per_second(stage)
        for name, rate in rates.items():
            ratio = rate / rates["bare gRPC echo, a request each"]
            many.add_row(name, f"{rate:,.0f}", f"{ratio:.1f}")
    console = Console(width=100)
    console.print(one)
    console.print(chain)
    console.print(many)


if __name__ == "__main__":
    main()
