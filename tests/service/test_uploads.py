"""Uploads in chunks: broken off and gone on with, raced, refused, and not what they say."""

from __future__ import annotations

import hashlib
import os
import resource
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path

import grpc
import numpy as np
import pytest

import opdispatch_client as oc
from opdispatch_wire.status import error_from_rpc
from opdispatch_wire.v1 import registry_pb2 as pb
from opdispatch_wire.v1 import registry_pb2_grpc
from tests.service.conftest import StartDaemon
from tests.service.libraries import constant
from tests.service.running_daemon import RunningDaemon, wait_for
from tests.waits import LONGEST_WAIT

SHARED_WORKERS = 1
SIZE = 24 * 2**20
X = np.zeros(1)


class CuttingProxy:
    """Passes bytes on to a daemon's unix socket; each connection ends after ``limit`` of them."""

    def __init__(self, folder: Path, target: Path) -> None:
        self.path = folder / "proxy.sock"
        self.limits: list[int] = []
        """Of the connections to come, in their order; those after them have none."""
        self._target = target
        self._server = socket.socket(socket.AF_UNIX)
        self._server.bind(str(self.path))
        self._server.listen()
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._server.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._server.accept()
                limit = self.limits.pop(0) if self.limits else None
                daemon = socket.socket(socket.AF_UNIX)
                daemon.connect(str(self._target))
                for source, sink, count in ((client, daemon, limit), (daemon, client, None)):
                    passing = (source, sink, count)
                    threading.Thread(target=self._pass_on, args=passing, daemon=True).start()

    def _pass_on(self, source: socket.socket, sink: socket.socket, limit: int | None) -> None:
        passed = 0
        with suppress(OSError):
            while data := source.recv(2**16):
                sink.sendall(data)
                passed += len(data)
                if limit is not None and passed > limit:
                    break
        for each in (source, sink):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()


def write_large(folder: Path, number: int = 1) -> Path:
    package = folder / "const"
    package.mkdir(exist_ok=True)
    (package / "__init__.py").write_text(constant(number))
    (package / "weights.bin").write_bytes(os.urandom(SIZE))
    return package


def parts(daemon: RunningDaemon) -> list[Path]:
    return list((daemon.folder / "state" / "libraries").glob(".part-*"))


