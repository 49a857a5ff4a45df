"""Libraries that are more than source: files beside it, resources, pickles of their own classes."""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import opdispatch_client as oc
from tests.service.conftest import StartDaemon
from tests.service.data_library import make_version, run_in_process, write_data_library, zip_package
from tests.service.running_daemon import RunningDaemon, wait_for
from tests.service.test_interpreters import worker


@pytest.fixture(scope="module")
def shared_daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningDaemon]:
    """A daemon with an interpreter of its own, and one that cannot read its files."""
    daemon = RunningDaemon(tmp_path_factory.mktemp("data"), workers=1)
    try:
        daemon.wait_until_ready()
        with (
            worker(daemon, "--name", "far", "--listen", "127.0.0.1:0"),
            daemon.connect() as session,
        ):
            assert wait_for(lambda: len(session.interpreters()) == 2)
            yield daemon
    finally:
        daemon.clean_up()


@pytest.fixture
def session(lent_daemon: RunningDaemon) -> Iterator[oc.Session]:
    with lent_daemon.connect() as session:
        yield session


@pytest.fixture
def package(tmp_path: Path) -> Path:
    return write_data_library(tmp_path)


def as_folder(package: Path) -> Path:
    return package


Source = Callable[[Path], Path]


@pytest.mark.parametrize("interpreter", ["worker-1", "far"])
@pytest.mark.parametrize("source", [as_folder, zip_package])
def test_library_finds_its_files_and_classes_as_in_process(
    session: oc.Session, package: Path, source: Source, interpreter: str
):
    code = "import datalib, json; print(json.dumps([datalib.facts(), datalib.dump()]))"
    facts, dumped = json.loads(run_in_process(package.parent, code))
    loaded = session.load(source(package), interpreter=interpreter)
    assert loaded.name == "datalib"
    assert session.ops.datalib.facts() == facts
    assert facts[0] == "datalib"
    assert session.ops.datalib.load(dumped) == "7 by 1"  # of another process
    assert session.ops.datalib.load(session.ops.datalib.dump()) == "7 by 1"
    by_service = repr(session.ops.datalib.dump())
    assert run_in_process(package.parent, f"import datalib; print(datalib.load({by_service}))") == (
        "7 by 1\n"
    )


@pytest.mark.parametrize("source", [as_folder, zip_package])
def test_versions_in_one_interpreter_have_classes_of_their_own(
    session: oc.Session, lent_daemon: RunningDaemon, package: Path, source: Source
):
    first = session.load(source(package), interpreter="worker-1")
    dumped, gate = session.ops.datalib.dump(), package.parent / "gate"
    with ThreadPoolExecutor(1) as pool, lent_daemon.connect() as other:
        held = pool.submit(other.ops.datalib.hold, dumped, str(gate))
        assert wait_for(Path(f"{gate}.reached").exists)
        make_version(package, 2)
        session.load(source(package), interpreter="worker-1")
        assert session.ops.datalib.load(dumped) == "14 by 2"
        assert session.ops.datalib.load(session.ops.datalib.dump()) == "14 by 2"
        gate.touch()
        # The one that was running still has its own, though the newer one is in force.
        assert held.result(60).startswith("7 by 1, 7 by 1, ")
    session.rollback("datalib")
    assert session.ops.datalib.load(dumped) == "7 by 1"
    session.unload("datalib", version=first.version)
    assert session.ops.datalib.load(dumped) == "14 by 2"
    assert "apply(self, x):\n        return x * self.factor * 2" in session.ops.datalib.facts()[9]


