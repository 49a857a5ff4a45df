"""Names of any length in requests: refused, and cut where they are logged."""

from __future__ import annotations

import grpc
import pytest

import opdispatch_client as oc
from opdispatch_wire.status import error_from_rpc
from opdispatch_wire.v1 import registry_pb2, registry_pb2_grpc
from tests.service.running_daemon import RunningDaemon

SHARED_WORKERS = 1
LONG = "a." * 500_000 + "a"


@pytest.mark.parametrize(
    "source",
    [
        {"module": LONG},
        {"filename": f"{LONG}.py", "content": b"x = 1\n"},
        {"filename": "a.py", "content": b"x = 1\n", "name": LONG},
    ],
    ids=["module", "filename", "name"],
)
def test_a_library_of_a_long_name_is_refused_in_a_short_line(
    shared_daemon: RunningDaemon, shared: oc.Session, source: dict[str, object]
):
    with grpc.insecure_channel(shared_daemon.address) as channel:
        stub = registry_pb2_grpc.RegistryServiceStub(channel)
        with pytest.raises(grpc.RpcError) as caught:
            stub.LoadLibrary(registry_pb2.LoadLibraryRequest(**source), timeout=60)
    error = error_from_rpc(caught.value, address=shared_daemon.address)
    assert type(error) in (oc.LibraryLoadError, oc.WireError)
    assert len(str(error)) < 1000
    assert max(map(len, shared_daemon.log().splitlines())) < 3000
