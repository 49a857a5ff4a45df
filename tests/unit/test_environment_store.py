"""Environments that cannot be made."""

from __future__ import annotations

import asyncio
import shutil
import threading
from pathlib import Path
from typing import Any, NoReturn

import pytest

from opdispatch_server.daemon.environments import store as environment_store
from opdispatch_server.daemon.environments.interpreter_packages import Bootstrap
from opdispatch_server.daemon.environments.library_home import LibraryHome
from opdispatch_server.daemon.environments.store import Environment, EnvironmentStore
from opdispatch_wire.errors import LibraryLoadError
from tests.waits import LONGEST_WAIT


def bootstrap_in(folder: Path) -> Bootstrap:
    return Bootstrap(folder / "bootstrap.py", folder / "packages.json")


async def test_failed_environment_is_removed_without_blocking_the_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """There may be thousands of files in it."""

    async def fail(folder: Path, *args: object) -> NoReturn:
        (folder / "lib").mkdir()
        raise LibraryLoadError("no such package")

    remove, threads = shutil.rmtree, []

    def note_thread(*args: Any, **kwargs: Any) -> None:
        threads.append(threading.get_ident())
        remove(*args, **kwargs)

    monkeypatch.setattr(environment_store, "build_environment", fail)
    monkeypatch.setattr(environment_store.shutil, "rmtree", note_thread)
    store = EnvironmentStore(tmp_path / "environments", bootstrap_in(tmp_path))
    with pytest.raises(LibraryLoadError, match="no such package"):
        await store.get(LibraryHome(requirements=("nothing==1",)), lambda line: None)
    assert list((tmp_path / "environments").iterdir()) == []
    assert len(threads) == 1
    assert threading.get_ident() not in threads


async def test_environment_finished_during_a_look_up_is_not_built_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Its folder would be abandoned under the interpreters that run in it."""
    begun, looked, is_made = asyncio.Event(), asyncio.Event(), threading.Event()
    built = []
    loop = asyncio.get_running_loop()

    async def build(folder: Path, *args: object) -> None:
        built.append(folder)
        begun.set()
        await looked.wait()
        (folder / "bin").mkdir()
        (folder / "bin" / "python").touch(0o700)

    store = EnvironmentStore(tmp_path / "environments", bootstrap_in(tmp_path))
    find = store._find

    def find_slowly(key: str, home: LibraryHome) -> Environment | None:
        found = find(key, home)
        loop.call_soon_threadsafe(looked.set)
        is_made.wait(LONGEST_WAIT)
        return found

    monkeypatch.setattr(environment_store, "build_environment", build)
    home = LibraryHome(requirements=("something==1",))
    first = asyncio.create_task(store.get(home, lambda line: None))
    await begun.wait()
    monkeypatch.setattr(store, "_find", find_slowly)
    second = asyncio.create_task(store.get(home, lambda line: None))
    environment = await first
    is_made.set()
    assert await second == environment
    assert len(built) == 1
