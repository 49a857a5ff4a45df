"""What the command line imports, and when."""

from __future__ import annotations

import subprocess
import sys

import pytest

import opdispatch_client

_PROGRAM = """
import sys
from opdispatch_client.cli import main
code = main(sys.argv[1:])
heavy = sorted({"grpc", "numpy", "google.protobuf", "PIL"} & sys.modules.keys())
print(f"code {code}, imported {heavy}", file=sys.stderr)
"""


@pytest.mark.parametrize("words", [["--help"], ["call", "--help"], ["--version"]])
def test_help_needs_neither_grpc_nor_numpy(words):
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, *words], capture_output=True, text=True, check=True
    )
    assert done.stderr == "code 0, imported []\n"
    assert done.stdout


def test_every_public_name_exists():
    assert opdispatch_client.__all__ == sorted(opdispatch_client.__all__)
    for name in opdispatch_client.__all__:
        assert getattr(opdispatch_client, name) is not None
    assert set(opdispatch_client.__all__) <= set(dir(opdispatch_client))
    with pytest.raises(AttributeError, match="no attribute 'missing'"):
        opdispatch_client.missing  # noqa: B018


_WITHOUT_SERVER = """
import sys
sys.modules["grpc_health"] = None  # as if it were not installed
from opdispatch_client.cli import main
sys.exit(main(["serve", "--workers", "0", "--listen", "unix:/nowhere/daemon.sock"]))
"""


def test_serve_without_the_servers_packages_says_what_to_install():
    done = subprocess.run([sys.executable, "-c", _WITHOUT_SERVER], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (
        1,
        "",
        "opdispatch: `opdispatch serve` needs the package 'grpc_health', which is not installed; "
        "install opdispatch[server]\n",
    )
