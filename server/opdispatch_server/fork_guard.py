"""Protection of an interpreter's sockets and lifeline from libraries that fork.

A forked child has a copy of everything except the threads. Without protection it would keep the
connections of a dead interpreter open, handle its signals, and, once the kernel that forked
returns, continue to run without purpose.
"""

from __future__ import annotations

import gc
import os
import signal
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import ParamSpec, TypeVar

from opdispatch_server.socket_names import published_name
from opdispatch_wire.addresses import UnixAddress, parse_address

NO_FORK_SUPPORT = {"GRPC_ENABLE_FORK_SUPPORT": "0"}
"""The environment in which gRPC, on first use, leaves forked children alone.

Otherwise it restarts its threads in them, on the parent's connections.
"""

P = ParamSpec("P")
T = TypeVar("T")


class ForkGuard:
    """The guard of one interpreter process. The methods ``own_...`` declare what is private."""

    def __init__(self) -> None:
        self.process = os.getpid()
        """The id of the guarded process; a process with another id is a fork of it."""
        self._descriptors: set[int] = set()
        # Paths of sockets; ports where this process listens; hosts and ports of others.
        self._here: set[object] = set()
        self._there: set[object] = set()

    def install(self) -> None:
        """Close private descriptors in children of this process, from now on."""
        self.process = os.getpid()  # not that of a template, in which this module was imported
        os.register_at_fork(after_in_child=self._let_go)

    def own_descriptor(self, descriptor: int) -> None:
        """Make this descriptor private."""
        self._descriptors.add(descriptor)

    def own_listener(self, address: str) -> None:
        """Make the listener at this address private, and the connections that it accepts."""
        parsed = parse_address(address)
        if isinstance(parsed, UnixAddress):
            self._here |= _names_of(parsed)
        else:
            self._here.add(parsed.port)

    def own_peer(self, address: str) -> None:
        """Make connections to this address private."""
        parsed = parse_address(address)
        if isinstance(parsed, UnixAddress):
            self._there |= _names_of(parsed)
            return
        with suppress(OSError):
            for *_, name in socket.getaddrinfo(parsed.host, parsed.port, type=socket.SOCK_STREAM):
                self._there.add(name[:2])

    def run(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a function that runs user code; a forked child that returns from it ends there."""
        try:
            return function(*args, **kwargs)
        finally:
            if os.getpid() != self.process:
                os._exit(0)

    def _let_go(self) -> None:
        # Collecting the parent's garbage may free gRPC's objects, which crash without their
        # threads.
        gc.freeze()
        # The wake-up descriptor is shared: a signal to the child would wake the parent's loop.
        with suppress(ValueError):
            signal.set_wakeup_fd(-1)
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, signal.SIG_DFL)
        with suppress(OSError):
            nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
            for descriptor in self._find_private():
                # Replaced, not closed: code that still has the number must not write to another
                # file.
                os.dup2(nothing, descriptor, inheritable=False)
            os.close(nothing)

    def _find_private(self) -> list[int]:
        listing = "/proc/self/fd" if sys.platform == "linux" else "/dev/fd"
        found = [int(path.name) for path in Path(listing).iterdir() if path.name.isdigit()]
        return [fd for fd in found if fd in self._descriptors or self._is_private_socket(fd)]

    def _is_private_socket(self, descriptor: int) -> bool:
        try:
            duplicate = os.dup(descriptor)
        except OSError:
            return False
        try:
            connection = socket.socket(fileno=duplicate)
        except OSError:
            os.close(duplicate)
            return False  # not a socket
        with connection:
            with suppress(OSError):
                if _here_of(connection.getsockname()) in self._here:
                    return True
            with suppress(OSError):
                return _there_of(connection.getpeername()) in self._there
        return False


def _names_of(address: UnixAddress) -> set[bytes]:
    """Return the paths under which the system may know a socket."""
    path = address.path
    return {os.fsencode(p) for p in (path, os.path.abspath(path), os.path.realpath(path))}


def _here_of(name: object) -> object:
    return name[1] if isinstance(name, tuple) else _path_of(name)


def _there_of(name: object) -> object:
    return name[:2] if isinstance(name, tuple) else _path_of(name)


def _path_of(name: object) -> object:
    return published_name(os.fsencode(name)) if isinstance(name, str | bytes) else name


GUARD = ForkGuard()
"""The process's own guard; an interpreter installs it."""
