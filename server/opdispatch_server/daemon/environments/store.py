"""The environments on disk, one for each set of requirements."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import functools
import hashlib
import json
import logging
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from opdispatch_server.daemon.environments.build import (
    Report,
    build_environment,
    check_python,
    python_of,
)
from opdispatch_server.daemon.environments.interpreter_packages import (
    ABI,
    Bootstrap,
    write_packages,
)
from opdispatch_server.daemon.environments.library_home import LibraryHome
from opdispatch_server.daemon.event_loop.shielded import shielded
from opdispatch_server.daemon_configuration import installed_version
from opdispatch_server.library_code.digest import digest_file
from opdispatch_server.lock_file import open_lock_file
from opdispatch_server.log_fields import Event, fields
from opdispatch_wire.errors import DeadlineExceededError, LibraryLoadError

LOG = logging.getLogger("opdispatch.environments")

BUILD_TIMEOUT = 1800.0
# While a tool works silently, waiting callers receive a report that it continues.
KEEPALIVE = 1.0
_LOCK = ".being-built"


class Environment(NamedTuple):
    """A Python that interpreters can run with. Equal homes have environments with equal keys."""

    key: str
    python: Path
    # The folders from which it imports modules.
    places: tuple[str, ...]


@dataclass(slots=True)
class _Build:
    """A build in progress, and the callbacks that report its steps."""

    task: asyncio.Task[Environment]
    listeners: list[Report] = field(default_factory=list)


class EnvironmentStore:
    """The environments in one folder: ``KEY`` is a link to the folder ``KEY.xxxxxxxx``.

    The link is created atomically when the environment is complete: a crash leaves a folder without
    a link, which the next build removes. (Renaming the folder itself would break the scripts in it,
    which begin with its path.) The packages of ``bootstrap`` are written when first needed. For use
    in the event loop only.
    """

    def __init__(self, folder: Path, bootstrap: Bootstrap) -> None:
        self._folder = folder
        self._bootstrap = bootstrap
        self._builds: dict[str, _Build] = {}
        self._checked: dict[str, Environment] = {}

    async def get(self, home: LibraryHome, report: Report) -> Environment:
        """Return the environment that ``home`` asks for; build it first, if it does not exist.

        ``report`` is called with each step. A caller that asks for an environment being built waits
        for that build. Raises LibraryLoadError: then nothing is left behind.
        """
        key = await asyncio.to_thread(find_key, home)
        if found := await asyncio.to_thread(self._find, key, home):
            return found
        build = self._builds.get(key)
        if build is None:
            self._builds[key] = build = _Build(asyncio.create_task(self._make(key, home)))
            build.task.add_done_callback(functools.partial(self._built, key))
        else:
            report(f"waiting for environment {key[:8]}, which is being made")
        build.listeners.append(report)
        try:
            # A caller that gives up leaves the build running for the others, or for its next
            # attempt.
            return await shielded(build.task)
        finally:
            build.listeners.remove(report)

    async def stop(self) -> None:
        """End every build, leaving nothing behind."""
        tasks = [build.task for build in self._builds.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _built(self, key: str, task: asyncio.Task[Environment]) -> None:
        del self._builds[key]
        if not task.cancelled() and (error := task.exception()) is not None:
            LOG.warning(
                "%s", error, extra=fields(Event.ENVIRONMENT_FAILED)
            )  # even if it is no longer awaited

    def _find(self, key: str, home: LibraryHome) -> Environment | None:
        if not self._bootstrap.packages.exists():  # the first time: most daemons never need it
            write_packages(self._bootstrap.packages)
        if home.python:
            found = self._checked.get(key)
            return found if found and found.python.exists() else None
        # The Python that a link leads to may have been uninstalled.
        python = python_of(self._folder / key)
        return self._built_in(key) if os.access(python, os.X_OK) else None

    def _built_in(self, key: str) -> Environment:
        folder = self._folder / key
        places = sorted(str(path) for path in folder.glob("lib/python*/site-packages"))
        return Environment(key, python_of(folder), tuple(places))

    async def _make(self, key: str, home: LibraryHome) -> Environment:
        keeping_alive = asyncio.create_task(self._keep_alive(key))
        try:
            async with asyncio.timeout(BUILD_TIMEOUT):
                if not home.python:
                    return await self._build(key, home)
                python = Path(home.python)
                places = await check_python(python, self._bootstrap, self._tell(key))
                self._checked[key] = Environment(key, python, (places,))
                return self._checked[key]
        except TimeoutError as error:
            raise DeadlineExceededError(
                f"making environment {key[:8]} took longer than {BUILD_TIMEOUT:g} s"
            ) from error
        except OSError as error:
            raise LibraryLoadError(
                f"environment {key[:8]} cannot be made: {error.strerror}",
                hint="see the daemon's --state folder",
            ) from error
        finally:
            keeping_alive.cancel()

    async def _build(self, key: str, home: LibraryHome) -> Environment:
        # Another caller may have finished it while this one was still searching.
        if found := await asyncio.to_thread(self._find, key, home):
            return found
        await asyncio.to_thread(self._remove_abandoned)
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        tell = self._tell(key)
        tell(f"making environment {key[:8]} for {', '.join(home.requirements) or 'Python'}")
        draft = Path(tempfile.mkdtemp(prefix=f"{key}.", dir=self._folder))
        try:
            with _locked(draft):
                await build_environment(draft, home, self._bootstrap, tell)
                await asyncio.to_thread(self._put_in_place, key, draft)
        except BaseException:
            await asyncio.to_thread(shutil.rmtree, draft, ignore_errors=True)
            raise
        tell(f"environment {key[:8]} is ready")
        return self._built_in(key)

    def _put_in_place(self, key: str, draft: Path) -> None:
        os.sync()  # a link must not survive a loss of power that its environment does not
        link = self._folder / key
        fresh = self._folder / f"{draft.name}.link"
        fresh.symlink_to(draft.name)
        fresh.rename(link)

    def _remove_abandoned(self) -> None:
        """Remove folders without a link that no caller is building."""
        if not self._folder.is_dir():
            return
        paths = list(self._folder.iterdir())
        used = {path.readlink().name for path in paths if path.is_symlink()}
        for path in paths:
            if path.name.endswith(".link"):
                path.unlink(missing_ok=True)
            elif re.fullmatch(r"[0-9a-f]{32}\.\w+", path.name) and path.name not in used:
                with contextlib.suppress(OSError), _locked(path):
                    shutil.rmtree(path, ignore_errors=True)

    def _tell(self, key: str) -> Report:
        def tell(line: str) -> None:
            build = self._builds.get(key)
            for listener in list(build.listeners) if build else ():
                listener(line)

        return tell

    async def _keep_alive(self, key: str) -> None:
        tell = self._tell(key)
        while True:
            await asyncio.sleep(KEEPALIVE)
            tell("")


def find_key(home: LibraryHome) -> str:
    """Return the name of the environment: a digest of requirements, Python and opdispatch."""
    text = json.dumps(
        [
            home.requirements,
            home.requires_python,
            home.python,
            sys.version,
            ABI,
            installed_version(),
            [digest_file(path) for path in _local_files(home)],
        ]
    )
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _local_files(home: LibraryHome) -> Iterator[Path]:
    """Yield the files named as requirements: their content is part of the key."""
    for line in home.requirements:
        _, at, url = line.partition(" @ ")
        try:
            place = unquote(urlsplit(url.split(" ;")[0].strip()).path) if at else line
        except ValueError:
            continue  # an invalid URL; the installer reports it
        path = Path(os.path.expanduser(place))
        if (not at or url.startswith("file:")) and path.is_absolute() and path.is_file():
            yield path


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Lock the folder for this process.

    Raises BlockingIOError if another process holds the lock.
    """
    lock = open_lock_file(folder / _LOCK)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(lock)
