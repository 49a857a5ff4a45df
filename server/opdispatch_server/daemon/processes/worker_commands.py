"""The command lines that start the processes of interpreters."""

from __future__ import annotations

import hashlib
import os
import re
import sys
from pathlib import Path
from typing import NamedTuple

from opdispatch_server.daemon.environments.interpreter_packages import Bootstrap
from opdispatch_server.daemon.processes.launched_worker import WorkerCommand
from opdispatch_server.daemon.processes.template import Template
from opdispatch_server.serving.run_folder import RunFolder


class InterpreterEntry(NamedTuple):
    """The entry points of interpreter processes.

    The daemon's Python runs ``module``; the Python of another environment, which need not have
    opdispatch installed, runs ``bootstrap``; and ``template``, if there is one, forks.
    """

    module: str
    bootstrap: Path
    template: Template | None = None


class WorkerCommands(NamedTuple):
    """The options that all interpreters have in common.

    ``daemon`` is the address that they connect to. The daemon's Python runs ``module``, that of
    another environment ``bootstrap``.
    """

    daemon: str
    folder: RunFolder
    module: str
    bootstrap: Bootstrap
    message_limit: int
    log_level: str

    def command_for(self, name: str, device: str, python: Path | None) -> WorkerCommand:
        """Return how to start an interpreter; without ``python``, with the daemon's own."""
        start = (
            (sys.executable, "-m", self.module)
            if python is None
            else self.bootstrap.command(python, "-u")
        )
        file_name = _file_name(name)
        arguments = (
            *("--daemon", self.daemon),
            *("--listen", self.folder.socket(f"{file_name}.sock")),
            *("--lane", self.folder.lane(file_name)),
            *("--direct-lane", self.folder.lane(f"{file_name}.direct")),
            *("--name", name),
            *("--device", device),
            *("--parent", str(os.getpid())),
            *("--max-message-bytes", str(self.message_limit)),
            *("--log-level", self.log_level),
        )
        return WorkerCommand(start, arguments, is_own=python is None)


def _file_name(interpreter: str) -> str:
    """Return a short file name: library names are part of it, and socket paths are limited."""
    if re.fullmatch(r"worker-\d{1,3}", interpreter):
        return interpreter
    return hashlib.sha256(interpreter.encode()).hexdigest()[:10]
