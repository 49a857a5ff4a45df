"""Gaps in the answers that callers get while one daemon after the other takes over.

Another process makes calls at a steady rate, in threads that share a session: each has its time, so
that a call which waits does not slow down those that were due after it by more than its own wait. A
gap is the time between two answers that follow each other, in any thread. Beside it stand the
longest gap while nothing was upgraded, which the rest of the machine has made, and the calls that
were late by more than 100 ms.
"""

from __future__ import annotations

import argparse
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
from itertools import pairwise
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

import opdispatch_client as oc

ROUNDS = 20
RATE = 1000
THREADS = 4
# In seconds, before the first upgrade.
QUIET = 5.0
LIBRARY = """\
from opdispatch import Library

lib = Library("bench", "DEF")
lib.define("get(Tensor x) -> int")
lib.impl("get", lambda x: 1, "CPU")
"""


def make_calls(address: str, times: str) -> None:
    """Make calls until standard input ends; write when each was due, and when it had its answer.

    The file gets an array of ``float64[calls, 2]``, in seconds of ``time.monotonic``; a call that
    failed has no answer: NaN.
    """
    over, x = threading.Event(), np.zeros(2)
    found: list[tuple[float, float]] = []

    def run(number: int) -> None:
        due = time.monotonic() + number / RATE
        while not over.is_set():
            time.sleep(max(due - time.monotonic(), 0.0))
            answered = float("nan")
            try:
                session.ops.bench.get(x)
                answered = time.monotonic()
            except oc.OpdispatchError as error:
                print(error, file=sys.stderr)
            found.append((due, answered))
            due = max(due + THREADS / RATE, time.monotonic() - 0.1)  # it does not catch up for ever

    with oc.connect(address) as session:
        session.ops.bench.get(x)
        threads = [threading.Thread(target=run, args=(number,)) for number in range(THREADS)]
        for each in threads:
            each.start()
        print("ready", flush=True)
        sys.stdin.read()
        over.set()
        for each in threads:
            each.join()
    np.save(times, np.array(sorted(found)))


def serve(folder: Path, *options: str) -> subprocess.Popen[bytes]:
    """Start a daemon, and wait until it says where it listens."""
    command = (sys.executable, "-m", "opdispatch_client.cli", "serve", "--workers", "1")
    listen = ("--listen", f"unix://{folder}/daemon.sock", "--state", f"{folder}/state")
    process = subprocess.Popen(
        (*command, *listen, "--log-level", "error", *options), stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    if not select.select([process.stdout], [], [], 60)[0] or not process.stdout.readline():
        sys.exit("the daemon did not start")
    return process


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.calls:
        make_calls(*arguments.calls)
        return
    with tempfile.TemporaryDirectory(prefix="od-bench-") as name:
        folder = Path(name)
        daemon = serve(folder)
        path = folder / "bench.py"
        path.write_text(LIBRARY)
        address = f"unix://{folder}/daemon.sock"
        with oc.connect(address) as session:
            session.load(path)
        times = folder / "times.npy"
        calls = subprocess.Popen(
            [sys.executable, "-m", "tests.bench.upgrades", "--calls", address, str(times)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert calls.stdin is not None
        assert calls.stdout is not None
        calls.stdout.readline()
        upgrades = [(time.monotonic(), time.monotonic())]
        time.sleep(QUIET)
        for _ in range(ROUNDS):
            begun = time.monotonic()
            after = serve(folder, "--take-over")
            daemon.wait(60)
            upgrades.append((begun, time.monotonic()))
            daemon = after
        calls.stdin.close()
        calls.wait(60)
        daemon.send_signal(signal.SIGTERM)
        daemon.wait(60)
        show(np.load(times), upgrades)


def show(calls: np.ndarray, upgrades: list[tuple[float, float]]) -> None:
    """Print what became of the calls around each upgrade."""
    due, answered = calls[:, 0], calls[:, 1]
    is_ok = ~np.isnan(answered)
    gaps = sorted(pairwise(np.sort(answered[is_ok])), key=lambda gap: gap[0] - gap[1])
    (_, quiet), *rest = [*upgrades, (upgrades[-1][1], np.inf)]
    table = Table(title=f"{len(rest) - 1} upgrades, calls paced at {RATE} a second")
    for heading in ("upgrade", "takes s", "largest gap ms", "calls > 100 ms late", "calls/s"):
        table.add_column(heading, justify="right")
    largest = []
    for number, (begun, ended) in enumerate([(quiet, rest[0][0]), *rest[:-1]]):
        inside = (due >= begun) & (due < ended)
        gap = next((b - a for a, b in gaps if a < ended and b > begun), 0.0)
        largest.append(1000 * float(gap))
        late = int(np.sum(inside & is_ok & (answered - due > 0.1)))
        rate = np.sum(inside) / (ended - begun)
        label = str(number) if number else "none"
        table.add_row(label, f"{ended - begun:.2f}", f"{largest[-1]:.0f}", str(late), f"{rate:.0f}")
    Console().print(table)
    print(
        f"{len(calls)} calls, {int(np.sum(~is_ok))} failed; largest gap {max(largest[1:]):.0f} ms, "
        f"median {np.median(largest[1:]):.0f} ms; without an upgrade {largest[0]:.0f} ms"
    )


if __name__ == "__main__":
    main()
