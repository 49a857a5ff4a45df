"""The cost of a call over gRPC streams, compared with a bare echo over such a stream: processor
time, and Python functions entered in each process.

All processes that take part are counted, and take turns: see ``processor_time``. The echo is
grpcio's own asyncio server in another process, which returns what it is sent: the floor of one hop.
A call through the daemon has two. Of the ways to wait for an echo the cheapest one is the floor.
"""

from __future__ import annotations

import asyncio
import json
import os
import queue
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import grpc
import numpy as np
from rich.console import Console
from rich.table import Table

import opdispatch_client as oc
from tests.bench.processor_time import Call, children_of, measured

ROUNDS = 7
CALLS = 300
COUNTED = 100
X = np.ones(4, np.float32)

LIBRARY = """
import asyncio
import gc
import json
import sys
from collections import Counter

from opdispatch import Library

names = Counter()
counts = False


def note(frame, event, _):
    if counts and event == "call":
        code = frame.f_code
        names[f"{code.co_filename}:{code.co_qualname}"] += 1


def add(x, y):
    if counts:
        sys.setprofile(note)
    return x + y


def count(on):
    global counts
    for each in gc.get_objects():
        if isinstance(each, asyncio.AbstractEventLoop) and each.is_running():
            each.call_soon_threadsafe(sys.setprofile, note if on else None)
    counts, found = on, json.dumps(names)
    names.clear()
    return found


lib = Library("bench", "DEF")
lib.define("add(Tensor x, Tensor y) -> Tensor")
lib.impl("add", add, "CPU")
lib.define("count(bool on) -> str")
lib.impl("count", count, "CompositeExplicitAutograd")
"""

ECHO_SERVER = Path(__file__).with_name("peers") / "grpc_echo_server.py"


class Entered:
    """Counts the functions that threads of this process enter, those started from now on, too."""

    def __init__(self) -> None:
        self.names: Counter[str] = Counter()
        self._counts = False

    def note(self, frame: FrameType, event: str, _: Any) -> None:
        """Count one; a function for ``sys.setprofile``."""
        if self._counts and event == "call":
            code = frame.f_code
            self.names[f"{code.co_filename}:{code.co_qualname}"] += 1

    def switch(self, *_: object) -> None:
        """Begin to count, or stop."""
        self._counts = not self._counts
        sys.setprofile(self.note if self._counts else None)


def serve(file: str, arguments: list[str]) -> int:
    """Serve as the daemon; each signal begins a count, or writes one to the file."""
    from opdispatch_client.cli import main as command

    entered = Entered()

    def switch(*_: object) -> None:
        entered.switch()
        Path(file).write_text(json.dumps(entered.names))
        entered.names.clear()

    signal.signal(signal.SIGUSR1, switch)
    return command(["serve", *arguments])


