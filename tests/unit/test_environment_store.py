"""Environments that cannot be made."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path
from typing import Any, NoReturn

import pytest

from opdispatch_server.environments import environment_store
from opdispatch_server.environments.environment_store import EnvironmentStore
from opdispatch_server.environments.library_home import LibraryHome
from opdispatch_wire.errors import LibraryLoadError


async def test_nothing_is_left_of_one_and_the_daemon_goes_on_meanwhile(
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
    store = EnvironmentStore(tmp_path / "environments", tmp_path / "packages.json")
    with pytest.raises(LibraryLoadError, match="no such package"):
        await store.get(LibraryHome(requirements=("nothing==1",)), lambda line: None)
    assert list((tmp_path / "environments").iterdir()) == []
    assert len(threads) == 1
    assert threading.get_ident() not in threads