def test_single_file_has_its_own_classes_beside_another_of_that_name(
    session: oc.Session, tmp_path: Path
):
    for number in (1, 2):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "shared.py").write_text(
            "import inspect, pickle, sys\n"
            "from pathlib import Path\n"
            "from opdispatch import Library\n"
            f"class Model: factor = {number}\n"
            f"lib = Library('shared{number}', 'DEF')\n"
            "def copied() -> str:\n"
            "    model = pickle.loads(pickle.dumps(Model()))\n"
            "    assert type(model) is Model is sys.modules[__name__].Model\n"
            "    return f'{__name__} {Path(__file__).name} {inspect.getsource(Model)}'\n"
            "lib.impl(lib.define('copied() -> str'), copied, 'CompositeImplicitAutograd')\n"
        )
        session.load(folder / "shared.py", name=f"shared{number}", interpreter="worker-1")
    for number in (1, 2):
        operator = getattr(session.ops, f"shared{number}").copied
        assert operator() == f"shared shared.py class Model: factor = {number}\n"


def test_installed_package_of_the_same_name_keeps_its_own_modules(
    session: oc.Session, tmp_path: Path, lent_daemon: RunningDaemon
):
    installed = tmp_path / "site"
    installed.mkdir()
    (installed / "toolbox.py").write_text("WHOSE = 'installed'\nclass Tool: pass\n")
    (installed / "user_of_toolbox.py").write_text(
        "import pickle\n"
        "def whose():\n"
        "    import toolbox\n"
        "    return toolbox.WHOSE\n"
        "def copied():\n"
        "    import toolbox\n"
        "    return type(pickle.loads(pickle.dumps(toolbox.Tool()))) is toolbox.Tool\n"
    )
    library = tmp_path / "toolbox.py"
    library.write_text(
        f"import sys; sys.path.append({str(installed)!r})\n"
        "import pickle, user_of_toolbox\n"
        "from opdispatch import Library\n"
        "class Tool: pass\n"
        "lib = Library('toolbox', 'DEF')\n"
        "def copied() -> str:\n"
        "    mine = type(pickle.loads(pickle.dumps(Tool()))) is Tool\n"
        "    return f'{mine} {user_of_toolbox.copied()} {user_of_toolbox.whose()}'\n"
        "lib.impl(lib.define('copied() -> str'), copied, 'CompositeImplicitAutograd')\n"
    )
    # The first one makes the package known before the second one is loaded.
    session.load(library, name="first", interpreter="worker-1")
    session.unload("first")
    session.load(library, interpreter="worker-1")
    assert session.ops.toolbox.copied() == "True True installed"


def test_library_named_like_a_standard_module_disturbs_nothing(session: oc.Session, tmp_path: Path):
    library = tmp_path / "statistics.py"
    library.write_text(
        "import pickle, random\n"
        "from opdispatch import Library\n"
        "class Model: pass\n"
        "lib = Library('statistics', 'DEF')\n"
        "def copied() -> str:\n"
        "    assert type(pickle.loads(pickle.dumps(Model()))) is Model\n"
        "    import fractions\n"
        "    return str(random.randint(1, 1))\n"
        "lib.impl(lib.define('copied() -> str'), copied, 'CompositeImplicitAutograd')\n"
    )
    session.load(library, interpreter="worker-1")
    assert session.ops.statistics.copied() == "1"


def large_library(folder: Path, size: int, tag: str = "") -> Path:
    package = folder / "large"
    package.mkdir(exist_ok=True)
    (package / "__init__.py").write_text(
        "import numpy as np\nfrom pathlib import Path\nfrom opdispatch import Library\n"
        "weights = np.load(Path(__file__).parent / 'weights.npy', mmap_mode='r')\n"
        f"lib = Library('large', 'DEF')  # {tag}\n"
        "lib.define('total() -> float')\n"
        "lib.impl('total', lambda: float(weights.sum()), 'CompositeImplicitAutograd')\n"
    )
    np.save(package / "weights.npy", np.frombuffer(os.urandom(size), np.uint8))
    return package


