"""The checked-in stubs are those of the .proto files beside them."""

import importlib.util
from pathlib import Path

import pytest

from opdispatch_wire import v1

PROTO = Path(__file__).resolve().parents[2] / "proto"
REMEDY = "proto/opdispatch_wire/v1 is stale: run `make protos`"


@pytest.fixture(scope="module")
def generator():
    spec = importlib.util.spec_from_file_location("generate", PROTO / "generate.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_stubs_were_generated_from_the_sources_as_they_are(generator):
    assert generator.digest_sources() == v1.SOURCES_SHA256, REMEDY


def test_every_source_has_its_stubs():
    for source in (PROTO / "opdispatch" / "v1").glob("*.proto"):
        for suffix in ("_pb2.py", "_pb2.pyi"):
            assert (PROTO / "opdispatch_wire" / "v1" / f"{source.stem}{suffix}").is_file(), REMEDY


def test_generating_again_gives_the_same_bytes(generator, tmp_path):
    """Run only where grpcio-tools is installed, as in the environment of `make protos`."""
    pytest.importorskip("grpc_tools")
    generator.generate(tmp_path)
    checked_in = {path.name: path.read_bytes() for path in generator.OUTPUT.glob("*.py*")}
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == checked_in, REMEDY
