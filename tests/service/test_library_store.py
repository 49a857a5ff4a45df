"""The store of uploads, without a daemon around it."""

from __future__ import annotations

import hashlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from opdispatch_server.library_code.library_store import LibraryStore
from opdispatch_wire.errors import LibraryLoadError

CONTENT = b"x = 1\n"
DIGEST = hashlib.sha256(CONTENT).hexdigest()


def test_content_is_found_under_its_digest(tmp_path: Path):
    store = LibraryStore(tmp_path / "a" / "b")
    assert store.put(CONTENT) == DIGEST
    assert store.get(DIGEST) == CONTENT
    assert [path.name for path in (tmp_path / "a" / "b").iterdir()] == [DIGEST]


def test_the_same_content_from_several_threads_is_kept_once(tmp_path: Path):
    store = LibraryStore(tmp_path)
    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(store.put, [CONTENT] * 32)) == {DIGEST}
    assert [path.name for path in tmp_path.iterdir()] == [DIGEST]


def test_damaged_content_is_refused_and_can_be_stored_again(tmp_path: Path):
    store = LibraryStore(tmp_path)
    store.put(CONTENT)
    (tmp_path / DIGEST).write_bytes(b"x = 2\n")
    with pytest.raises(LibraryLoadError, match="is damaged"):
        store.get(DIGEST)
    store.put(CONTENT)
    assert store.get(DIGEST) == CONTENT


def test_content_that_is_gone_is_an_error_of_ours(tmp_path: Path):
    with pytest.raises(LibraryLoadError, match="cannot be read: No such file"):
        LibraryStore(tmp_path).get(DIGEST)


def test_a_disk_that_refuses_leaves_no_draft(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def fail(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", fail)
    with pytest.raises(OSError, match="No space left"):
        LibraryStore(tmp_path).put(CONTENT)
    assert list(tmp_path.iterdir()) == []
