"""Libraries in environments of their own: made once, shared by those who need the same."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import opdispatch_client as oc
from tests.service.conftest import StartDaemon, WriteLibrary
from tests.service.libraries import constant
from tests.service.packages import (
    offline,
    reporting,
    script_metadata,
)
from tests.service.running_daemon import RunningDaemon, wait_for

pytestmark = pytest.mark.slow

WORKERS = 1
X = np.zeros(2)


@pytest.fixture(scope="module")
def shared_daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningDaemon]:
    """One daemon for this module: it makes each environment once."""
    daemon = RunningDaemon(tmp_path_factory.mktemp("shared"), workers=1)
    try:
        daemon.wait_until_ready()
        yield daemon
    finally:
        daemon.clean_up()


def environments(daemon: RunningDaemon) -> list[str]:
    """The environments that are complete; whatever else lies there fails the test."""
    folder = daemon.folder / "state" / "environments"
    paths = sorted(folder.iterdir()) if folder.exists() else []
    links = [path for path in paths if path.is_symlink()]
    targets = {link.readlink().name for link in links}
    assert {path.name for path in paths if not path.is_symlink()} == targets
    return [link.name for link in links]


def test_two_versions_of_one_package_run_side_by_side(
    shared: oc.Session, shared_daemon: RunningDaemon, write_library: WriteLibrary, wheels: Path
):
    steps: list[str] = []
    for number, version in (("one", "1.0"), ("two", "2.0")):
        path = write_library(number, reporting(number, "tinypack"))
        library = shared.load(
            path, requirements=offline(wheels, f"tinypack=={version}"), on_progress=steps.append
        )
        assert library.requirements[-1] == f"tinypack=={version}"
    shared.load(write_library("plain", constant(3)))
    for _ in range(3):
        assert shared.ops.one.version(X) == "1.0"
        assert shared.ops.two.version(X) == "2.0"
        assert shared.ops.const.get(X) == 3
    assert shared.ops.one.prefix(X) != shared.ops.two.prefix(X) != sys.prefix
    assert any(step.startswith("making environment") for step in steps)
    assert any(step.startswith("starting interpreter env-") for step in steps)
    places = {i.name: i for i in shared.interpreters()}
    assert len(places) == 3
    for library in shared.libraries():
        (holder,) = (places[name] for name in library.interpreters)
        assert holder.libraries == (f"{library.name} v1",)
        assert bool(holder.reserved_for) == (library.name != "plain")
    assert shared.check_invariants() == []


def test_equal_requirements_share_an_environment_and_its_interpreter(
    shared: oc.Session, shared_daemon: RunningDaemon, write_library: WriteLibrary, wheels: Path
):
    first = shared.load(
        write_library("one", reporting("one", "tinypack")),
        requirements=offline(wheels, "tinypack == 1.0"),
    )
    before = environments(shared_daemon)
    second = shared.load(
        write_library("same", reporting("same", "tinypack")),
        requirements=["# the same", *reversed(offline(wheels, "TinyPack==1.0"))],
    )
    assert environments(shared_daemon) == before
    assert second.interpreters == first.interpreters
    shared.unload("one")
    assert shared.ops.same.version(X) == "1.0"
    shared.unload("same")
    assert wait_for(lambda: len(shared.interpreters()) == 1)


def test_the_metadata_in_a_file_declares_what_it_needs(
    shared: oc.Session, write_library: WriteLibrary, wheels: Path
):
    wheel = next(wheels.glob("tinypack-2.0*"))
    metadata = script_metadata(f"tinypack @ {wheel.as_uri()}", python=">=3.11")
    path = write_library("meta", reporting("meta", "tinypack", metadata=metadata))
    library = shared.load(path)
    assert shared.ops.meta.version(X) == "2.0"
    assert library.requirements == (f"tinypack @ {wheel.as_uri()}",)
    assert shared.load(path).already_loaded
    # Metadata that asks for nothing that is not there makes no difference.
    bare = write_library("bare", script_metadata(python=">=3.8") + "\n" + constant(1))
    assert shared.load(bare).interpreters == ("worker-1",)


def test_undeclared_package_cannot_be_imported(
    shared: oc.Session, write_library: WriteLibrary, wheels: Path
):
    path = write_library("leaky", reporting("leaky", "tinypack", top="import pytest"))
    with pytest.raises(oc.LibraryLoadError, match="No module named 'pytest'"):
        shared.load(path, requirements=offline(wheels, "tinypack==1.0"))
    assert wait_for(lambda: len(shared.interpreters()) == 1)


def test_a_requirement_that_cannot_be_installed_leaves_nothing_behind(
    shared: oc.Session, shared_daemon: RunningDaemon, write_library: WriteLibrary, wheels: Path
):
    before = environments(shared_daemon)
    path = write_library("hopeless", reporting("hopeless", "tinypack"))
    with pytest.raises(oc.LibraryLoadError, match=r"tinypack==3\.0 cannot be installed") as caught:
        shared.load(path, requirements=offline(wheels, "tinypack==3.0"))
    assert "\n" not in str(caught.value)
    assert "tinypack==3.0" in caught.value.facts["output"]
    with pytest.raises(oc.LibraryLoadError, match=r"numpy>=2\.1"):
        shared.load(path, requirements=offline(wheels, "numpy<2", "tinypack==1.0"))
    assert environments(shared_daemon) == before
    assert [i.name for i in shared.interpreters()] == ["worker-1"]
    assert shared.libraries() == []


@pytest.mark.parametrize(
    ("requirements", "words"),
    [
        (["not a requirement !"], "is not a requirement"),
        (["tinypack>=,"], "is not a requirement"),
        (["x" * 5000], "is not a requirement: it has 5000 characters, and the limit is 4096"),
    ],
)
def test_requirements_that_are_none_are_refused(
    shared: oc.Session, write_library: WriteLibrary, requirements: list[str], words: str
):
    with pytest.raises(oc.LibraryLoadError, match=words):
        shared.load(write_library("none", constant(1)), requirements=requirements)


@pytest.mark.parametrize(
    ("metadata", "words"),
    [
        ("# /// script\n# dependencies = [\n# ///", "is not TOML"),
        ('# /// script\n# dependencies = "numpy"\n# ///', "is not a list of strings"),
        ("# /// script\n# requires-python = 3\n# ///", "is not a string"),
        ('# /// script\n# requires-python = "new"\n# ///', "which versions of Python"),
        ('# /// script\n# dependencies = ["--index-url x"]\n# ///', "is not a requirement"),
        ("# /// script\n# a = 1\n# ///\n\n# /// script\n# a = 1\n# ///", "2 blocks"),
    ],
)
def test_metadata_that_says_nothing_sensible_is_refused(
    shared: oc.Session, write_library: WriteLibrary, metadata: str, words: str
):
    with pytest.raises(oc.LibraryLoadError, match=words):
        shared.load(write_library("odd", f"{metadata}\n{constant(1)}"))


def test_an_existing_environment_serves(
    shared: oc.Session, write_library: WriteLibrary, wheels: Path, tmp_path: Path
):
    folder = tmp_path / "existing"
    steps = [
        [sys.executable, "-m", "venv", "--without-pip", str(folder)],
        [
            *(sys.executable, "-m", "pip", "--python", str(folder / "bin" / "python")),
            *("install", "--quiet", "--no-index", "--find-links", str(wheels), "otherpack"),
        ],
    ]
    for step in steps:
        assert os.spawnv(os.P_WAIT, step[0], step) == 0
    path = write_library("other", reporting("other", "otherpack"))
    library = shared.load(path, python=folder / "bin" / "python")
    assert shared.ops.other.version(X) == "7.0"
    assert shared.ops.other.prefix(X) == str(folder)
    assert library.python == str(folder / "bin" / "python")


def test_a_python_that_is_none_is_refused(
    shared: oc.Session, write_library: WriteLibrary, tmp_path: Path
):
    path = write_library("const", constant(1))
    liar = tmp_path / "liar"
    liar.write_text("#!/bin/sh\necho Python 1.2\n")
    liar.chmod(0o755)
    # Says what a Python says, and then cannot import anything.
    bare = tmp_path / "bare"
    bare.write_text(
        "#!/bin/sh\n"
        "if [ $2 = -c ]; then printf 'Python 3.99.0\\n/nowhere'; else echo no grpc; exit 1; fi\n"
    )
    bare.chmod(0o755)
    old = tmp_path / "old"
    old.write_text("#!/bin/sh\nprintf 'Python 3.8.1\\n/nowhere'\n")
    old.chmod(0o755)
    for python, words in (
        (tmp_path / "missing", "there is no such program"),
        (tmp_path, "there is no such program"),
        (Path("/bin/true"), "does not print its version"),
        (Path("/bin/false"), "is not a Python interpreter"),
        (liar, "does not print its version"),
        (bare, r"\(Python 3.99.0\) cannot run opdispatch's interpreters: no grpc"),
        (old, r"is Python 3\.8\.1; opdispatch needs 3\.11 or newer"),
    ):
        with pytest.raises(oc.LibraryLoadError, match=words):
            shared.load(path, python=python)
    with pytest.raises(oc.LibraryLoadError, match="nothing can be installed"):
        shared.load(path, python=sys.executable, requirements=["x"])
    assert shared.libraries() == []


def test_a_python_that_dies_as_an_interpreter_is_given_up(
    start_daemon: StartDaemon, write_library: WriteLibrary, tmp_path: Path
):
    daemon = start_daemon("--quarantine", "2", workers=0)
    daemon.expects_errors = True
    python = tmp_path / "python"
    python.write_text(
        "#!/bin/sh\n"
        "if [ $2 = -c ]; then printf 'Python 3.99.0\\n/nowhere'; exit 0; fi\n"
        "if [ $# -gt 3 ]; then echo cannot go on; exit 7; fi\n"
    )
    python.chmod(0o755)
    with daemon.connect() as session:
        with pytest.raises(oc.LibraryLoadError, match="exited with status 7") as caught:
            session.load(write_library("const", constant(1)), python=python)
        assert caught.value.facts["output"] == "cannot go on"
        assert wait_for(lambda: not session.interpreters())


def test_an_interpreter_of_an_environment_comes_back_in_it(
    daemon: RunningDaemon, session: oc.Session, write_library: WriteLibrary, wheels: Path
):
    daemon.expects_errors = True
    session.load(
        write_library("one", reporting("one", "tinypack")),
        requirements=offline(wheels, "tinypack==1.0"),
    )
    prefix = session.ops.one.prefix(X)
    (holder,) = (i for i in session.interpreters() if i.reserved_for)
    os.kill(holder.pid, 9)
    assert wait_for(
        lambda: (
            any(i.name == holder.name and i.restarts == 1 for i in session.interpreters())
            and all(library.active for library in session.libraries())
        ),
    )
    assert session.ops.one.version(X) == "1.0"
    assert session.ops.one.prefix(X) == prefix
    assert session.libraries()[0].interpreters == (holder.name,)


def test_a_new_version_may_need_another_environment(
    shared: oc.Session, write_library: WriteLibrary, wheels: Path
):
    path = write_library("renewed", reporting("renewed", "tinypack"))
    shared.load(path, requirements=offline(wheels, "tinypack==1.0"))
    second = shared.load(path, requirements=offline(wheels, "tinypack==2.0"))
    assert second.version == 2
    assert shared.ops.renewed.version(X) == "2.0"
    shared.unload("renewed", version=2)
    assert shared.ops.renewed.version(X) == "1.0"
    assert wait_for(lambda: sum(bool(i.reserved_for) for i in shared.interpreters()) == 1)


def test_interpreter_of_an_environment_takes_no_other_library(
    shared: oc.Session, write_library: WriteLibrary, wheels: Path
):
    library = shared.load(
        write_library("one", reporting("one", "tinypack")),
        requirements=offline(wheels, "tinypack==1.0"),
    )
    other = write_library("const", constant(1))
    with pytest.raises(oc.InterpreterNotFoundError, match="is only for environment"):
        shared.load(other, interpreter=library.interpreters[0])
    with pytest.raises(oc.LibraryLoadError, match="interpreters of its own"):
        shared.load(other, interpreter="worker-1", isolated=True)
    for number in range(6):
        path = write_library(f"c{number}", constant(number, namespace=f"c{number}"))
        assert shared.load(path).interpreters[0].startswith("worker-")
