"""The store of uploads, without a daemon around it."""

from __future__ import annotations

import hashlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from opdispatch_server.library_code.library_store import LibraryStore
from opdispatch_server.library_code.unpacked_libraries import LibraryFolder
from opdispatch_wire.errors import InterpreterNotFoundError, JournalError, LibraryLoadError

CONTENT = b"x = 1\n"
DIGEST = hashlib.sha256(CONTENT).hexdigest()


def content_of(store: LibraryStore, digest: str) -> bytes:
    return store.get_path(digest).read_bytes()


def test_content_is_found_under_its_digest(tmp_path: Path):
    store = LibraryStore(tmp_path / "a" / "b")
    assert store.put(CONTENT) == DIGEST
    assert content_of(store, DIGEST) == CONTENT
    assert [path.name for path in (tmp_path / "a" / "b").iterdir()] == [DIGEST]


def test_same_content_from_several_threads_is_kept_once(tmp_path: Path):
    store = LibraryStore(tmp_path)
    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(store.put, [CONTENT] * 32)) == {DIGEST}
    assert [path.name for path in tmp_path.iterdir()] == [DIGEST]


def test_damaged_content_is_refused_and_can_be_stored_again(tmp_path: Path):
    LibraryStore(tmp_path).put(CONTENT)
    (tmp_path / DIGEST).write_bytes(b"x = 2\n")
    store = LibraryStore(tmp_path)
    with pytest.raises(LibraryLoadError, match="is damaged"):
        store.unpack(DIGEST, "a.py")
    store.put(CONTENT)
    assert content_of(store, DIGEST) == CONTENT


def test_content_that_is_gone_is_an_error_of_ours(tmp_path: Path):
    with pytest.raises(LibraryLoadError, match="cannot be read: No such file"):
        LibraryStore(tmp_path).unpack(DIGEST, "a.py")


def upload(store: LibraryStore, *chunks: bytes) -> None:
    """Upload CONTENT in parts; these come."""
    part = store.begin(DIGEST, len(CONTENT), "a.py")
    for chunk in chunks:
        store.append(part, chunk, "a.py")
    store.end(part, "a.py")
    store.close(part)


def fail(*_: object) -> None:
    raise OSError(28, "No space left on device")


@pytest.mark.parametrize("call", ["os.fsync", "os.write", "os.fchmod"])
def test_disk_that_refuses_leaves_nothing_of_an_upload(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
):
    store = LibraryStore(tmp_path / "libraries")
    if call != "os.write":
        with monkeypatch.context() as patch:
            patch.setattr(call, fail)
            with pytest.raises(JournalError, match="stored: No space left"):
                store.unpack(store.put(CONTENT), "a.py")
    if call != "os.fchmod":
        with monkeypatch.context() as patch:
            patch.setattr(call, fail)
            with pytest.raises(JournalError, match="stored: No space left"):
                upload(store, CONTENT)
    names = [path.name for path in (tmp_path / "libraries").iterdir()]
    assert names == ([DIGEST] if call == "os.fchmod" else [])
    assert not list((tmp_path / "unpacked").glob("*"))


def test_upload_in_parts_goes_on_where_it_was_broken_off(tmp_path: Path):
    first = LibraryStore(tmp_path).begin(DIGEST, len(CONTENT), "a.py")
    first.append(CONTENT[:2], "a.py")
    first.close()
    store = LibraryStore(tmp_path)
    part = store.begin(DIGEST, len(CONTENT), "a.py")
    assert part.received == 2
    store.append(part, CONTENT[2:], "a.py")
    store.end(part, "a.py")
    assert [path.name for path in tmp_path.iterdir()] == [DIGEST]
    assert content_of(store, DIGEST) == CONTENT


@pytest.mark.parametrize(
    ("chunks", "words"),
    [
        ([b"x = 2\n"], "arrived with the SHA-256"),
        ([b"x = 1"], "5 bytes; 6 were announced"),
        ([CONTENT, b"!"], "more than the announced 6 bytes"),
    ],
)
def test_upload_of_another_file_leaves_nothing(tmp_path: Path, chunks: list[bytes], words: str):
    store = LibraryStore(tmp_path)
    with pytest.raises(LibraryLoadError, match=words):
        upload(store, *chunks)
    assert list(tmp_path.iterdir()) == []


