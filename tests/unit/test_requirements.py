"""Versions that the extras allow an installer: it does not ask packages that are there already."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

PROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
# The last protobuf 6: kserve, mlserver and tritonclient take nothing later.
PROTOBUF_6, PROTOBUF_7 = "6.33.6", "7.35.1"


def requirements_of(*lines: str) -> dict[str, Requirement]:
    return {found.name: found for found in map(Requirement, lines)}


OURS = requirements_of(*PROJECT["dependencies"])
SERVERS = requirements_of(*PROJECT["optional-dependencies"]["server"])


@pytest.mark.parametrize("version", [PROTOBUF_6, PROTOBUF_7])
def test_client_takes_either_protobuf(version: str):
    assert OURS["protobuf"].specifier.contains(version)
    assert OURS["googleapis-common-protos"].specifier.contains("1.70.0")


@pytest.mark.parametrize("name", ["grpcio-health-checking", "grpcio-reflection"])
def test_server_takes_only_what_protobuf_6_suffices_for(name: str):
    chosen = SERVERS[name].specifier
    assert chosen.contains("1.81.1")
    for later in ("1.82.0", "1.82.1", "1.85.1", "2.0"):
        assert not chosen.contains(later)


def test_grpcio_has_no_upper_bound():
    """It needs no protobuf itself."""
    operators = {each.operator for each in OURS["grpcio"].specifier}
    assert operators == {">="}
