"""A library that reads files, and that writes and reads pickles of its own classes."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np

from tests.waits import LONGEST_WAIT

MAIN = """\
import copyreg
import importlib
import importlib.resources
import inspect
import io
import pickle
import sys
import time
from importlib import import_module
from pathlib import Path

import joblib
import numpy as np

import datalib
import datalib.deep.inner as inner
from opdispatch import Library

from . import model
from .model import Model, Reduced

HERE = Path(__file__).parent
WEIGHTS = np.load(HERE / "data" / "weights.npy", mmap_mode="r")
lazy = import_module(__name__ + ".lazy")
beside = import_module(".lazy", __package__)
copyreg.pickle(Reduced, model.reduce)


def facts() -> list[str]:
    resources = importlib.resources.files(__package__)
    found = [
        __name__,
        __package__,
        type(WEIGHTS).__name__,
        str(WEIGHTS.sum()),
        (resources / "data" / "words.txt").read_text(),
        importlib.resources.files("datalib.data").joinpath("words.txt").read_text(),
        open(HERE / "data" / "words.txt").read(),
        Model.__module__,
        str(lazy is beside is not None and lazy.VALUE),
        inspect.getsource(Model.apply),
        inspect.getsource(facts).splitlines()[0],
        str(inspect.getmodule(facts).facts is facts),
        str(sys.modules[__name__].Model is Model is datalib.model.Model is model.Model),
        str(inner.parent_model() is Model),
    ]
    if (HERE / "model.pickle").exists():
        with open(HERE / "model.pickle", "rb") as file:
            found.append(str(type(pickle.load(file)) is Model))
        loaded = joblib.load(HERE / "model.joblib")
        found += [str(type(loaded["model"]) is Model), str(loaded["weights"].sum())]
    return found


def dump() -> str:
    buffer = io.BytesIO()
    joblib.dump({"model": Model(7), "weights": np.arange(3.0)}, buffer)
    pickles = [pickle.dumps([Model(7), Reduced(8)], protocol) for protocol in range(2, 6)]
    return "|".join(each.hex() for each in [*pickles, buffer.getvalue()])


def load(text: str) -> str:
    *pickles, dumped = map(bytes.fromhex, text.split("|"))
    for each in pickles:
        loads = [pickle.loads, lambda data: pickle._Unpickler(io.BytesIO(data)).load()]
        for one, two in (load(each) for load in loads):
            assert type(one) is Model, type(one)
            assert type(two) is Reduced, type(two)
            assert (one.factor, two.factor) == (7, 8)
    loaded = joblib.load(io.BytesIO(dumped))
    assert type(loaded["model"]) is Model
    assert datalib.lazy.VALUE == 1
    return f"{loaded['model'].apply(1)} by {VERSION}"


def hold(text: str, gate: str) -> str:
    Path(f"{gate}.reached").touch()
    deadline = time.monotonic() + 60
    while not Path(gate).exists():
        assert time.monotonic() < deadline
        time.sleep(0.002)
    return f"{load(text)}, {load(dump())}, {facts()[-1]}"


max_concurrency = 4
VERSION = 1
lib = Library("datalib", "DEF")
for schema, function in {
    "facts() -> str[]": facts,
    "dump() -> str": dump,
    "load(str text) -> str": load,
    "hold(str text, str gate) -> str": hold,
}.items():
    lib.impl(lib.define(schema), function, "CompositeImplicitAutograd")
"""

FILES = {
    "__init__.py": MAIN,
    "model.py": """\
from dataclasses import dataclass


@dataclass
class Model:
    factor: int

    def apply(self, x):
        return x * self.factor * 1


class Reduced:
    def __init__(self, factor):
        self.factor = factor


def reduce(reduced):
    return Reduced, (reduced.factor,)
""",
    "lazy.py": "VALUE = 1\n",
    "deep/__init__.py": "",
    "deep/inner.py": """\
def parent_model():
    from ..model import Model
    return Model
""",
    "data/words.txt": "words\n",
}


def write_data_library(folder: Path) -> Path:
    """Write the package ``datalib``, with data and with pickles that another process has made."""
    package = folder / "datalib"
    for name, text in FILES.items():
        path = package / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    np.save(package / "data" / "weights.npy", np.arange(1000.0))
    run_in_process(
        folder,
        "import joblib, pickle, numpy as np\n"
        "from datalib.model import Model\n"
        "pickle.dump(Model(3), open('datalib/model.pickle', 'wb'))\n"
        "joblib.dump({'model': Model(3), 'weights': np.ones(9)}, 'datalib/model.joblib')\n",
    )
    return package


def make_version(package: Path, number: int) -> None:
    """Change the library: models multiply by ``number``, too."""
    for name, old, new in (
        ("__init__.py", "VERSION = ", f"VERSION = {number} #"),
        ("model.py", "self.factor * ", f"self.factor * {number} #"),
    ):
        path = package / name
        path.write_text(path.read_text().replace(old, new))


def zip_package(package: Path) -> Path:
    """Return the package as a zip archive, as people make one."""
    archive = package.parent / "archive" / "datalib.zip"
    archive.parent.mkdir(exist_ok=True)
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as file:
        for path in sorted(package.rglob("*")):
            file.write(path, path.relative_to(package.parent))
    return archive


def run_in_process(folder: Path, code: str) -> str:
    """Run code in another process, in which the library lies on ``sys.path``; what it prints."""
    command = [sys.executable, "-c", code]
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, check=False, timeout=LONGEST_WAIT
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