def test_limits_of_an_upload_and_of_the_disk(tmp_path: Path):
    store = LibraryStore(tmp_path / "libraries", upload_bytes=100, disk_bytes=250)
    with pytest.raises(LibraryLoadError, match="101 bytes; the limit is 100"):
        store.begin(DIGEST, 101, "a.zip")
    first = store.put(b"#" * 100)
    store.unpack(first, "a.py")
    second = store.put(b"!" * 100)  # what is unpacked can be unpacked again
    assert store.unpack(first, "a.py").is_dir()
    with pytest.raises(JournalError, match=r"has 100 bytes, .* 200 already; the limit is 250"):
        store.put(b"?" * 100)
    assert {path.name for path in store.paths()} == {first, second}
    assert not list((tmp_path / "unpacked").iterdir())


def test_limit_of_the_disk_counts_uploads_that_are_coming_or_were_broken_off(tmp_path: Path):
    store = LibraryStore(tmp_path / "libraries", disk_bytes=250)
    first = store.begin("1" * 64, 200, "a.zip")
    with pytest.raises(JournalError, match=r"has 100 bytes, .* 200 already; the limit is 250"):
        store.begin("2" * 64, 100, "b.zip")
    with pytest.raises(JournalError, match=r"has 100 bytes, .* 200 already; the limit is 250"):
        store.put(b"#" * 100)
    store.append(first, b"!" * 90, "a.zip")
    store.close(first)
    third = store.begin("3" * 64, 150, "c.zip")
    store.append(third, b"!" * 150, "c.zip")
    assert (first.path.stat().st_size, third.path.stat().st_size) == (90, 150)
    # The room that there is goes to the one that comes; what was broken off is given up for it.
    store.close(store.begin("4" * 64, 100, "d.zip"))
    assert not first.path.exists()
    store.close(third)


@pytest.mark.parametrize("digest", ["", "../secret", DIGEST.upper(), f"{DIGEST}\n"])
def test_store_touches_no_file_that_has_no_digest_for_a_name(tmp_path: Path, digest: str):
    secret = tmp_path / "secret"
    secret.write_bytes(CONTENT)
    store = LibraryStore(tmp_path / "libraries")
    for name in (digest, str(secret)):
        assert not store.has(name)
        with pytest.raises(LibraryLoadError, match="is not a SHA-256 digest"):
            store.get_path(name)
    assert secret.read_bytes() == CONTENT


def test_upload_stays_only_if_it_was_there_or_a_load_of_it_succeeds(tmp_path: Path):
    store = LibraryStore(tmp_path / "libraries")

    def load(*, store: LibraryStore = store, error: Exception | None = None) -> bool:
        store.begin_load(DIGEST)
        store.unpack(store.put(CONTENT), "a.py")
        if error is None:
            store.prove(DIGEST)
        store.end_load(DIGEST, is_useless=isinstance(error, LibraryLoadError))
        unpacked = bool(list((tmp_path / "unpacked").glob("*")))
        assert unpacked == store.has(DIGEST)
        return unpacked

    assert not load(error=LibraryLoadError("its import raised"))
    assert load(error=InterpreterNotFoundError("there is none"))  # it can be loaded later
    assert not load(error=LibraryLoadError("its import raised"))
    store.begin_load(DIGEST)
    assert load(error=LibraryLoadError("another load is under way"))
    store.end_load(DIGEST, is_useless=False)
    assert load()
    assert load(error=LibraryLoadError("its import raised"))
    assert load(store=LibraryStore(tmp_path / "libraries"), error=LibraryLoadError("later"))


def test_folder_that_is_in_use_is_not_removed(tmp_path: Path):
    store = LibraryStore(tmp_path / "libraries")
    folder = LibraryFolder(store.unpack(store.put(CONTENT), "a.py"), "a.py", "a")
    assert store.unpacked.remove() == 0
    assert (folder.path / "a.py").read_bytes() == CONTENT
    folder.close()
    assert store.unpacked.remove() == len(CONTENT)
    assert not folder.path.exists()
