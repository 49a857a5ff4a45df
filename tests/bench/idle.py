"""Costs of a daemon and its interpreter while nothing is called, and until they are ready.

RSS, the resident set size, is every page of memory that a process has, though all interpreters and
the daemon share most of them; PSS, the proportional set size, divides each page by the number of
processes that share it, so that the sum over all processes is what they take of the machine. CPU
time and voluntary context switches are those of all threads of a process.
"""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np
import psutil
from rich.console import Console
from rich.table import Table

import opdispatch_client as oc

SECONDS = 15.0
LIBRARIES = 20
ROUNDS = 3
LIBRARY = """\
from opdispatch import Library

lib = Library("bench{number}", "DEF")
lib.define("get(Tensor x) -> int")
lib.impl("get", lambda x: 1, "CPU")
"""


class Use(NamedTuple):
    """Count what one process has used so far: CPU seconds, and voluntary context switches."""

    seconds: float
    switches: int

    @classmethod
    def of(cls, pid: int) -> Use:
        """Return that of a process that lives; in nanoseconds where the kernel counts them so."""
        seconds, switches = 0.0, 0
        for thread in Path(f"/proc/{pid}/task").iterdir():
            seconds += int((thread / "schedstat").read_text().split()[0]) / 1e9
            found = re.search(
                r"^voluntary_ctxt_switches:\s+(\d+)", (thread / "status").read_text(), re.M
            )
            assert found is not None
            switches += int(found[1])
        return cls(seconds, switches)


class Serve:
    """A daemon with one interpreter, started from the command line."""

    def __init__(self, folder: Path) -> None:
        """Start it, and wait until it says where it listens."""
        self.address = f"unix://{folder}/daemon.sock"
        command = (sys.executable, "-m", "opdispatch_client.cli", "serve", "--workers", "1")
        options = ("--listen", self.address, "--state", f"{folder}/state", "--log-level", "error")
        begun = time.monotonic()
        self.process = subprocess.Popen((*command, *options), stdout=subprocess.PIPE)
        assert self.process.stdout is not None
        if not self.process.stdout.readline():
            sys.exit("the daemon did not start")
        self.start_seconds = time.monotonic() - begun

    def end(self, how: signal.Signals) -> None:
        """End it by a signal."""
        self.process.send_signal(how)
        self.process.wait(60)
        assert self.process.stdout is not None
        self.process.stdout.close()

    def processes(self) -> dict[str, int]:
        """Return its processes by name."""
        children = psutil.Process(self.process.pid).children(recursive=True)
        named = {"daemon": self.process.pid}
        for child in children:
            named[" ".join(child.cmdline()).removeprefix("opdispatch: ")] = child.pid
        return named


def main() -> None:
    """Print the tables."""
    table = Table(title=f"idle for {SECONDS:g} s")
    for heading in ("process", "RSS MB", "PSS MB", "CPU until ready, s", "CPU %", "switches/s"):
        table.add_column(heading, justify="left" if heading == "process" else "right")
    restarts = []
    with tempfile.TemporaryDirectory(prefix="od-bench-") as name:
        folder = Path(name)
        daemon = Serve(folder)
        named = daemon.processes()
        ready = {process: Use.of(pid).seconds for process, pid in named.items()}
        with oc.connect(daemon.address) as session:
            for number in range(LIBRARIES):
                path = folder / f"bench{number}.py"
                path.write_text(LIBRARY.format(number=number))
                session.load(path)
                session.call(f"bench{number}::get", np.zeros(2))
        before = {process: Use.of(pid) for process, pid in named.items()}
        time.sleep(SECONDS)
        for process, pid in named.items():
            used, memory = Use.of(pid), psutil.Process(pid).memory_full_info()
            table.add_row(
                process,
                f"{memory.rss / 1e6:.1f}",
                f"{memory.pss / 1e6:.1f}",
                f"{ready[process]:.2f}",
                f"{(used.seconds - before[process].seconds) / SECONDS:.2%}",
                f"{(used.switches - before[process].switches) / SECONDS:.1f}",
            )
        for _ in range(ROUNDS):
            daemon.end(signal.SIGKILL)
            daemon = Serve(folder)
            restarts.append(f"{daemon.start_seconds:.2f}")
        daemon.end(signal.SIGTERM)
    Console().print(table)
    print(f"ready after SIGKILL, {LIBRARIES} libraries: {', '.join(restarts)} s")


if __name__ == "__main__":
    main()
