"""Uploads that mean harm, sent to a real daemon: refused there, and nothing else is affected."""

from __future__ import annotations

import hashlib
import io
import zipfile

import grpc
import pytest

import opdispatch_client as oc
from opdispatch_wire.status import error_from_rpc
from opdispatch_wire.v1 import registry_pb2, registry_pb2_grpc
from tests.service.libraries import constant
from tests.service.running_daemon import RunningDaemon
from tests.waits import LONGEST_WAIT

SHARED_WORKERS = 1


def load(channel: grpc.Channel, **fields: object) -> registry_pb2.LoadLibraryReply:
    """Load past the client's own checks."""
    stub = registry_pb2_grpc.RegistryServiceStub(channel)
    try:
        return stub.LoadLibrary(registry_pb2.LoadLibraryRequest(**fields), timeout=LONGEST_WAIT)
    except grpc.RpcError as error:
        raise error_from_rpc(error, address="here") from None


def zipped(name: str, data: bytes) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(name, data)
    return out.getvalue()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (zipped("../../etc/cron.d/x.py", b""), "outside the archive"),
        (zipped("/ops.py", b""), "outside the archive"),
        (zipped("ops.py", b"0" * 64 * 2**20), "times its own size"),
        (zipped("ops.py", b"x = 1")[:-30], "not a zip archive we can read"),
        (b"PK", "not a zip archive we can read"),
    ],
    # Not the bytes: an archive has the time in it, and two processes must name tests alike.
    ids=["above", "absolute", "bomb", "cut", "short"],
)
def test_a_hostile_archive_reaches_no_interpreter(
    unharmed: oc.Session, channel: grpc.Channel, content: bytes, words: str
):
    with pytest.raises(oc.LibraryLoadError, match=words):
        load(channel, content=content, filename="ops.zip")
    assert [library.name for library in unharmed.libraries()] == ["image"]


def test_an_upload_must_be_what_the_client_has_sent(
    unharmed: oc.Session, channel: grpc.Channel, loaded: RunningDaemon
):
    content = constant(5).encode()
    digest = hashlib.sha256(content).hexdigest()
    with pytest.raises(oc.LibraryLoadError, match=f"arrived with the SHA-256 {digest}; expected"):
        load(channel, content=content, filename="const.py", sha256="0" * 64)
    assert not list((loaded.folder / "state" / "libraries").glob(digest))
    reply = load(channel, content=content, filename="const.py", sha256=digest.upper())
    assert reply.library.sha256 == digest
    unharmed.unload("const")
