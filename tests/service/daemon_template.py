"""The process that daemons of tests are forked from: see ``warm_daemon``.

``python daemon_template.py NAME`` imports all that a daemon consists of, then forks one for each
request on standard input. NAME is the variable in whose place in its environment, as /proc shows
it, each fork has the value that was asked for.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import importlib
import json
import os
import socket
import sys
import threading
from pathlib import Path
from types import ModuleType
from typing import NoReturn

REQUEST_BYTES = 1 << 17


def _import_daemon() -> None:
    """Import all that ``opdispatch serve`` does until it is ready, and its template for itself."""
    from opdispatch_server.fork_guard import NO_FORK_SUPPORT

    os.environ.update(NO_FORK_SUPPORT, GRPC_VERBOSITY="NONE")  # read as gRPC is imported
    import setproctitle

    for name in (
        "opdispatch_client.cli.app",
        "opdispatch_server.commands.running",
        "opdispatch_server.daemon.lifecycle",
        "opdispatch_server.worker.template_process",
        "opdispatch_server.worker.interpreter_process",
        # Of the library ``array``, which interpreters load: what is but imported.
        "opdispatch.native.array.autocast",
        "opdispatch.native.array.batching",
        "opdispatch.native.array.functionalization",
    ):
        importlib.import_module(name)
    with contextlib.suppress(ModuleNotFoundError):  # of an extra
        for name in ("daemon.monitoring.service", "daemon.monitoring.server"):
            importlib.import_module(f"opdispatch_server.{name}")
        importlib.import_module("uvicorn.protocols.http.h11_impl")
    from opdispatch_client.cli.app import build_app
    from opdispatch_server.daemon_configuration import installed_version

    installed_version()  # parsed once for all forks

    # Each fork would put the command line together for itself.
    app = build_app()
    words = ["serve"]
    app.resolve_command(app.make_context("opdispatch", words), words)
    # Looks for the place of the title once, from where the environment is at first.
    os.environ["SPT_NOENV"] = "1"
    setproctitle.getproctitle()


def _main(name: str) -> None:
    # Where the value is in memory: what /proc shows is read from there.
    first = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[47])
    shown = Path("/proc/self/environ").read_bytes()
    mark = first + shown.index(f"{name}=".encode()) + len(name) + 1
    channel = socket.socket(fileno=os.dup(0))
    gc.disable()
    _import_daemon()
    gc.freeze()
    while True:
        data, descriptors, _, _ = socket.recv_fds(channel, REQUEST_BYTES, 2)
        if not data:
            return
        told, tell = os.pipe()
        middle = os.fork()
        if middle == 0:
            if pid := os.fork():
                os.write(tell, b"%d" % pid)
                os._exit(0)
            os.close(told)
            os.close(tell)
            break
        os.close(tell)
        # Its end is only waited for after it has told: then the fork has its new parent.
        pid = os.read(told, 64)
        os.close(told)
        os.waitpid(middle, 0)
        for descriptor in descriptors:
            os.close(descriptor)
        channel.send(pid)
    channel.close()
    os.setsid()
    request = json.loads(data)
    os.environ.clear()
    os.environ.update(request["environment"])
    value = os.environ.get(name, "").encode()
    ctypes.memmove(mark, value, len(value))
    os.chdir(request["folder"])
    sys.path.insert(0, request["folder"])
    nothing = os.open(os.devnull, os.O_RDONLY)
    for number, source in enumerate((nothing, *descriptors)):
        os.dup2(source, number)
        os.close(source)
    # Made again: they remember what the descriptors were.
    sys.stdin = open(0, closefd=False)  # noqa: SIM115 - open until the end
    sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, errors="backslashreplace", closefd=False)  # noqa: SIM115
    gc.enable()
    for path, number in request["constants"].items():
        module, _, constant = path.rpartition(".")
        _change(importlib.import_module(module), constant, number)
    if request["code"] is not None:
        sys.argv = ["-c"]
        module = sys.modules["__main__"] = ModuleType("__main__")
        exec(compile(request["code"], "<string>", "exec"), module.__dict__)
        return
    from opdispatch_client.cli import main

    sys.argv = ["opdispatch", *request["arguments"]]
    _leave(main())


def _change(module: ModuleType, constant: str, value: float) -> None:
    before = getattr(module, constant)
    assert isinstance(before, int | float), f"{module.__name__}.{constant} is no number"
    setattr(module, constant, value)


def _leave(status: int) -> NoReturn:
    """End this process as Python does, but for taking apart what it has imported.

    That is pages upon pages that it shares with the template, and would get copies of.
    """
    threading._shutdown()  # type: ignore[attr-defined]  # waits for threads, and ends executors
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    _main(sys.argv[1])
