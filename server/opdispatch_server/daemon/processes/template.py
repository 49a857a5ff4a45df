"""A warmed-up process from which interpreters are forked: see ``worker.template_process``.

Starting Python and importing an interpreter's modules takes about a hundred times as long as a
fork. The template is forked from the daemon's own process before that has an event loop, a thread
or a connection, so it inherits none of them. It holds nothing of any library: it runs no code but
the fork.

Note [Whose children forked interpreters are]. The daemon has to learn how an interpreter ends, and
an interpreter has to end with the daemon; both require the daemon to be its parent. So the template
forks twice, the process in the middle ends, and the system reparents the interpreter to the nearest
ancestor that adopts orphans: the daemon, which is one (``PR_SET_CHILD_SUBREAPER``) only while it
waits for a fork, since it has no use for other orphans.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import json
import os
import socket
import sys
from collections.abc import Callable, Sequence
from typing import Protocol

from opdispatch_server.process_watch import has_process_descriptors

_PR_SET_CHILD_SUBREAPER = 36
REPLY_BYTES = 4096
LOST = "the process that interpreters are forked from has ended"


class TemplateLostError(OSError):
    """The template has ended. Interpreters can be started without it."""


class ChildProcess(Protocol):
    """A child of the daemon, such as an asyncio.subprocess.Process."""

    @property
    def pid(self) -> int:
        """The process id."""

    async def wait(self) -> int:
        """Wait until it ends; return the exit status, negative for a signal."""


class ForkedProcess:
    """A child that this process did not start itself. For use in the event loop only."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        loop = asyncio.get_running_loop()
        self._ended: asyncio.Future[int] = loop.create_future()
        self._descriptor = os.pidfd_open(pid)
        loop.add_reader(self._descriptor, self._end)

    async def wait(self) -> int:
        """See ChildProcess."""
        return await asyncio.shield(self._ended)

    def _end(self) -> None:
        asyncio.get_running_loop().remove_reader(self._descriptor)
        assert sys.platform == "linux", "there are process descriptors"
        result = os.waitid(os.P_PIDFD, self._descriptor, os.WEXITED)
        os.close(self._descriptor)
        assert result is not None, "it waits"
        exited = result.si_code == os.CLD_EXITED
        self._ended.set_result(result.si_status if exited else -result.si_status)


class Template:
    """The daemon's end of a template. After ``fork``, for use in the event loop only.

    Guards: ``_turn`` is held from a request to its reply, so that only one is pending at a time.
    """

    def __init__(self, pid: int, channel: socket.socket) -> None:
        self._pid = pid
        self._channel = channel
        self._turn = asyncio.Lock()

    @classmethod
    def fork(cls, main: Callable[[socket.socket], None]) -> Template | None:
        """Fork this process, which must have one thread; the child runs ``main``, and then ends.

        Return None where the system lacks the means, as before Linux 5.3.
        """
        if not has_process_descriptors() or not _adopt_orphans(True):
            return None
        _adopt_orphans(False)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        pid = os.fork()
        if pid == 0:
            try:
                ours.close()
                main(theirs)
            finally:
                os._exit(1)
        theirs.close()
        ours.setblocking(False)
        return cls(pid, ours)

    async def start(self, arguments: Sequence[str], *, stdin: int, output: int) -> ForkedProcess:
        """Fork an interpreter with these arguments and descriptors.

        Raises OSError if the system has no process to spare, TemplateLostError if the template has
        ended.
        """
        request = json.dumps({"arguments": list(arguments)}).encode()
        async with self._turn:
            _adopt_orphans(True)
            try:
                socket.send_fds(self._channel, [request], [stdin, output])
                reply = await asyncio.get_running_loop().sock_recv(self._channel, REPLY_BYTES)
            except OSError as error:
                raise TemplateLostError(
                    f"the template of interpreters has ended: {error}"
                ) from error
            finally:
                _adopt_orphans(False)
        if not reply:
            raise TemplateLostError(LOST)
        answer = json.loads(reply)
        if "error" in answer:
            raise OSError(answer["error"])
        return ForkedProcess(answer["pid"])

    async def close(self) -> None:
        """End the template; processes forked from it continue. Idempotent."""
        if self._channel.fileno() < 0:
            return
        self._channel.close()
        with contextlib.suppress(OSError):
            await ForkedProcess(self._pid).wait()


def _adopt_orphans(wanted: bool) -> bool:
    """Make this process adopt orphaned descendants, or stop doing so.

    Return whether the system supports that.
    """
    try:
        return bool(ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, int(wanted), 0, 0, 0) == 0)
    except (OSError, AttributeError):
        return False
