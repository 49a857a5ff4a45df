"""What a remote call costs on one machine, beside a bare gRPC echo of as many bytes.

The echo is grpcio's own asyncio server in another process, which returns what it is sent: the
floor of one hop. A call through the daemon has two: to the daemon, and on to the interpreter.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import grpc
import numpy as np
from rich.console import Console
from rich.table import Table

import opdispatch_client as oc
from tests.bench.timing import median_seconds

LIBRARY = """
from opdispatch import Library

lib = Library("bench", "DEF")
lib.define("first(Tensor x, Tensor y) -> Tensor")
lib.impl("first", lambda x, y: x, "CPU")
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


def contestants(stack: ExitStack, folder: Path, elements: int) -> dict[str, Callable[[], object]]:
    """The calls to time, of two float32 arrays of that many elements."""
    daemon, echo = f"unix://{folder}/daemon.sock", f"unix:{folder}/echo.sock"
    opdispatch = str(Path(sys.executable).with_name("opdispatch"))
    serve = ("serve", "--listen", daemon, "--workers", "1", "--state", str(folder / "state"))
    stack.enter_context(running(opdispatch, *serve, "--log-level", "error"))
    stack.enter_context(running(sys.executable, "-c", ECHO_SERVER, echo))
    session = stack.enter_context(oc.connect(daemon))
    (folder / "bench.py").write_text(LIBRARY)
    session.load(folder / "bench.py")
    channel = stack.enter_context(
        grpc.insecure_channel(echo, options=[("grpc.max_receive_message_length", -1)])
    )
    call = channel.unary_unary("/Echo/Call")
    x = np.ones(elements, np.float32)
    payload = x.tobytes() * 2
    return {
        "opdispatch, through the daemon": lambda: session.call("bench::first", x, x),
        "bare gRPC echo": lambda: call(payload),
    }


def main() -> None:
    """Times both and prints the table."""
    table = Table(title="one remote call with two float32 arrays, blocking client")
    for heading in ("call", "bytes an array", "us", "x bare gRPC echo"):
        table.add_column(heading, justify="left" if heading == "call" else "right")
    for elements in (4, 250_000):
        with tempfile.TemporaryDirectory(prefix="od-bench-") as folder, ExitStack() as stack:
            seconds = median_seconds(contestants(stack, Path(folder), elements))
        for name, took in seconds.items():
            ratio = took / seconds["bare gRPC echo"]
            table.add_row(name, f"{elements * 4:,}", f"{took * 1e6:,.0f}", f"{ratio:.1f}")
    Console(width=100).print(table)


if __name__ == "__main__":
    main()
