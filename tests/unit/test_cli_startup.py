"""Imports of the command line, and when they happen."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys

import pytest
import typer

import opdispatch_client
from opdispatch_client.cli import app, main
from opdispatch_client.cli.app import build_app
from tests.waits import LONGEST_WAIT

_PROGRAM = """
import sys
from opdispatch_client.cli import app, main
code = main(sys.argv[1:])
heavy = sorted({"grpc", "numpy", "google.protobuf", "PIL"} & sys.modules.keys())
print(f"code {code}, imported {heavy}", file=sys.stderr)
"""


@pytest.mark.parametrize("words", [["--help"], ["call", "--help"], ["--version"]])
def test_help_needs_neither_grpc_nor_numpy(words):
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, *words],
        capture_output=True,
        text=True,
        check=True,
        timeout=LONGEST_WAIT,
    )
    assert done.stderr == "code 0, imported []\n"
    assert done.stdout


_PROBE = """
import sys
import grpc
from concurrent.futures import ThreadPoolExecutor
from opdispatch_client.cli import app, main

method = grpc.unary_unary_rpc_method_handler(lambda request, context: b"\\x08\\x01")  # SERVING
handlers = grpc.method_handlers_generic_handler("grpc.health.v1.Health", {"Check": method})
server = grpc.server(ThreadPoolExecutor(1), handlers=[handlers])
port = server.add_insecure_port("127.0.0.1:0")
server.start()
code = main(["health", "--address", f"127.0.0.1:{port}"])
print(code, sorted({"opdispatch", "numpy"} & sys.modules.keys()))
server.stop(None)
"""


def test_probe_needs_neither_the_dispatcher_nor_numpy():
    quiet = {**os.environ, "GRPC_VERBOSITY": "NONE"}  # of the end of the server
    command = [sys.executable, "-c", _PROBE]
    done = subprocess.run(command, capture_output=True, text=True, env=quiet, timeout=LONGEST_WAIT)
    assert (done.stdout, done.stderr) == ("SERVING\n0 []\n", "")


_COLLECTOR = """
import gc, sys
from opdispatch_client.cli import app, main
words = ["describe", "a::b", "--address", "unix:///nowhere/daemon.sock"]
begun = []
gc.callbacks.append(lambda phase, facts: begun.append(facts["generation"]))
if sys.argv[1:] == ["in-process"]:
    code = main(words)
else:
    sys.argv[1:] = words
    code = main()
print(code, "grpc" in sys.modules, 2 in begun, gc.isenabled(), gc.get_freeze_count() > 10_000)
"""


@pytest.mark.parametrize(("words", "frozen"), [([], True), (["in-process"], False)])
def test_a_command_does_not_go_through_what_it_imports(words: list[str], frozen: bool):
    done = subprocess.run(
        [sys.executable, "-c", _COLLECTOR, *words],
        capture_output=True,
        text=True,
        check=True,
        timeout=LONGEST_WAIT,
    )
    assert done.stdout == f"1 True False True {frozen}\n"


def test_command_lines_of_one_process_share_what_they_are_put_together_from(capsys):
    assert build_app() is build_app()
    nowhere = ["describe", "a::b", "--address", "unix:///nowhere/daemon.sock"]
    traced = []
    for words in ([*nowhere, "--debug"], nowhere):
        assert main(words) == 1
        traced.append("Traceback" in capsys.readouterr().err)
    assert traced == [True, False]


def test_each_command_is_in_the_module_that_the_table_names():
    for module, names in app.OWN_COMMANDS.items():
        made = typer.Typer(callback=lambda: None)
        importlib.import_module(module).register(made)
        assert tuple(typer.main.get_command(made).commands) == names


def test_command_imports_no_module_of_another_command():
    code = (
        "import sys; from opdispatch_client.cli import main; main(['health', '--help'])\n"
        f"print(*(m for m in {list(app.OWN_COMMANDS)!r} if m in sys.modules), file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        timeout=LONGEST_WAIT,
    )
    assert done.stderr == "opdispatch_client.cli.health\n"


def test_every_public_name_exists():
    assert opdispatch_client.__all__ == sorted(opdispatch_client.__all__)
    for name in opdispatch_client.__all__:
        assert getattr(opdispatch_client, name) is not None
    assert set(opdispatch_client.__all__) <= set(dir(opdispatch_client))
    with pytest.raises(AttributeError, match="no attribute 'missing'"):
        opdispatch_client.missing  # noqa: B018


_WITHOUT = """
import sys
package, *words = sys.argv[1:]
sys.modules[package] = None  # as if it were not installed
from opdispatch_client.cli import app, main
sys.exit(main(words))
"""


@pytest.mark.parametrize(
    ("package", "extra", "words"),
    [
        ("grpc_health", "server", ["serve", "--workers", "0", "--listen", "unix:/no/d.sock"]),
        ("psutil", "stress", ["stress", "--seconds", "1"]),
    ],
)
def test_a_command_without_the_packages_of_its_extra_says_what_to_install(package, extra, words):
    command = [sys.executable, "-c", _WITHOUT, package, *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LONGEST_WAIT)
    assert (done.returncode, done.stdout, done.stderr) == (
        1,
        "",
        f"opdispatch: `opdispatch {words[0]}` needs the package {package!r}, which is not "
        f"installed; install opdispatch[{extra}]\n",
    )
