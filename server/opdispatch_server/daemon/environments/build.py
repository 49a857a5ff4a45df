"""Building an environment with the available tools: uv, or else venv and pip."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import os
import re
import shutil
import signal
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from opdispatch_server.daemon.environments.interpreter_packages import (
    Bootstrap,
    interpreter_requirements,
)
from opdispatch_server.daemon.environments.library_home import LibraryHome
from opdispatch_wire.errors import LibraryLoadError

Report = Callable[[str], None]

OLDEST_PYTHON = (3, 11)
CHECK_TIMEOUT = 60.0
OUTPUT_LINES_KEPT = 40
# The longest text in a fact of an error.
OUTPUT_BYTES_TOLD = 500
_LINE_LIMIT = 2000
_CHUNK = 64 * 1024
# pip prints the index that it uses; the address of a private index contains a password.
_UNTOLD = re.compile(r"Looking in (indexes|links)|\[notice\]|^\s*$")
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
# Kills the tool, and everything that it started, when the daemon is gone, which holds the other end
# of stdin. All are in one process group, whose leader is this process.
_WITH_DAEMON = """\
import os, signal, subprocess, sys, threading

def end_with_daemon():
    os.read(0, 1)
    os.killpg(0, signal.SIGKILL)

threading.Thread(target=end_with_daemon, daemon=True).start()
sys.exit(subprocess.call(sys.argv[1:], stdin=subprocess.DEVNULL) % 256)
"""


class StepError(Exception):
    """A tool has failed; ``lines`` is the end of what it printed."""

    def __init__(self, tool: str, status: int, lines: Sequence[str]) -> None:
        super().__init__(f"{tool} ended with status {status}")
        self.tool = tool
        self.lines = list(lines)

    @property
    def reason(self) -> str:
        """The line that best explains the failure."""
        lines = [line.strip() for line in self.lines]
        # uv's own reason, then that of either tool
        for pattern in (r"cause: (.+)", r"(?:ERROR|error): (.+)"):
            for line in lines:
                if found := re.match(pattern, line):
                    return found[1].rstrip(".")
        return self.lines[-1].strip() if self.lines else str(self)

    @property
    def last_lines(self) -> str:
        """The end of the tool's output, in whole lines."""
        told: list[str] = []
        for line in reversed(self.lines):
            if len("\n".join([line, *told]).encode()) > OUTPUT_BYTES_TOLD:
                break
            told.insert(0, line)
        return "\n".join(told)


def python_of(folder: Path) -> Path:
    """Return the Python of the environment in ``folder``."""
    return folder / "bin" / "python"


def _is_editable(line: str) -> bool:
    return line.startswith(("-e ", "--editable"))


async def build_environment(
    folder: Path, home: LibraryHome, bootstrap: Bootstrap, report: Report
) -> None:
    """Build an environment in the empty ``folder``, with what ``home`` requires.

    ``bootstrap`` starts the interpreter. Raises LibraryLoadError if a requirement cannot be
    installed, or if no interpreter runs in the result.
    """
    requirements = folder / "requirements.txt"
    constraints = folder / "constraints.txt"
    core = "".join(f"{requirement}\n" for requirement in interpreter_requirements())
    # Another Python cannot use the daemon's packages, so it needs its own.
    own = core if home.requires_python else ""
    requirements.write_text("".join(f"{line}\n" for line in home.requirements) + own)
    constraints.write_text(core)
    try:
        for step in _steps(folder, home):
            await run_step(step, report)
    except StepError as error:
        what = ", ".join(r for r in home.requirements if not r.startswith("-") or _is_editable(r))
        what = what or f"Python {home.requires_python}"
        raise LibraryLoadError(
            f"{what[:300]} cannot be installed: {error.reason}",
            hint="the requirements must also fit what opdispatch's interpreters need: "
            + ", ".join(core.split()),
            output=error.last_lines,
        ) from error
    await check_python(python_of(folder), bootstrap, report)


async def check_python(python: Path, bootstrap: Bootstrap, report: Report) -> str:
    """Check whether interpreters can run with ``python``. Raises LibraryLoadError.

    Returns the folder of its packages.
    """
    report(f"trying {python}")
    version, place = await _ask_version(python)
    try:
        async with asyncio.timeout(CHECK_TIMEOUT):
            await run_step(bootstrap.command(python), _unheard)
    except TimeoutError as error:
        raise LibraryLoadError(
            f"{python} did not import opdispatch within {CHECK_TIMEOUT:g} s"
        ) from error
    except StepError as error:
        needed = " ".join(f"'{requirement}'" for requirement in interpreter_requirements())
        raise LibraryLoadError(
            f"{python} ({version}) cannot run opdispatch's interpreters: {error.reason}",
            hint=f"install what they need there: {python} -m pip install {needed}",
            output=error.last_lines,
        ) from error
    return place


