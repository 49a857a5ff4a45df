"""Calls across processes of one machine, ours and others', side by side.

Each contestant adds two float32 arrays, one call after the other, from one client process; and as
many as it can with 64 in flight. They take turns, round for round; medians are quoted. Who keeps
the cores busy also when it is not its turn comes after all others, alone. Others run in the Python
that has them: this one, or that of ``OPDISPATCH_BENCH_PEERS``, an environment with any of ``ray``
and ``nvidia-pytriton``. A missing one is left out, and reported as such.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from rich.console import Console
from rich.table import Table

import opdispatch_client as oc
from tests.bench.shared_memory import Floor

PEERS = Path(__file__).with_name("peers")
SIZES = {4: "16 B", 250_000: "1 MB", 2_500_000: "10 MB"}
"""Elements of an array, and how long it is."""
ROUNDS = 15
ROUND_SECONDS = 0.05
IN_FLIGHT = 64
MANY = 64 * 40
MANY_ROUNDS = 5
RATE = f"{IN_FLIGHT} in flight"
FLOOR = "Python over a unix socket"
ALONE = "Ray compiled graph"

LIBRARY = """
import numpy as np

from opdispatch import Library

lib = Library("bench", "DEF")
lib.define("add(Tensor x, Tensor y) -> Tensor")
lib.impl("add", lambda x, y: x + y, "CPU")
lib.define("add_out(Tensor x, Tensor y, *, Tensor(a!) out) -> Tensor(a!)")
lib.impl("add_out", lambda x, y, *, out: np.add(x, y, out=out), "CPU")
"""


class Contestant(Protocol):
    """One way of adding that is compared with others."""

    def calls(self, elements: int, count: int) -> float:
        """The seconds that so many calls take."""

    def in_flight(self, count: int) -> float | None:
        """The seconds that so many calls take, IN_FLIGHT at a time; None if it cannot."""


class Ours:
    """One session of ours."""

    def __init__(self, session: oc.Session) -> None:
        self.session = session

    def calls(self, elements: int, count: int) -> float:
        """The seconds that so many calls take."""
        x = np.ones(elements, np.float32)
        call = self.session.call
        start = time.perf_counter()
        for _ in range(count):
            call("bench::add", x, x)
        return time.perf_counter() - start

    def in_flight(self, count: int) -> float | None:
        """The seconds that so many calls take, IN_FLIGHT at a time."""
        x = np.ones(4, np.float32)
        start = time.perf_counter()
        deque(self.session.map("bench::add", [(x, x)] * count, in_flight=IN_FLIGHT), maxlen=0)
        return time.perf_counter() - start


class OursInPlace:
    """One session of ours, and arrays that are in shared memory already."""

    def __init__(self, session: oc.Session) -> None:
        self._session = session
        self._arrays: dict[int, tuple[Any, Any, Any]] = {}

    def calls(self, elements: int, count: int) -> float:
        """The seconds that so many calls take."""
        if elements not in self._arrays:
            self._arrays[elements] = tuple(
                self._session.empty(elements, np.float32) for _ in range(3)
            )
        x, y, out = self._arrays[elements]
        x[:], y[:] = 1, 1
        call = self._session.call
        start = time.perf_counter()
        for _ in range(count):
            call("bench::add_out", x, y, out=out)
        return time.perf_counter() - start

    def in_flight(self, count: int) -> float | None:
        """Not asked: small arrays are sent inline all the same."""
        return None


class InPlace:
    """Memory that is shared already, a packet each way, and nothing else: the floor for that."""

    def __init__(self) -> None:
        self._floors: dict[int, Floor] = {}

    def calls(self, elements: int, count: int) -> float:
        """The seconds that so many additions take."""
        floor = self._floors.get(elements)
        if floor is None:
            floor = self._floors[elements] = Floor(elements)
        start = time.perf_counter()
        for _ in range(count):
            floor.signal()
        return time.perf_counter() - start

    def in_flight(self, count: int) -> float | None:
        """It cannot."""
        return None

    def close(self) -> None:
        """End its processes."""
        for floor in self._floors.values():
            floor.close()


class Peer:
    """A program of ``peers``, in a process of its own. Raises OSError if it does not start."""

    def __init__(self, stack: ExitStack, python: str, program: str) -> None:
        self._process = stack.enter_context(
            subprocess.Popen(
                (python, str(PEERS / f"{program}.py")),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                env={k: v for k, v in os.environ.items() if k != "PYTHONPATH"},
            )
        )
        if self._read() != "ready":
            raise OSError(f"{program} does not start with {python}")

    @property
    def process(self) -> int:
        """Its process id."""
        return self._process.pid

    def calls(self, elements: int, count: int) -> float:
        """The seconds that so many calls take."""
        return float(self._ask("calls", elements, count))

    def in_flight(self, count: int) -> float | None:
        """The seconds that so many calls take, IN_FLIGHT at a time."""
        seconds = self._ask("in flight", count, IN_FLIGHT)
        return None if seconds is None else float(seconds)

    def _ask(self, *question: object) -> Any:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        return json.loads(self._read())

    def _read(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()


def start_daemon(stack: ExitStack, folder: Path) -> tuple[str, str]:
    """A daemon with one interpreter; its addresses, of a unix socket and of TCP."""
    address = f"unix://{folder}/daemon.sock"
    command = (sys.executable, "-m", "opdispatch_client.cli", "serve", "--listen", address)
    options = ("--workers", "1", "--state", str(folder / "state"), "--log-level", "error")
    loopback = ("--listen", "127.0.0.1:0")
    daemon = subprocess.Popen((*command, *loopback, *options), stdout=subprocess.PIPE)
    stack.callback(daemon.wait, 20)
    stack.callback(daemon.terminate)
    assert daemon.stdout is not None
    daemon.stdout.readline()
    return address, daemon.stdout.readline().decode().split()[-1]


def start(stack: ExitStack, folder: Path) -> dict[str, Contestant]:
    """Start every contestant that is installed."""
    address, tcp = start_daemon(stack, folder)
    (folder / "bench.py").write_text(LIBRARY)

    def connect(where: str = address, **settings: Any) -> Ours:
        session = stack.enter_context(oc.connect(where, **settings))
        session.load(folder / "bench.py")
        return Ours(session)

    in_place = InPlace()
    stack.callback(in_place.close)
    direct = connect(lane="local")
    contestants: dict[str, Contestant] = {
        "opdispatch, direct": direct,
        "opdispatch, direct, arrays of session.empty": OursInPlace(direct.session),
        "memory shared already, added in place": in_place,
        "opdispatch, through the daemon": connect(lane="local", direct=False),
        "opdispatch, direct, gRPC stream": connect(tcp, lane="stream"),
        "opdispatch, through the daemon, gRPC stream": connect(tcp, lane="stream", direct=False),
    }
    return contestants | start_peers(
        stack,
        (FLOOR, sys.executable, "unix_socket"),
        ("bare gRPC stream echo", sys.executable, "grpc_stream"),
        ("Ray actor", elsewhere(), "ray_actor"),
        ("Triton, Python backend, gRPC", elsewhere(), "triton_python"),
    )


def start_peers(stack: ExitStack, *peers: tuple[str, str, str]) -> dict[str, Contestant]:
    """Those of them that are there: each is a name, a Python and a program."""
    found: dict[str, Contestant] = {}
    for name, python, program in peers:
        try:
            found[name] = Peer(stack, python, program)
        except OSError as error:
            print(f"left out: {error}", file=sys.stderr)
    return found


def elsewhere() -> str:
    """The Python that has Ray and Triton."""
    others = os.environ.get("OPDISPATCH_BENCH_PEERS", "")
    return str(Path(others) / "bin" / "python") if others else sys.executable


def alternate(
    measures: dict[str, Callable[[], float | None]], rounds: int
) -> dict[str, float | None]:
    """The medians of what each measure says."""
    found: dict[str, list[float]] = {name: [] for name in measures}
    for _ in range(rounds):
        for name, measure in measures.items():
            if (value := measure()) is not None:
                found[name].append(value)
    return {name: statistics.median(each) if each else None for name, each in found.items()}


def seconds_per_call(contestants: dict[str, Contestant], elements: int) -> dict[str, float | None]:
    """The median seconds of one call, the largest arrays having warmed everybody up."""

    def measure(contestant: Contestant, count: int) -> Callable[[], float]:
        return lambda: contestant.calls(elements, count) / count

    measures: dict[str, Callable[[], float | None]] = {}
    for name, contestant in contestants.items():
        warm = min(contestant.calls(elements, 5) / 5 for _ in range(3))
        measures[name] = measure(contestant, max(int(ROUND_SECONDS / warm), 1))
    return alternate(measures, ROUNDS)


def calls_per_second(contestants: dict[str, Contestant]) -> dict[str, float | None]:
    """The median rate with IN_FLIGHT calls in flight."""

    def measure(contestant: Contestant) -> Callable[[], float | None]:
        def rate() -> float | None:
            seconds = contestant.in_flight(MANY)
            return None if seconds is None else MANY / seconds

        return rate

    for contestant in contestants.values():
        contestant.in_flight(MANY)
    return alternate({name: measure(each) for name, each in contestants.items()}, MANY_ROUNDS)


def report(names: Sequence[str], columns: dict[str, dict[str, float | None]]) -> Table:
    """One row for each contestant; in brackets, how many times the floor it takes."""
    table = Table(title="two float32 arrays added: us (x the unix socket); calls a second")
    table.add_column("contestant")
    for heading in columns:
        table.add_column(heading, justify="right")
    for name in names:
        row = [name]
        for heading, values in columns.items():
            value, floor = values[name], values[FLOOR]
            if value is None or floor is None:
                row.append("-")
            elif heading in SIZES.values():
                row.append(f"{value * 1e6:,.0f} ({value / floor:.1f})")
            else:
                row.append(f"{value:,.0f}")
        table.add_row(*row)
    return table


def race(contestants: dict[str, Contestant], columns: dict[str, dict[str, float | None]]) -> None:
    """Time all and add what they took to the columns."""
    for contestant in contestants.values():  # with the largest arrays first
        for elements in sorted(SIZES, reverse=True):
            contestant.calls(elements, 3)
    for elements, heading in SIZES.items():
        columns[heading] |= seconds_per_call(contestants, elements)
    columns[RATE] |= calls_per_second(contestants)


def main() -> None:
    """Time all and print the table."""
    columns: dict[str, dict[str, float | None]] = {name: {} for name in (*SIZES.values(), RATE)}
    with tempfile.TemporaryDirectory(prefix="od-bench-") as folder, ExitStack() as stack:
        race(start(stack, Path(folder)), columns)
    with ExitStack() as stack:
        race(start_peers(stack, (ALONE, elsewhere(), "ray_compiled_graph")), columns)
    Console(width=120).print(report(list(columns[RATE]), columns))


if __name__ == "__main__":
    main()
