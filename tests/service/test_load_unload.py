"""Libraries are loaded, in layers, and unloaded."""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np
import pytest

import opdispatch_client as oc
from opdispatch import DispatchKey, IncludeDispatchKeyGuard
from tests.service.conftest import StartDaemon, WriteLibrary
from tests.service.libraries import IMAGE, constant

pytestmark = pytest.mark.smoke

X = np.zeros(2)


def make_zip(path: Path, files: dict[str, str]) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return path


def test_a_library_is_loaded_and_described(shared: oc.Session, write_library: WriteLibrary):
    loaded = shared.load(write_library("image", IMAGE))
    assert (loaded.name, loaded.version, loaded.source) == ("image", loaded.version, "image.py")
    assert loaded.active
    assert not loaded.already_loaded
    assert loaded.operators == tuple(
        f"image::{name}" for name in ("add_", "boom", "invert", "pipeline", "scale", "stack")
    )
    assert len(loaded.interpreters) == 1
    [listed] = shared.libraries()
    assert listed.sha256 == loaded.sha256
    described = shared.describe("image::invert")
    assert described.documentation == "One minus the picture."
    assert described.defined_at == "image.py:5"
    assert [(k.key, k.library, k.active) for k in described.kernels] == [("CPU", "image", True)]
    rows = {row.key: row for row in shared.table("image::pipeline")}
    assert rows["CPU"].reason == "math kernel"


def test_documentation_is_that_of_a_kernel_that_calculates(
    shared: oc.Session, write_library: WriteLibrary
):
    shared.load(write_library("image", IMAGE))
    zeros = (
        "from opdispatch import Library\nlib = Library('image', 'IMPL')\n"
        "def of_zeros(x):\n    'Zeros of zeros.'\n    return x\n"
        "for name in ('invert', 'pipeline'): lib.impl(name, of_zeros, 'ZeroTensor')\n"
    )
    shared.load(write_library("zeros", zeros))
    assert shared.describe("image::invert").documentation == "One minus the picture."
    assert shared.describe("image::pipeline").documentation == ""


def test_the_documentation_of_a_custom_operator_is_its_functions(
    shared: oc.Session, write_library: WriteLibrary
):
    shared.load(
        write_library(
            "own",
            "from opdispatch import Tensor, custom_op\n"
            "@custom_op('own::twice', mutates_args=())\n"
            "def twice(x: Tensor) -> Tensor:\n    'Twice as much.'\n    return x * 2\n"
            "@twice.register_fake\ndef fake(x):\n    'Only a shape.'\n    return x\n",
        )
    )
    assert shared.describe("own::twice").documentation == "Twice as much."


def test_the_same_content_again_changes_nothing(shared: oc.Session, write_library: WriteLibrary):
    first = shared.load(write_library("const", constant(1)))
    epoch = shared.refresh_server_info().epoch
    second = shared.load(write_library("const", constant(1)))
    assert second.already_loaded
    assert second.version == first.version
    assert shared.refresh_server_info().epoch == epoch


def test_libraries_are_spread_over_the_interpreters(
    shared: oc.Session, write_library: WriteLibrary
):
    for number in range(4):
        shared.load(write_library(f"lib{number}", constant(1, namespace=f"ns{number}")))
    held = [interpreter.libraries for interpreter in shared.interpreters()]
    assert [len(names) for names in held] == [2, 2]


def test_an_interpreter_can_be_chosen(shared: oc.Session, write_library: WriteLibrary):
    for number in range(3):
        loaded = shared.load(
            write_library(f"lib{number}", constant(1, namespace=f"ns{number}")),
            interpreter="worker-2",
        )
        assert loaded.interpreters == ("worker-2",)
    with pytest.raises(oc.OpdispatchError, match="no interpreter named 'missing'; connected"):
        shared.load(write_library("other", constant(1, namespace="o")), interpreter="missing")


def test_a_zip_of_modules_is_loaded_by_its_plain_names(shared: oc.Session, tmp_path: Path):
    path = make_zip(
        tmp_path / "kernels.zip",
        {
            "kernels/__init__.py": "import kernels.registration\nfrom kernels import values\n",
            "kernels/values.py": "ANSWER = 42\n",
            "kernels/late.py": "EXTRA = 100\n",
            "kernels/registration.py": (
                "from opdispatch import Library\n"
                "from kernels.values import ANSWER\n"
                "from . import values\n"
                "lib = Library('zipped', 'DEF')\n"
                "lib.define('get(Tensor x) -> int')\n"
                "def get(x):\n"
                "    from . import late\n"
                "    import kernels.late as again\n"
                "    assert again is late\n"
                "    return ANSWER + values.ANSWER + late.EXTRA\n"
                "lib.impl('get', get, 'CPU')\n"
                "lib.define('boom(Tensor x) -> int')\n"
                "def boom(x):\n"
                "    raise KeyError('here')\n"
                "lib.impl('boom', boom, 'CPU')\n"
            ),
        },
    )
    shared.load(path)
    assert shared.ops.zipped.get(X) == 184
    with pytest.raises(oc.KernelError) as caught:
        shared.ops.zipped.boom(X)
    assert (
        "File \"kernels.zip/kernels/registration.py\", line 14, in boom\n    raise KeyError('here')"
    ) in caught.value.facts["traceback"]


