"""Regions whose owners have died."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

from opdispatch_wire.shared_memory.memory_region import MappedRegion

OWNER = """
import os, signal, socket, sys
from opdispatch_wire.shared_memory.memory_region import OwnedRegion

region = OwnedRegion(1 << 20)
region.mapping.window(0, 5, writable=True).array((5,), __import__("numpy").dtype("u1"))[:] = 7
with socket.socket(fileno=int(sys.argv[1])) as sock:
    socket.send_fds(sock, [b"."], [region.descriptor])
    os.kill(os.getpid(), signal.SIGKILL)
"""


def mappings_of(inode: int) -> int:
    """Return how often this process has mapped a file: others may map theirs meanwhile."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    return sum(line.split()[4] == str(inode) for line in lines)


def test_a_region_outlives_its_owner_and_is_freed_with_its_last_view():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        command = [sys.executable, "-c", OWNER, str(theirs.fileno())]
        with subprocess.Popen(command, pass_fds=[theirs.fileno()]) as process:
            _, (descriptor,), _, _ = socket.recv_fds(ours, 1, 1)
            inode = os.fstat(descriptor).st_ino
            region = MappedRegion(descriptor)
        assert process.returncode == -signal.SIGKILL
    assert bytes(region.view(0, 6)) == b"\7" * 5 + b"\0"
    view = region.view(0, 5)
    del region
    assert mappings_of(inode) == 1
    del view
    assert mappings_of(inode) == 0