async def _ask_version(python: Path) -> tuple[str, str]:
    """Return the version, like "Python 3.11.7", and the folder of its packages.

    Raises LibraryLoadError if it is unsuitable.
    """
    if not os.access(python, os.X_OK) or not python.is_file():
        raise LibraryLoadError(f"{python} is not a Python interpreter: there is no such program")
    show = (
        "import sys, sysconfig; sys.stdout.write('Python %d.%d.%d\\n' % sys.version_info[:3]); "
        "sys.stdout.write(sysconfig.get_path('purelib'))"
    )
    try:
        async with asyncio.timeout(CHECK_TIMEOUT):
            lines = await run_step([str(python), "-E", "-c", show], _unheard)
    except StepError as error:
        raise LibraryLoadError(f"{python} is not a Python interpreter: {error.reason}") from error
    except TimeoutError as error:
        raise LibraryLoadError(
            f"{python} is not a Python interpreter: it does not print its version"
        ) from error
    version = re.fullmatch(r"Python (\d+)\.(\d+)\.\d+", lines[0] if len(lines) == 2 else "")
    if version is None:
        raise LibraryLoadError(
            f"{python} is not a Python interpreter: it does not print its version"
        )
    if (int(version[1]), int(version[2])) < OLDEST_PYTHON:
        raise LibraryLoadError(f"{python} is {version[0]}; opdispatch needs 3.11 or newer")
    return version[0], lines[1]


async def run_step(command: Sequence[str], report: Report) -> list[str]:
    """Run a tool and report every line as it comes; return the last lines. Raises StepError.

    If cancelled, kills the tool and everything that it started.
    """
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-E", "-S", "-c", _WITH_DAEMON, *command),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        start_new_session=True,
        env=_tool_environment(),
    )
    kept: deque[str] = deque(maxlen=OUTPUT_LINES_KEPT)
    try:
        assert process.stdout is not None, "it is a pipe"
        rest = b""
        while chunk := await process.stdout.read(_CHUNK):
            *lines, rest = re.split(rb"[\r\n]", (rest + chunk)[-_CHUNK:])
            for line in _readable(lines):
                kept.append(line)
                report(line)
        kept.extend(_readable([rest]))
        status = await process.wait()
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
    if status:
        raise StepError(Path(command[0]).name, status, kept)
    return list(kept)


def _steps(folder: Path, home: LibraryHome) -> Iterator[list[str]]:
    python = str(python_of(folder))
    wanted = ["-r", str(folder / "requirements.txt"), "-c", str(folder / "constraints.txt")]
    if uv := shutil.which("uv"):
        wanted_python = home.requires_python or sys.executable
        yield [uv, "venv", "--allow-existing", "--python", wanted_python, str(folder)]
        yield [uv, "pip", "install", "--python", python, *wanted]
        return
    if home.requires_python:
        raise LibraryLoadError(
            f"the library needs Python {home.requires_python}; the daemon runs "
            f"{sys.version.split()[0]}, and uv, which could install another, is not on its PATH",
            hint="install uv, or give the Python of an existing environment",
        )
    quietly = ["--no-input", "--disable-pip-version-check", "--progress-bar", "off"]
    if importlib.util.find_spec("pip") is not None:
        yield [sys.executable, "-m", "venv", "--without-pip", str(folder)]
        yield [sys.executable, "-m", "pip", "--python", python, "install", *quietly, *wanted]
    else:
        yield [sys.executable, "-m", "venv", str(folder)]
        yield [python, "-m", "pip", "install", *quietly, *wanted]


def _tool_environment() -> dict[str, str]:
    environment = {**os.environ, "NO_COLOR": "1", "PYTHONUNBUFFERED": "1"}
    for name in ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV"):
        environment.pop(name, None)
    return environment


def _readable(lines: Sequence[bytes]) -> Iterator[str]:
    for line in lines:
        text = _ESCAPES.sub("", line.decode(errors="backslashreplace")).rstrip()[:_LINE_LIMIT]
        if not _UNTOLD.search(text):
            yield text


def _unheard(line: str) -> None:
    pass
