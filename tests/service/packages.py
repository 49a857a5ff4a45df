"""Tiny packages for tests, as wheels: installed for real, without a network."""

from __future__ import annotations

import zipfile
from pathlib import Path


def write_wheel(folder: Path, name: str, version: str, *, source: str = "") -> Path:
    """A wheel of one module, ``name``, whose ``VERSION`` is its version."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}-{version}-py3-none-any.whl"
    info = f"{name}-{version}.dist-info"
    files = {
        f"{name}.py": f"VERSION = {version!r}\n{source}",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: tests\n"
        "Root-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{file},,\n" for file in (*files, f"{info}/RECORD"))
    with zipfile.ZipFile(path, "w") as wheel:
        for file, text in {**files, f"{info}/RECORD": record}.items():
            wheel.writestr(file, text)
    return path


def offline(wheels: Path, *requirements: str) -> list[str]:
    """Requirements that are met from a folder of wheels alone."""
    return ["--no-index", f"--find-links {wheels}", *requirements]


def reporting(namespace: str, package: str, *, metadata: str = "", top: str = "") -> str:
    """A library whose operator tells the version of a package, as a number."""
    return f"""\
{metadata}
import sys
import {package}
from opdispatch import Library
{top}

lib = Library({namespace!r}, "DEF")
lib.define("version(Tensor x) -> str")
lib.define("prefix(Tensor x) -> str")
lib.impl("version", lambda x: {package}.VERSION, "CPU")
lib.impl("prefix", lambda x: sys.prefix, "CPU")
"""


def script_metadata(*dependencies: str, python: str = "") -> str:
    """The comment block that declares dependencies in a file."""
    lines = ["# /// script"]
    if python:
        lines.append(f'# requires-python = "{python}"')
    lines += ["# dependencies = [", *(f'#   "{line}",' for line in dependencies), "# ]", "# ///"]
    return "\n".join(lines)


# Its wheel is made when a file says so; a test can do what it likes until then.
_BACKEND = """\
import pathlib, sys, time
sys.path.insert(0, {tests!r})
from tests.service.packages import write_wheel

def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    gate = pathlib.Path({gate!r})
    (gate / "building").touch()
    while not (gate / "go").exists():
        time.sleep(0.01)
    return write_wheel(pathlib.Path(wheel_directory), "slowpack", "1.0").name
"""


def write_slow_project(folder: Path, gate: Path) -> Path:
    """A project, ``slowpack``: being built, it makes ``gate/building`` and awaits ``gate/go``."""
    folder.mkdir()
    (folder / "pyproject.toml").write_text(
        '[project]\nname = "slowpack"\nversion = "1.0"\n'
        '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
    )
    tests = str(Path(__file__).parents[2])
    (folder / "backend.py").write_text(_BACKEND.format(tests=tests, gate=str(gate)))
    return folder
