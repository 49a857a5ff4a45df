"""How long an interpreter that has died is missed: ``make bench``.

From SIGKILL of the only interpreter to the answer of a call that was made right after it, which
waits until the library is there again. Beside it stands a process that imports NumPy and gRPC, as
one that is not forked would have to.
"""

from __future__ import annotations

import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from opdispatch_client import Session, connect
from opdispatch_server.daemon.processes.restart_policy import HEALTHY_AFTER
from opdispatch_stress.private_daemon import private_daemon

ROUNDS = 9
X = np.zeros(2)
LIBRARY = """\
from opdispatch import Library

lib = Library("bench", "DEF")
lib.define("get(Tensor x) -> int")
lib.impl("get", lambda x: 1, "CPU")
"""


def start_process() -> None:
    """Start a process that has what an interpreter imports of others, and wait for its end."""
    subprocess.run([sys.executable, "-c", "import numpy, grpc"], check=True)


def kill_and_call(session: Session) -> None:
    """Kill the interpreter, and wait for the answer of its successor."""
    [interpreter] = session.interpreters()
    os.kill(interpreter.pid, signal.SIGKILL)
    session.call("bench::get", X)


def seconds(work: Callable[[], object]) -> float:
    """Return how long that takes."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def main() -> None:
    """Print the table."""
    taken: dict[str, list[float]] = {"process": [], "after a while": [], "at once": []}
    with private_daemon(workers=1) as daemon, tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "bench.py"
        path.write_text(LIBRARY)
        with connect(daemon.address) as session:
            session.load(path)
            for _ in range(ROUNDS):
                taken["process"].append(seconds(start_process))
                time.sleep(HEALTHY_AFTER)
                taken["after a while"].append(seconds(lambda: kill_and_call(session)))
                taken["at once"].append(seconds(lambda: kill_and_call(session)))
    table = Table(title="an interpreter dies: its successor's first answer")
    for heading in ("what", "median s", "least s", "most s"):
        table.add_column(heading, justify="left" if heading == "what" else "right")
    for what, times in {
        "a process that imports NumPy and gRPC": taken["process"],
        f"it was ready for {HEALTHY_AFTER:g} s": taken["after a while"],
        "it had just become ready": taken["at once"],
    }.items():
        figures = (f"{chosen(times):.3f}" for chosen in (statistics.median, min, max))
        table.add_row(what, *figures)
    Console().print(table)


if __name__ == "__main__":
    main()