def test_upload_goes_on_by_itself_when_its_connection_breaks(
    lent_daemon: RunningDaemon, tmp_path: Path
):
    socket_path = Path(lent_daemon.address.removeprefix("unix://"))
    with closing(CuttingProxy(tmp_path, socket_path)) as proxy:
        proxy.limits = [SIZE // 3, SIZE // 3]
        told: list[int] = []
        with oc.connect(f"unix://{proxy.path}", lane="grpc") as session:
            session.load(write_large(tmp_path), on_upload=lambda n, total: told.append(n))
            assert session.ops.const.get(X) == 1
    assert proxy.limits == []  # both were cut
    assert told == sorted(told)  # and nothing was sent again that had arrived
    assert told[0] == 0
    assert told[-1] > SIZE
    assert parts(lent_daemon) == []


def test_upload_goes_on_after_the_daemon_has_been_killed(start_daemon: StartDaemon, tmp_path: Path):
    class EnoughError(Exception):
        pass

    def stop_halfway(received: int, total: int) -> None:
        if received > SIZE // 3:
            raise EnoughError

    package = write_large(tmp_path)
    first = start_daemon(workers=1)
    with first.connect() as session, pytest.raises(EnoughError):
        session.load(package, on_upload=stop_halfway)
    first.process.kill()
    first.process.wait(LONGEST_WAIT)
    [part] = parts(first)
    kept = part.stat().st_size
    assert kept > SIZE // 3
    told: list[int] = []
    second = start_daemon(workers=1)
    with second.connect() as session:
        session.load(package, on_upload=lambda n, total: told.append(n))
        assert session.ops.const.get(X) == 1
    assert told[0] == kept
    assert parts(second) == []


def test_same_file_from_several_clients_at_once_is_sent_once(
    lent_daemon: RunningDaemon, tmp_path: Path
):
    package = write_large(tmp_path)

    def load(_: int) -> list[int]:
        told: list[int] = []
        with lent_daemon.connect() as session:
            session.load(package, on_upload=lambda n, total: told.append(n))
        return told

    with ThreadPoolExecutor(3) as pool:
        all_told = list(pool.map(load, range(3)))
    assert sorted(told[0] == 0 for told in all_told) == [False, False, True]


@pytest.fixture
def upload(channel: grpc.Channel) -> Callable[..., list[pb.UploadLibraryReply]]:
    """Uploads past the client's own checks."""
    stub = registry_pb2_grpc.RegistryServiceStub(channel)

    def upload(*requests: pb.UploadLibraryRequest) -> list[pb.UploadLibraryReply]:
        try:
            return list(stub.UploadLibrary(iter(requests), timeout=60))
        except grpc.RpcError as error:
            raise error_from_rpc(error, address="here") from None

    return upload


CONTENT = b"#" * 10
DIGEST = hashlib.sha256(CONTENT).hexdigest()


def file(**fields: object) -> pb.UploadLibraryRequest:
    whole = {"filename": "a.py", "sha256": DIGEST, "size": len(CONTENT), **fields}
    return pb.UploadLibraryRequest(file=pb.UploadedFile(**whole))


def chunk(data: bytes) -> pb.UploadLibraryRequest:
    return pb.UploadLibraryRequest(chunk=data)


@pytest.mark.parametrize(
    ("requests", "error", "words"),
    [
        ([], oc.WireError, "ended before the file was whole"),
        ([chunk(CONTENT)], oc.WireError, "kind is not file"),
        ([pb.UploadLibraryRequest()], oc.WireError, "kind is not file"),
        ([file(sha256="../../x")], oc.WireError, "expected 64 lowercase hexadecimal digits"),
        ([file(sha256=DIGEST.upper())], oc.WireError, "expected 64 lowercase hexadecimal digits"),
        ([file(filename="")], oc.WireError, "filename is empty"),
        ([file(size=2**60)], oc.LibraryLoadError, "the limit is"),
        ([file(), file()], oc.WireError, "is not a chunk"),
        ([file(), chunk(b"")], oc.WireError, "is not a chunk"),
        ([file(), chunk(CONTENT + b"!")], oc.LibraryLoadError, "more than the announced 10 bytes"),
        ([file(), chunk(b"!" * 10)], oc.LibraryLoadError, "arrived with the SHA-256"),
        ([file(), chunk(b"#" * 5)], oc.WireError, "ended before the file was whole"),
    ],
)
def test_upload_that_is_none_is_refused(
    upload: Callable[..., object],
    lent_daemon: RunningDaemon,
    requests: list[pb.UploadLibraryRequest],
    error: type[Exception],
    words: str,
):
    with pytest.raises(error, match=words):
        upload(*requests)
    for part in parts(lent_daemon):
        part.unlink()  # of the last one
    assert not (lent_daemon.folder / "state" / "libraries" / DIGEST).exists()


def test_load_of_what_was_never_uploaded_is_refused(channel: grpc.Channel):
    stub = registry_pb2_grpc.RegistryServiceStub(channel)
    for uploaded, words in ((DIGEST, "has not been uploaded"), ("../x", "expected a SHA-256")):
        request = pb.LoadLibraryRequest(uploaded=uploaded, filename="a.py")
        with pytest.raises(grpc.RpcError, match=words):
            stub.LoadLibrary(request, timeout=LONGEST_WAIT)


def test_limits_of_uploads_are_said_before_anything_is_sent(
    start_daemon: StartDaemon, tmp_path: Path
):
    package = write_large(tmp_path)
    daemon = start_daemon("--max-library-bytes", str(SIZE), workers=1)
    told: list[int] = []
    with (
        daemon.connect() as session,
        pytest.raises(oc.LibraryLoadError, match=rf"bytes; the limit is {SIZE} .*max-library"),
    ):
        session.load(package, on_upload=lambda n, total: told.append(n))
    daemon.stop()
    daemon = start_daemon("--library-disk-bytes", str(SIZE), workers=1)
    with (
        daemon.connect() as session,
        pytest.raises(oc.JournalError, match=rf"the limit is {SIZE} .*state prune"),
    ):
        session.load(package, on_upload=lambda n, total: told.append(n))
    assert told == []
    assert parts(daemon) == []


def test_disk_that_is_full_is_no_fault_of_the_client(start_daemon: StartDaemon, tmp_path: Path):
    # The daemon may write files of so many bytes: its disk, as far as it can see.
    daemon = start_daemon(workers=1)
    resource.prlimit(daemon.process.pid, resource.RLIMIT_FSIZE, (SIZE // 2, SIZE // 2))
    with daemon.connect() as session:
        with pytest.raises(oc.JournalError, match="cannot be stored: File too large"):
            session.load(write_large(tmp_path))
        assert parts(daemon) == []
        (tmp_path / "const.py").write_text(constant(1))
        session.load(tmp_path / "const.py")
        assert session.ops.const.get(X) == 1


def test_folder_that_changes_while_it_is_sent_is_refused(
    lent_daemon: RunningDaemon, tmp_path: Path
):
    package = write_large(tmp_path)

    def change(received: int, total: int) -> None:
        with (package / "weights.bin").open("r+b") as weights:
            weights.seek(SIZE - 10)
            weights.write(b"changed")

    with (
        lent_daemon.connect() as session,
        pytest.raises(oc.LibraryLoadError, match="changed on the way, or while it was being sent"),
    ):
        session.load(package, on_upload=change)
    assert wait_for(lambda: parts(lent_daemon) == [])


@pytest.fixture
def channel(lent_daemon: RunningDaemon) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(lent_daemon.address.replace("unix://", "unix:")) as channel:
        yield channel
