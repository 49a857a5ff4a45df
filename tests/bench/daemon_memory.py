"""How large the daemon becomes while many clients send large arrays through it.

Each client sends two arrays of 10 MB and gets one back, again and again; none calls directly.
"""

from __future__ import annotations

import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

import opdispatch_client as oc
from tests.bench.remote import LIBRARY, running

SECONDS = 6.0
CLIENTS = (1, 4, 16)
ELEMENTS = 2_500_000
MB_A_CALL = 3 * 4 * ELEMENTS / 1e6


def most_resident(pid: int) -> float:
    """The most memory that a process has had, in MiB."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    raise OSError(f"/proc/{pid}/status does not say VmHWM")


def flood(address: str, clients: int) -> float:
    """The MB a second that so many clients, each in a thread, send and receive."""
    x = np.ones(ELEMENTS, np.float32)
    calls = [0] * clients
    end = time.monotonic() + SECONDS

    def run(client: int) -> None:
        with oc.connect(address, direct=False) as session:
            while time.monotonic() < end:
                session.call("bench::first", x, x)
                calls[client] += 1

    threads = [threading.Thread(target=run, args=(client,)) for client in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(calls) * MB_A_CALL / SECONDS


def main() -> None:
    """Print the table."""
    table = Table(title="arrays of 10 MB through the daemon")
    for heading in ("clients", "MB/s", "the daemon has grown by, MiB"):
        table.add_column(heading, justify="right")
    with tempfile.TemporaryDirectory(prefix="od-bench-") as folder:
        address = f"unix://{folder}/daemon.sock"
        command = (sys.executable, "-m", "opdispatch_client.cli", "serve", "--listen", address)
        options = ("--workers", "2", "--state", f"{folder}/state", "--log-level", "error")
        library = Path(folder) / "bench.py"
        library.write_text(LIBRARY)
        with running(*command, *options), oc.connect(address, direct=False) as session:
            session.load(library, interpreters=2)
            small = np.ones(4, np.float32)
            session.call("bench::first", small, small)
            pid = session.server_info.pid
            before = most_resident(pid)
            for clients in CLIENTS:
                rate = flood(address, clients)
                table.add_row(str(clients), f"{rate:,.0f}", f"{most_resident(pid) - before:,.0f}")
    Console().print(table)


if __name__ == "__main__":
    main()