@contextmanager
def running(*command: str) -> Iterator[tuple[subprocess.Popen[str], list[str]]]:
    """A process, and the words of the first line that it prints."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield process, process.stdout.readline().split()
    finally:
        process.terminate()
        process.wait(timeout=10)
        process.stdout.close()


def echo_by_threads(port: str, stack: ExitStack) -> Call:
    """Echoes for one thread, which reads what comes itself."""
    channel = stack.enter_context(grpc.insecure_channel(f"127.0.0.1:{port}"))
    requests: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
    replies: Any = channel.stream_stream("/Echo/Go")(iter(requests.get, None))
    stack.callback(replies.cancel)
    payload = bytes(100)

    def call(count: int) -> None:
        for _ in range(count):
            requests.put(payload)
            next(replies)

    return call


def echo_by_asyncio(port: str, stack: ExitStack) -> Call:
    """Echoes for one task."""
    loop = asyncio.new_event_loop()
    stack.callback(loop.close)
    payload = bytes(100)

    async def open_stream() -> tuple[Any, Any]:
        channel = grpc.aio.insecure_channel(f"127.0.0.1:{port}")
        return channel, channel.stream_stream("/Echo/Go")()

    channel, stream = loop.run_until_complete(open_stream())
    stack.callback(lambda: loop.run_until_complete(channel.close()))

    async def echo(count: int) -> None:
        for _ in range(count):
            await stream.write(payload)
            await stream.read()

    return lambda count: loop.run_until_complete(echo(count))


def calls_of(session: oc.Session) -> Call:
    """Calls one after the other."""

    def call(count: int) -> None:
        for _ in range(count):
            session.call("bench::add", X, X)

    return call


def descendants(process: int) -> list[int]:
    """Return a process and all that it has started, directly or not."""
    return [process, *(each for child in children_of(process) for each in descendants(child))]


def count_entered(session: oc.Session, entered: Entered, daemon: Daemon) -> dict[str, Counter[str]]:
    """Return the functions that COUNTED calls enter, by process."""
    call = calls_of(session)
    call(CALLS)
    session.call("bench::count", True)
    call(10)
    daemon.switch()
    entered.switch()
    call(COUNTED)
    entered.switch()
    in_daemon = daemon.switch()
    in_interpreter = Counter(json.loads(session.call("bench::count", False)))
    client = Counter(entered.names)
    entered.names.clear()
    return {"client": client, "daemon": in_daemon, "interpreter": in_interpreter}


class Daemon(NamedTuple):
    """A daemon that counts the functions that it enters: see ``serve``."""

    address: str
    process: int
    file: Path

    def switch(self) -> Counter[str]:
        """Begin to count, or stop; return the functions that were entered until now."""
        self.file.unlink(missing_ok=True)
        os.kill(self.process, signal.SIGUSR1)
        while not (self.file.exists() and self.file.read_text().endswith("}")):
            time.sleep(0.01)
        return Counter(json.loads(self.file.read_text()))


@contextmanager
def counting_daemon(folder: Path, workers: int = 1) -> Iterator[Daemon]:
    """A daemon on TCP with the library of this bench in one interpreter."""
    file = folder / "entered.json"
    (folder / "bench.py").write_text(LIBRARY)
    options = ("--listen", "127.0.0.1:0", "--state", f"{folder}/s", "--log-level", "error")
    command = (sys.executable, "-m", "tests.bench.streams", "serve", str(file), *options)
    with running(*command, "--workers", str(workers)) as (process, words):
        address = next(each for each in words if each.startswith("127.0.0.1:"))
        with oc.connect(address) as session:
            session.load(folder / "bench.py", interpreters=1)
        yield Daemon(address, process.pid, file)


def count_ways(daemon: Daemon) -> dict[str, dict[str, Counter[str]]]:
    """Return the functions that COUNTED calls enter over streams, by way and process."""
    found = {}
    for way, is_direct in {"direct": True, "through the daemon": False}.items():
        entered = Entered()
        threading.setprofile(entered.note)  # gRPC's own threads in Python among them
        with oc.connect(daemon.address, lane="stream", direct=is_direct) as session:
            found[way] = count_entered(session, entered, daemon)
        threading.setprofile(None)  # type: ignore[arg-type]
    return found


def main() -> None:
    """Print both tables, and the most frequent functions if names of ways are given."""
    costs = Table(title="one call over a gRPC stream on loopback TCP")
    for heading in ("way", "us of processors", "x the floor", "us elapsed", "context switches"):
        costs.add_column(heading, justify="left" if heading == "way" else "right")
    counts = Table(title="Python functions entered by one call")
    for heading in ("way", "client", "daemon", "interpreter"):
        counts.add_column(heading, justify="left" if heading == "way" else "right")
    with tempfile.TemporaryDirectory(prefix="od-bench-") as name, ExitStack() as stack:
        daemon = stack.enter_context(counting_daemon(Path(name)))
        _, [port] = stack.enter_context(running(sys.executable, str(ECHO_SERVER)))

        def connect(**settings: Any) -> oc.Session:
            return stack.enter_context(oc.connect(daemon.address, lane="stream", **settings))

        ways: dict[str, Call] = {
            "bare echo, threads": echo_by_threads(port, stack),
            "bare echo, asyncio": echo_by_asyncio(port, stack),
            "opdispatch, direct": calls_of(connect()),
            "opdispatch, through the daemon": calls_of(connect(direct=False)),
        }
        for call in ways.values():
            call(CALLS)
        processes = descendants(os.getpid())
        found: dict[str, list[Any]] = {each: [] for each in ways}
        for _ in range(ROUNDS):
            for way, call in ways.items():
                found[way].append(measured(call, CALLS, processes))
        used = {w: statistics.median(each.used for each in m) for w, m in found.items()}
        floor = min(used[way] for way in ways if way.startswith("bare"))
        for way, each in found.items():
            elapsed = statistics.median(one.elapsed for one in each)
            switches = statistics.median(one.switches for one in each)
            numbers = (f"{used[way] * 1e6:,.0f}", f"{used[way] / floor:.2f}")
            costs.add_row(way, *numbers, f"{elapsed * 1e6:,.0f}", f"{switches:.1f}")
        names = count_ways(daemon)
        for way, by_process in names.items():
            counts.add_row(way, *(f"{e.total() / COUNTED:.0f}" for e in by_process.values()))
    console = Console(width=110)
    console.print(costs)
    console.print(counts)
    for way in sys.argv[1:]:
        for process, each in names[way].items():
            for function, times in each.most_common(80):
                if times * 2 >= COUNTED:
                    console.print(f"{way}, {process}: {times / COUNTED:.1f} {function}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["serve"]:
        sys.exit(serve(sys.argv[2], sys.argv[3:]))
    main()
