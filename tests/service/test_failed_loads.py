"""Loads that fail leave nothing behind."""

from __future__ import annotations

import io
import zipfile

import grpc
import numpy as np
import pytest

import opdispatch_client as oc
from opdispatch_wire.v1 import registry_pb2, registry_pb2_grpc
from tests.service.conftest import StartDaemon, WriteLibrary
from tests.service.libraries import constant
from tests.service.running_daemon import RunningDaemon, wait_for

X = np.zeros(2)


def load_bytes(daemon: RunningDaemon, content: bytes, filename: str, name: str = ""):
    """A load as any gRPC client may ask for one."""
    with grpc.insecure_channel(daemon.address.replace("unix://", "unix:")) as channel:
        stub = registry_pb2_grpc.RegistryServiceStub(channel)
        return stub.LoadLibrary(
            registry_pb2.LoadLibraryRequest(name=name, content=content, filename=filename)
        )


WRONG = {
    "raises": ("import json\n\n\njson.loads('{')\n", oc.LibraryLoadError, "JSONDecodeError", 4),
    "syntax": ("x = 1\n\ndef f(:\n    pass\n", oc.LibraryLoadError, "SyntaxError", 3),
    "exits": ("import sys\nsys.exit(3)\n", oc.LibraryLoadError, "SystemExit: 3", 2),
    "interrupts": ("raise KeyboardInterrupt\n", oc.LibraryLoadError, "KeyboardInterrupt", 1),
    "missing": ("import nowhere_to_be_found\n", oc.LibraryLoadError, "No module named", 1),
    "twice": (
        constant(1, extra='lib.define("get(Tensor x) -> int")'),
        oc.DuplicateDefinitionError,
        "wrong.py:4; the second one was registered at wrong.py:6",
        6,
    ),
    "schema": (
        constant(1, extra='lib.define("broken(Tensor x -> int")'),
        oc.SchemaError,
        "broken(Tensor x -> int",
        6,
    ),
    "key": (
        constant(1, extra='lib.impl("get", lambda x: 2, "GPU")'),
        oc.DispatchKeyError,
        "GPU",
        6,
    ),
    "nothing": ("x = 1\n", oc.LibraryLoadError, "wrong.py registers nothing", 0),
    "undone": (
        constant(1) + "lib.close()\n",
        oc.LibraryLoadError,
        "wrong.py registers nothing",
        0,
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_library_that_fails_leaves_nothing_behind(
    shared: oc.Session, write_library: WriteLibrary, case: str
):
    text, error_type, words, line = WRONG[case]
    shared.load(write_library("good", constant(7, namespace="good")))
    before = (shared.refresh_server_info().epoch, shared.operators(), shared.libraries())
    with pytest.raises(error_type) as caught:
        shared.load(write_library("wrong", text))
    assert words in str(caught.value)
    if line:
        assert caught.value.facts["line"] == f"wrong.py:{line}"
        assert f"wrong.py:{line}" in str(caught.value)
        assert f'File "wrong.py", line {line}' in caught.value.facts["traceback"]
        assert "opdispatch_server" not in caught.value.facts["traceback"]
    after = (shared.refresh_server_info().epoch, shared.operators(), shared.libraries())
    assert after == before
    assert shared.ops.good.get(X) == 7
    # Nor in the interpreter: the name is free.
    shared.load(write_library("const", constant(3)), interpreter="worker-1")
    shared.unload("const")
    shared.load(write_library("const", constant(3)), interpreter="worker-2")
    assert shared.ops.const.get(X) == 3


def test_a_module_that_is_nowhere_is_an_error_with_the_paths_that_are_uploaded(shared: oc.Session):
    with pytest.raises(oc.LibraryLoadError) as caught:
        shared.load("nowhere_to_be_found")
    assert caught.value.hint.endswith("by its path: nowhere_to_be_found.py, nowhere_to_be_found/")


def test_an_operator_that_another_library_defines_is_refused(
    shared: oc.Session, write_library: WriteLibrary
):
    shared.load(write_library("first", constant(1)), interpreter="worker-1")
    for interpreter in ("worker-1", "worker-2"):
        with pytest.raises(oc.DuplicateDefinitionError, match=r"first\.py:3") as caught:
            shared.load(write_library("second", constant(2)), interpreter=interpreter)
        assert caught.value.facts["line"] == "second.py:3"
    assert [library.name for library in shared.libraries()] == ["first"]
    assert shared.ops.const.get(X) == 1


INTO_CONST = """\
from opdispatch import Library
lib = Library("const", "{kind}")
{line}
"""


@pytest.mark.parametrize("interpreter", ["worker-1", "worker-2"])
@pytest.mark.parametrize(
    ("kind", "line", "error", "words"),
    [
        ("DEF", "lib.define('more(Tensor x) -> int')", oc.LibraryError, "const"),
        ("IMPL", "lib.define('more(Tensor x) -> int')", oc.LibraryError, "IMPL"),
        ("FRAGMENT", "lib.define('get(Tensor x) -> int')", oc.DuplicateDefinitionError, "first"),
        ("FRAGMENT", "lib.define('other::get(Tensor x) -> int')", oc.LibraryError, "other"),
    ],
)
def test_another_librarys_namespace_is_its_own(
    shared: oc.Session,
    write_library: WriteLibrary,
    interpreter: str,
    kind: str,
    line: str,
    error: type[oc.OpdispatchError],
    words: str,
):
    shared.load(write_library("first", constant(1)), interpreter="worker-1")
    text = INTO_CONST.format(kind=kind, line=line)
    with pytest.raises((error, oc.RegistrationError), match=words):
        shared.load(write_library("second", text), interpreter=interpreter)
    assert [library.name for library in shared.libraries()] == ["first"]
    assert [operator.name for operator in shared.operators()] == ["const::get"]
    assert shared.ops.const.get(X) == 1


@pytest.mark.parametrize("interpreter", ["worker-1", "worker-2"])
def test_a_fragment_adds_to_it_and_an_impl_gives_it_kernels(
    shared: oc.Session, write_library: WriteLibrary, interpreter: str
):
    shared.load(write_library("first", constant(1)), interpreter="worker-1")
    more = "lib.define('more(Tensor x) -> int')\nlib.impl('more', lambda x: 2, 'CPU')"
    text = INTO_CONST.format(kind="FRAGMENT", line=more)
    shared.load(write_library("fragment", text), interpreter=interpreter)
    assert (shared.ops.const.get(X), shared.ops.const.more(X)) == (1, 2)
    text = INTO_CONST.format(kind="IMPL", line="lib.impl('get', lambda x: 3, 'CPU')")
    shared.load(write_library("kernels", text), interpreter=interpreter)
    assert shared.ops.const.get(X) == 3
    shared.unload("kernels")
    assert shared.ops.const.get(X) == 1


def test_a_version_that_fails_leaves_the_one_before_in_force(
    shared: oc.Session, write_library: WriteLibrary
):
    shared.load(write_library("const", constant(1)))
    with pytest.raises(oc.LibraryLoadError):
        shared.load(write_library("const", constant(2, extra="1 / 0")))
    assert shared.ops.const.get(X) == 1
    [library] = shared.libraries(all_versions=True)
    assert library.active


@pytest.mark.parametrize(
    ("content", "filename", "words"),
    [
        (b"no zip", "lib.zip", "is not a zip archive"),
        (b"x = 1", "lib.txt", "ends in '.txt'"),
        (b"x = 1", "", "$.filename is empty"),
        (b"x = 1", "../", "cannot be the name of a library"),
        (b"\0", "lib.py", "null bytes"),
        (b"\xff\xfe\xfd", "lib.py", "SyntaxError"),
    ],
)
def test_content_that_is_no_library_is_refused(
    shared_daemon: RunningDaemon, content: bytes, filename: str, words: str
):
    with pytest.raises(grpc.RpcError) as caught:
        load_bytes(shared_daemon, content, filename)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert words in caught.value.details()


def test_an_archive_that_reaches_outside_itself_is_refused(shared_daemon: RunningDaemon):
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("../evil.py", "x = 1")
    with pytest.raises(grpc.RpcError) as caught:
        load_bytes(shared_daemon, packed.getvalue(), "evil.zip")
    assert "outside the archive" in caught.value.details()


@pytest.mark.parametrize("name", ["", "/", "..", "a/b", "x" * 300, "tab\tbed"])
def test_names_that_no_library_can_have_are_refused(shared_daemon: RunningDaemon, name: str):
    content = constant(1).encode()
    if not name:
        load_bytes(shared_daemon, content, "fine.py", name)
        with shared_daemon.connect() as session:
            session.unload("fine")
        return
    with pytest.raises(grpc.RpcError) as caught:
        load_bytes(shared_daemon, content, "fine.py", name)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


def test_an_import_that_takes_too_long_costs_its_interpreter_only(
    start_daemon: StartDaemon, write_library: WriteLibrary
):
    daemon = start_daemon("--load-timeout", "0.5")
    daemon.expects_errors = True  # the interpreter that was stopped
    with daemon.connect() as session:
        session.load(write_library("good", constant(7, namespace="good")), interpreter="worker-2")
        with pytest.raises(oc.DeadlineExceededError, match=r"took longer than 0\.5 s"):
            session.load(
                write_library("slow", "import time\ntime.sleep(100)\n"), interpreter="worker-1"
            )
        assert session.ops.good.get(X) == 7
        assert wait_for(
            lambda: (
                {i.name: i.restarts for i in session.interpreters()}
                == {"worker-1": 1, "worker-2": 0}
            ),
        )
        assert session.check_invariants() == []


def test_a_client_that_gives_up_a_load_leaves_nothing_behind(
    start_daemon: StartDaemon, write_library: WriteLibrary
):
    daemon = start_daemon(workers=1)
    gate = daemon.folder / "open"
    slow = f"import os, time\nwhile not os.path.exists({str(gate)!r}):\n    time.sleep(0.005)\n"
    with daemon.connect() as session:
        with daemon.connect(timeout=0.5) as impatient, pytest.raises(oc.DeadlineExceededError):
            impatient.load(write_library("slow", slow + constant(1)))
        gate.touch()
        # Loads come one after the other, so this one waits until that one has been dropped.
        session.load(write_library("next", constant(2, namespace="next")))
        assert [library.name for library in session.libraries()] == ["next"]
        assert [operator.name for operator in session.operators()] == ["next::get"]


def test_unsendable_registration_fails_the_load_and_leaves_nothing(
    daemon: RunningDaemon, session: oc.Session, write_library: WriteLibrary
):
    register = (
        "from opdispatch import parse_schema\n"
        'schema = parse_schema("const::odd(Tensor x) -> int")\n'
        'lib.dispatcher.register_def(schema, tags=("\\ud800",))'
    )
    odd = constant(1, extra=register)
    write_library("odd", odd)
    with pytest.raises(oc.OpdispatchError, match="surrogate"):
        session.load("odd", interpreter="worker-1")
    look = constant(2, namespace="look", extra="import sys").replace("2", "'odd' in sys.modules")
    session.load(write_library("look", look), interpreter="worker-1")
    assert session.ops.look.get(X) == 0
    write_library("odd", constant(3))
    assert session.load("odd", interpreter="worker-1").version == 1
    assert session.ops.const.get(X) == 3


def test_half_a_surrogate_pair_in_a_docstring_is_shown_as_such(
    shared: oc.Session, write_library: WriteLibrary
):
    # As an attribute: since 3.13, Python takes no docstring of a function that is not UTF-8.
    text = constant(1, namespace="odd").replace("lambda x: 1", "get")
    get = "def get(x):\n    return 1\n\nget.__doc__ = '\\ud800'\n"
    shared.load(write_library("odd", get + text))
    assert shared.describe("odd::get").documentation == "\\ud800"
