"""opdispatch and other servers in one fresh environment, whichever was installed first."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = ("dispatcher", "proto", "server", "client", "stress")
# What to install, and what to import beside us.
PEERS = {
    "kserve": "kserve",
    "mlserver": "mlserver.grpc.dataplane_pb2",
    "tritonclient[grpc]": "tritonclient.grpc",
    "ray": "ray",
}
LIBRARY = """\
from opdispatch import Library

lib = Library("beside", "DEF")
lib.define("double(Tensor x) -> Tensor")
lib.impl("double", lambda x: 2 * x, "CPU")
"""
# With a message of the peer's in the same process as ours.
CALLS = """\
import importlib, subprocess, sys
import numpy as np
import opdispatch_client as oc

importlib.import_module(sys.argv[1])
command = ["-m", "opdispatch_client.cli", "serve", "--workers", "1", "--state", "state"]
daemon = subprocess.Popen(
    [sys.executable, *command, "--listen", "127.0.0.1:0"], stdout=subprocess.PIPE, text=True
)
try:
    address = daemon.stdout.readline().split()[-1]
    for lane in ("local", "stream", "grpc"):
        with oc.connect(address, lane=lane) as session:
            session.load("beside.py")
            assert session.ops.beside.double(np.arange(3.0)).tolist() == [0, 2, 4]
    status = [sys.executable, "-m", "opdispatch_client.cli", "--address", address, "health"]
    subprocess.run(status, check=True)
finally:
    daemon.terminate()
    assert daemon.wait(20) == 0
"""

pytestmark = [pytest.mark.installs, pytest.mark.timeout(900)]


def run(*command: object, cwd: Path) -> str:
    done = subprocess.run(
        [*map(str, command)],
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:]
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a copy: setuptools leaves what it makes, and finds it again, in the sources."""
    folder = tmp_path_factory.mktemp("wheel")
    for name in SOURCES:
        shutil.copytree(
            ROOT / name, folder / name, ignore=shutil.ignore_patterns("*.egg-info", "__pycache__")
        )
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder)
    run(sys.executable, "-m", "pip", "wheel", "--no-deps", "--wheel-dir", "out", ".", cwd=folder)
    [found] = (folder / "out").glob("*.whl")
    return found


@pytest.mark.parametrize("is_first", [True, False], ids=["peer first", "opdispatch first"])
@pytest.mark.parametrize("peer", PEERS)
def test_installing_after_each_other_leaves_both_whole(
    tmp_path: Path, wheel: Path, peer: str, is_first: bool
):
    run(sys.executable, "-m", "venv", "env", cwd=tmp_path)
    python = tmp_path / "env" / "bin" / "python"
    ours = f"opdispatch[server] @ {wheel.as_uri()}"
    for what in (peer, ours) if is_first else (ours, peer):
        run(python, "-m", "pip", "install", "--no-compile", what, cwd=tmp_path)
    run(python, "-m", "pip", "check", cwd=tmp_path)
    (tmp_path / "beside.py").write_text(LIBRARY)
    (tmp_path / "calls.py").write_text(CALLS)
    run(python, "calls.py", PEERS[peer], cwd=tmp_path)
