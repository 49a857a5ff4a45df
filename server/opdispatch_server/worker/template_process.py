"""The process from which interpreters are forked, on the daemon's request.

See ``daemon.processes.template``.

It has one thread and runs no library code: an interpreter does all its work after the fork. It ends
when the daemon closes its end of the channel, or dies.
"""

from __future__ import annotations

import gc
import io
import json
import os
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NoReturn

import setproctitle

from opdispatch_server import deferred_numpy

REQUEST_BYTES = 65536


def main(channel: socket.socket) -> None:
    """Import the modules of interpreters, then fork one for each request."""
    _leave_the_daemon()
    gc.disable()
    deferred_numpy.load()
    from opdispatch_server.worker import interpreter_process

    # Frozen, because the first collection in each fork would otherwise copy every page that it
    # visits.
    gc.freeze()
    # Read with the first process title, which must not overwrite the environment in /proc.
    os.environ["SPT_NOENV"] = "1"
    setproctitle.setproctitle("opdispatch: template of interpreters")
    del os.environ["SPT_NOENV"]
    while True:
        request, descriptors, _, _ = socket.recv_fds(channel, REQUEST_BYTES, 2)
        if not request:
            return
        arguments = json.loads(request)["arguments"]

        def become_interpreter() -> NoReturn:
            channel.close()
            _prepare(arguments, descriptors)  # noqa: B023
            interpreter_process.main(arguments)  # noqa: B023

        reply: dict[str, object]
        try:
            reply = {"pid": _fork_twice(become_interpreter)}
        except OSError as error:
            reply = {"error": f"cannot fork: {error.strerror}"}
        for descriptor in descriptors:
            os.close(descriptor)
        with suppress(OSError):  # the next read notices that the daemon has gone
            channel.send(json.dumps(reply).encode())


def _leave_the_daemon() -> None:
    """Detach from the parent process: give up everything that a fork shares with it."""
    os.setsid()  # Ctrl-C in the daemon's terminal must only reach the daemon
    os.environ["PYTHONUNBUFFERED"] = "1"
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
    # Readers of the daemon's output wait for its end: this process must not keep it open.
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    os.dup2(2, 1)
    sys.path[0] = os.getcwd()  # as with `python -m`, whatever script started the daemon


def _fork_twice(run: Callable[[], NoReturn]) -> int:
    """Fork a process that is no child of this one and calls ``run``; return its process id.

    See Note [Whose children forked interpreters are]. Raises OSError.
    """
    told, tell = os.pipe()
    begin, let_begin = os.pipe()
    try:
        middle = os.fork()
        if middle == 0:
            os.close(told)
            os.close(let_begin)
            _fork_once_more(run, tell, begin)
        os.close(tell)
        tell = -1
        report = os.read(told, 64)
        os.waitpid(middle, 0)
        # Only now is the daemon its parent, which is the first thing that an interpreter checks.
        os.write(let_begin, b"!")
    finally:
        for descriptor in (told, tell, begin, let_begin):
            if descriptor >= 0:
                os.close(descriptor)
    pid = int(report or b"-11")
    if pid < 0:
        raise OSError(-pid, os.strerror(-pid))
    return pid


def _fork_once_more(run: Callable[[], NoReturn], tell: int, begin: int) -> NoReturn:
    """Fork again, in the intermediate process, write the process id or -errno, and end."""
    try:
        try:
            pid = os.fork()
        except OSError as error:
            pid = -(error.errno or 1)
        if pid:
            os.write(tell, b"%d" % pid)
            os._exit(0)
        os.close(tell)
        if os.read(begin, 1):
            os.close(begin)
            run()
    finally:
        os._exit(1)


def _prepare(arguments: Sequence[str], descriptors: Sequence[int]) -> None:
    """Make a fork equivalent to a process that was started with these arguments."""
    os.setsid()
    stdin, output = descriptors
    for descriptor, source in ((0, stdin), (1, output), (2, output)):
        os.dup2(source, descriptor)
    for descriptor in descriptors:
        os.close(descriptor)
    sys.stdin = sys.__stdin__ = io.TextIOWrapper(io.BufferedReader(io.FileIO(0)))  # type: ignore[misc]
    sys.stdout = sys.__stdout__ = _unbuffered(1, "strict")  # type: ignore[misc]
    sys.stderr = sys.__stderr__ = _unbuffered(2, "backslashreplace")  # type: ignore[misc]
    sys.argv = [__file__, *arguments]
    if (random := sys.modules.get("numpy.random")) is not None:
        random.seed()  # all forks would draw the same numbers; Python reseeds its own generator
    setproctitle.setproctitle(f"opdispatch: interpreter {arguments[arguments.index('--name') + 1]}")
    gc.enable()


def _unbuffered(descriptor: int, errors: str) -> io.TextIOWrapper:
    """Return a text stream like Python's own with PYTHONUNBUFFERED."""
    return io.TextIOWrapper(io.FileIO(descriptor, "w"), errors=errors, write_through=True)