@pytest.mark.parametrize("interpreter", ["worker-1", "far"])
def test_library_may_be_larger_than_any_message(
    start_daemon: StartDaemon, tmp_path: Path, interpreter: str
):
    daemon = start_daemon("--max-message-bytes", "65536", workers=1)
    package = large_library(tmp_path, 3_000_000)
    told: list[tuple[int, int]] = []
    with (
        worker(daemon, "--name", "far", "--listen", "127.0.0.1:0"),
        daemon.connect() as session,
    ):
        assert wait_for(lambda: len(session.interpreters()) == 2)
        session.load(package, interpreter=interpreter, on_upload=lambda *n: told.append(n))
        expected = float(np.load(package / "weights.npy").sum())
        assert session.ops.large.total() == expected
        session.unload("large")
        again: list[tuple[int, int]] = []
        session.load(package, interpreter=interpreter, on_upload=lambda *n: again.append(n))
    size = told[-1][1]
    assert told[0] == (0, size)
    assert told == sorted(told)
    assert told[-1] == (size, size)
    assert again == [(size, size)]  # it is there: nothing is sent twice


async def test_library_is_uploaded_from_asyncio_too(lent_daemon: RunningDaemon, tmp_path: Path):
    told: list[tuple[int, int]] = []
    async with await oc.aio.connect(lent_daemon.address) as session:
        package = large_library(tmp_path, 3_000_000)
        await session.load(package, on_upload=lambda *n: told.append(n))
        expected = float(np.load(package / "weights.npy").sum())
        assert await session.ops.large.total() == expected
    assert told[-1][0] == told[-1][1] > 3_000_000


def test_library_that_fails_to_import_leaves_no_files(
    lent_daemon: RunningDaemon, session: oc.Session, tmp_path: Path
):
    package = large_library(tmp_path, 1_000_000)
    (package / "__init__.py").write_text("raise ValueError('no')\n")
    state = lent_daemon.folder / "state"
    before = {*state.glob("libraries/*"), *state.glob("unpacked/*")}
    with pytest.raises(oc.LibraryLoadError, match="raised ValueError: no"):
        session.load(package, interpreter="worker-1")
    # Not equal: files of libraries that other tests have unloaded may go meanwhile.
    assert {*state.glob("libraries/*"), *state.glob("unpacked/*")} <= before


def test_files_of_a_library_can_only_be_read(session: oc.Session, tmp_path: Path):
    package = large_library(tmp_path, 1000)
    (package / "__init__.py").write_text(
        "import stat\nfrom pathlib import Path\nfrom opdispatch import Library\n"
        "lib = Library('large', 'DEF')\nlib.define('modes() -> str')\n"
        "def modes():\n"
        "    here = Path(__file__).parent\n"
        "    found = {stat.S_IMODE(p.stat().st_mode) for p in (here, *here.rglob('*'))}\n"
        "    return ' '.join(sorted(map(oct, found)))\n"
        "lib.impl('modes', modes, 'CompositeImplicitAutograd')\n"
    )
    session.load(package, interpreter="worker-1")
    assert session.ops.large.modes() == "0o444 0o555"


def test_zip_with_a_bomb_in_it_is_refused_by_its_member(session: oc.Session, tmp_path: Path):
    archive = tmp_path / "ops.zip"
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("ops.py", "")
        file.writestr("weights.bin", b"0" * 2**26)
    with pytest.raises(oc.LibraryLoadError, match=r"limit is 100 times.*'weights\.bin'"):
        session.load(archive)


@pytest.mark.parametrize(
    "filename", ["__init__.py", "2 odd-name.py", "caf\N{LATIN SMALL LETTER E WITH ACUTE}.py"]
)
def test_single_file_may_have_any_name(session: oc.Session, tmp_path: Path, filename: str):
    path = tmp_path / filename
    path.write_text(
        "from opdispatch import Library\nimport pickle\nclass Model: pass\n"
        "lib = Library('odd', 'DEF')\n"
        "lib.define('same() -> bool')\n"
        "same = lambda: type(pickle.loads(pickle.dumps(Model()))) is Model\n"
        "lib.impl('same', same, 'CompositeImplicitAutograd')\n"
    )
    session.load(path, name="odd")
    assert session.ops.odd.same() is True


def test_library_of_several_streams_is_fetched_whole(session: oc.Session, tmp_path: Path):
    package = large_library(tmp_path, 70 * 2**20)  # a stream has 32 MiB
    session.load(package, interpreter="far")
    assert session.ops.large.total() == float(np.load(package / "weights.npy").sum())
