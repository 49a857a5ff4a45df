"""The pace of TLS handshakes at a port of gRPC's: each is a millisecond of the daemon's time.

gRPC can refuse no connection before its handshake. A port at which too many begin is *shut* for a
moment: a filter of its listening socket drops the packets of new connections, so the system at
the other end sends them again, a second later, then two. Connections that there are do not notice.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Final

from opdispatch_server.log_fields import Event, fields

AT_ONCE: Final = 1000
"""So many handshakes may begin at once,"""
PER_SECOND: Final = 100.0
"""and so many in each second from then on."""
SHORTEST: Final = 0.25
"""In seconds: so long a port is shut at least."""

LOG = logging.getLogger("opdispatch.access")

# socket(7); Python has no names for them.
_SO_ATTACH_FILTER, _SO_DETACH_FILTER = 26, 27
_DROP_ALL = struct.pack("HBBI", 0x06, 0, 0, 0)  # return 0: not a byte of the packet is kept


class HandshakePace:
    """The handshakes of one port, once that is known. Its lock guards all that it keeps."""

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        later: Callable[[float, Callable[[], None]], object] | None = None,
    ) -> None:
        """``later`` calls a function after so many seconds."""
        self.port: int | None = None
        self._clock = clock
        self._later = later or _call_later
        self._lock = threading.Lock()
        # When as many may begin at once again as ever.
        self._full_at = clock()
        self._is_shut = False

    def count(self) -> None:
        """Count a handshake that begins, and shut the port if those are too many; in any thread."""
        with self._lock:
            now = self._clock()
            self._full_at = max(self._full_at, now) + 1 / PER_SECOND
            ahead = self._full_at - now - AT_ONCE / PER_SECOND
            if ahead <= 0 or self._is_shut or self.port is None:
                return
            # In this order: what is shut is opened again, whatever fails here.
            self._later(max(ahead, SHORTEST), self._open)
            self._is_shut = True
            set_shut(self.port, True)
        LOG.warning(
            "more than %d connections a second begin at port %d: new ones wait",
            PER_SECOND,
            self.port,
            extra=fields(Event.CONNECTION_REFUSED),
        )

    def _open(self) -> None:
        assert self.port is not None, "it was shut"
        with self._lock:
            try:
                set_shut(self.port, False)
            except OSError:  # there is no descriptor left to look for it
                self._later(SHORTEST, self._open)
                return
            self._is_shut = False


def _call_later(seconds: float, function: Callable[[], None]) -> None:
    timer = threading.Timer(seconds, function)
    timer.daemon = True
    timer.start()


def set_shut(port: int, is_shut: bool) -> None:
    """Shut a TCP port at which this process listens, or open it; without effect but on Linux.

    Raises OSError if that cannot be found out.
    """
    program = ctypes.create_string_buffer(_DROP_ALL)
    for each in listening(port):
        with contextlib.suppress(OSError):  # it is open already
            if is_shut:
                filter_ = struct.pack("HP", 1, ctypes.addressof(program))
                each.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, filter_)
            else:
                each.setsockopt(socket.SOL_SOCKET, _SO_DETACH_FILTER, 0)


def listening(port: int) -> Iterator[socket.socket]:
    """Yield the sockets of this process, gRPC's too, that listen at a TCP port; not beyond Linux.

    They are not to be kept. Raises OSError if there is no descriptor left to look for them.
    """
    if sys.platform != "linux":
        return
    for name in os.listdir("/proc/self/fd"):
        found = None
        with contextlib.suppress(OSError):  # it is no socket, or closed meanwhile
            found = socket.socket(fileno=int(name))
        if found is None:
            continue
        try:
            with contextlib.suppress(OSError):
                if (
                    found.family in (socket.AF_INET, socket.AF_INET6)
                    and found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
                    and found.getsockname()[1] == port
                ):
                    yield found
        finally:
            found.detach()  # it is its owner's