def test_two_libraries_may_have_modules_of_the_same_name(shared: oc.Session, tmp_path: Path):
    for number in (1, 2):
        main = (
            "from opdispatch import Library\nfrom values import VALUE\n"
            f"lib = Library('twin{number}', 'DEF')\nlib.define('get(Tensor x) -> int')\n"
            "lib.impl('get', lambda x: VALUE, 'CPU')\n"
        )
        files = {f"twin{number}.py": main, "values.py": f"VALUE = {number}\n"}
        path = make_zip(tmp_path / f"twin{number}.zip", files)
        shared.load(path, interpreter="worker-1")
    assert (shared.ops.twin1.get(X), shared.ops.twin2.get(X)) == (1, 2)


def test_a_module_is_loaded_by_name_and_read_again_when_it_has_changed(
    start_daemon: StartDaemon, tmp_path: Path
):
    package = tmp_path / "opkg"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "values.py").write_text("VALUE = 1\n")
    (package / "kernels.py").write_text(
        "from opdispatch import Library\nfrom opkg.values import VALUE\n"
        "lib = Library('mod', 'DEF')\nlib.define('get(Tensor x) -> int')\n"
        "lib.impl('get', lambda x: VALUE, 'CPU')\n"
    )
    daemon = start_daemon(workers=1)
    with daemon.connect() as session:
        first = session.load("opkg.kernels")
        assert (first.name, first.source, session.ops.mod.get(X)) == ("kernels", "opkg.kernels", 1)
        assert session.load("opkg.kernels").already_loaded
        (package / "values.py").write_text("VALUE = 2\n")
        with (package / "kernels.py").open("a") as file:
            file.write("# changed\n")
        second = session.load("opkg.kernels")
        assert (second.version, session.ops.mod.get(X)) == (2, 2)
        session.unload("kernels", version=2)
        assert session.ops.mod.get(X) == 1
        session.unload("kernels")
        assert session.load("opkg.kernels").version == 3
        assert session.ops.mod.get(X) == 2


def test_kernels_of_one_library_for_operators_of_another(
    shared: oc.Session, write_library: WriteLibrary
):
    shared.load(write_library("image", IMAGE), interpreter="worker-1")
    override = (
        "from opdispatch import Library\nlib = Library('image', 'IMPL')\n"
        "lib.impl('invert', lambda x: x * 10, 'CPU', allow_override=True)\n"
    )
    shared.load(write_library("override", override), interpreter="worker-2")
    x = np.arange(3.0)
    np.testing.assert_array_equal(shared.ops.image.invert(x), x * 10)
    np.testing.assert_array_equal(shared.ops.image.pipeline(x), x * 30)  # the nested call too
    kernels = shared.describe("image::invert").kernels
    assert [(k.library, k.interpreter, k.active) for k in kernels] == [
        ("override", "worker-2", True),
        ("image", "worker-1", False),
    ]
    shared.unload("override")
    np.testing.assert_array_equal(shared.ops.image.pipeline(x), 1 - x * 3)


def test_kernels_may_come_before_the_definition(shared: oc.Session, write_library: WriteLibrary):
    impl = (
        "from opdispatch import Library\nlib = Library('late', 'IMPL')\n"
        "lib.impl('get', lambda x: 4, 'CPU')\n"
    )
    shared.load(write_library("kernels", impl), interpreter="worker-2")
    with pytest.raises(oc.OperatorNotFoundError):
        shared.ops.late.get(X)
    definition = (
        "from opdispatch import Library\nlib = Library('late', 'DEF')\n"
        "lib.define('get(Tensor x) -> int')\n"
    )
    shared.load(write_library("definition", definition), interpreter="worker-1")
    assert shared.ops.late.get(X) == 4
    shared.unload("definition")
    with pytest.raises(oc.OperatorNotFoundError):
        shared.ops.late.get(X)


def test_a_fallback_serves_operators_of_other_interpreters(
    shared: oc.Session, write_library: WriteLibrary
):
    shared.load(write_library("image", IMAGE), interpreter="worker-1")
    fallback = (
        "from opdispatch import Library\nlib = Library('_', 'IMPL')\n"
        "def fake(op, *args, **kwargs):\n    return args[0][:1]\n"
        "lib.fallback(fake, 'FPGA')\n"
    )
    shared.load(write_library("fake", fallback), interpreter="worker-2")
    rows = {row.key: row for row in shared.table("image::invert")}
    assert (rows["FPGA"].reason, rows["FPGA"].kernel) == ("backend fallback", "fake.py:5")
    with IncludeDispatchKeyGuard(DispatchKey.FPGA):
        result = shared.ops.image.invert(np.arange(3.0))
    np.testing.assert_array_equal(result, [0.0])


def test_libraries_with_fallbacks_for_different_keys_are_in_force_together(
    shared: oc.Session, write_library: WriteLibrary
):
    fallback = (
        "from opdispatch import Library\nlib = Library('_', 'IMPL')\n"
        "lib.fallback(lambda op, *args, **kwargs: args[0][:{count}], '{key}')\n"
    )
    shared.load(write_library("image", IMAGE), interpreter="worker-1")
    shared.load(write_library("one", fallback.format(count=1, key="FPGA")), interpreter="worker-2")
    shared.load(write_library("two", fallback.format(count=2, key="Vulkan")), on="worker-1")
    assert shared.check_invariants() == []
    for key, expected in ((DispatchKey.FPGA, [5.0]), (DispatchKey.Vulkan, [5.0, 6.0])):
        with IncludeDispatchKeyGuard(key):  # also of what a kernel of worker-1 calls
            result = shared.ops.image.pipeline(np.arange(5.0, 9.0))
        np.testing.assert_array_equal(result, expected)
    shared.unload("two")
    with pytest.raises(oc.DuplicateDefinitionError, match="FPGA has a fallback already"):
        shared.load(write_library("three", fallback.format(count=3, key="FPGA")))
    assert shared.check_invariants() == []
