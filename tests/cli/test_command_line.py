"""The command line, as a user runs it, against a real daemon."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from importlib.metadata import entry_points
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from opdispatch_client.cli.app import ENTRY_POINT_GROUP
from tests.cli.conftest import SCRIPT, RunCommand
from tests.service.running_daemon import RunningDaemon, wait_for
from tests.waits import LONGEST_WAIT

GREETING = """\
from opdispatch import Library

lib = Library("greeting", "DEF")
lib.define("hello() -> str")
lib.impl("hello", lambda: {answer!r}, "CompositeExplicitAutograd")
"""


def test_a_library_comes_is_replaced_and_goes(run: RunCommand, tmp_path: Path):
    source = tmp_path / "greeting.py"
    source.write_text(GREETING.format(answer="hi"))
    loaded = run("load", "greeting.py")
    assert (loaded.code, loaded.err) == (0, "")
    assert loaded.out.splitlines()[0].startswith("loaded greeting v1 in worker-")
    assert loaded.out.splitlines()[1:] == ["  greeting::hello"]
    assert run("call", "greeting::hello").out == "hi\n"
    assert "greeting v1 was loaded already" in run("load", "greeting.py").out

    source.write_text(GREETING.format(answer="good evening"))
    assert "loaded greeting v2" in run("load", "greeting.py").out
    assert run("call", "greeting::hello").out == "good evening\n"
    listed = run("libraries").out.splitlines()
    assert listed[0].split()[:3] == ["NAME", "VERSION", "STATE"]
    assert ["greeting", "v2", "active", "1"] in [line.split()[:4] for line in listed]

    back = run("unload", "greeting", "--version", "2")
    assert back.out == "unloaded greeting v2; greeting v1 is active now\n"
    assert run("call", "greeting::hello").out == "hi\n"
    assert run("unload", "greeting").out == "unloaded greeting\n"
    gone = run("call", "greeting::hello")
    assert (gone.code, gone.out) == (1, "")
    assert gone.err.startswith("opdispatch: there is no operator greeting::hello")


def test_a_library_can_have_another_name_and_place(run: RunCommand, tmp_path: Path):
    (tmp_path / "greeting.py").write_text(GREETING.format(answer="hi"))
    loaded = run("load", "./greeting.py", "--name", "other", "--interpreter", "worker-2", "--json")
    document = json.loads(loaded.out)
    assert (document["name"], document["version"]) == ("other", 1)
    assert document["interpreters"] == ["worker-2"]
    assert document["operators"] == ["greeting::hello"]
    assert json.loads(run("unload", "other", "--json").out)["active"] is None


def test_a_library_that_fails_shows_where(run: RunCommand, tmp_path: Path):
    (tmp_path / "broken.py").write_text("x = 1\nraise RuntimeError('not today')\n")
    failed = run("load", "broken.py")
    assert failed.code == 1
    assert "not today" in failed.err
    assert failed.err.count("\n") == 1
    in_full = run("load", "broken.py", "--debug")
    assert 'broken.py", line 2' in in_full.err
    assert "broken" not in run("libraries").out


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("stall", "namespace stall is in library 'kiosk'"),
        ("stall::", "namespace stall:: is in library 'kiosk'"),
        ("stall::hello", "operator stall::hello is in library 'kiosk'"),
        ("hello", "operator hello is in library 'kiosk'"),
        ("stand.py", "what was loaded from stand.py is in library 'kiosk'"),
        ("./stand.py", "what was loaded from stand.py is in library 'kiosk'"),
        ("kisok", "did you mean 'kiosk'?"),
    ],
)
@pytest.mark.parametrize("command", ["unload", "rollback"])
def test_name_that_is_no_librarys_says_which_library_is_meant(
    run: RunCommand, tmp_path: Path, command: str, name: str, hint: str
):
    text = GREETING.format(answer="hi").replace("greeting", "stall")
    (tmp_path / "stand.py").write_text(text)
    run("load", "stand.py", "--name", "kiosk")
    try:
        failed = run(command, name)
        assert (failed.code, failed.out) == (1, "")
        assert failed.err.startswith(f"opdispatch: no library named {name!r} is loaded; loaded: ")
        assert failed.err.endswith(f" ({hint})\n")
    finally:
        run("unload", "kiosk")


@pytest.mark.parametrize("command", ["describe", "table", "call"])
def test_name_that_is_no_operators_says_which_one_is_meant(run: RunCommand, command: str):
    failed = run(command, "shop::edge")
    assert "there is no operator shop::edge (did you mean shop::edges" in failed.err
    failed = run(command, "shop")
    assert "there is no operator shop (that is a namespace, which has shop::" in failed.err


def test_argument_that_is_written_as_an_option_says_how_to_write_it(run: RunCommand):
    failed = run("call", "shop::edges", "[[1]]", "--normalize", "false")
    assert (failed.code, failed.out) == (2, "")
    assert "an argument of the operator is written normalize=VALUE" in failed.err
    assert "--output" in run("call", "shop::edges", "[[1]]", "--outputt", "x").err


def test_the_lists_show_what_is_there(run: RunCommand):
    operators = run("ops", "shop::*").out.splitlines()
    assert operators[0].split() == ["OPERATOR", "KEYS", "LIBRARIES"]
    edges = "shop::edges(Tensor picture, *, bool normalize=True) -> Tensor"
    assert any(line.startswith(edges) and line.endswith("shop") for line in operators)
    assert len(run("ops", "add").out.splitlines()) == 3
    assert run("ops", "missing::*").err == "no operator matches 'missing::*'\n"
    interpreters = json.loads(run("interpreters", "--json").out)
    assert {"worker-1", "worker-2"} <= {interpreter["name"] for interpreter in interpreters}
    listed = run("interpreters").out
    assert "worker-1" in listed
    # Nothing is reserved, and nothing goes to a device: there are no columns for that.
    assert "PYTHON" in listed
    assert "RESERVED FOR" not in listed


def test_an_operator_is_waited_for(run: RunCommand):
    assert run("wait", "shop::nothing").out == "shop::nothing() -> ()\n"
    found = run("wait", "shop::edges", "--key", "CPU")
    assert found.out.startswith("shop::edges has a kernel for CPU, registered at shop.py:")
    assert json.loads(run("wait", "shop::edges", "--key", "CPU", "--json").out)["library"] == "shop"
    assert run("wait", "shop::nothing", "--timeout", "inf").code == 0
    late = run("wait", "shop::never", "--timeout", "0.5")
    assert (late.code, late.out) == (1, "")
    assert late.err.startswith("opdispatch: waited 0.5 s for the definition of shop::never, which ")


def test_an_operator_is_described(run: RunCommand):
    described = run("describe", "shop::edges").out
    assert "shop::edges(Tensor picture, *, bool normalize=True) -> Tensor" in described
    assert "  The edges of a picture.\n\n  Differences along its rows." in described
    assert "shop.py:" in described
    document = json.loads(run("describe", "shop::edges", "--json").out)
    assert document["kernels"][0]["key"] == "CPU"


def test_the_table_tells_kernel_and_reason(run: RunCommand):
    rows = [line.split() for line in run("table", "shop::edges").out.splitlines()]
    assert rows[0] == ["KEY", "KERNEL", "REASON"]
    assert any(row[0] == "CPU" and row[1].startswith("shop.py:") for row in rows)
    documents = json.loads(run("table", "shop::edges", "--json").out)
    assert {"key", "kernel", "reason", "fallthrough"} == documents[0].keys()


@pytest.mark.parametrize(
    ("words", "out"),
    [
        (["shop::add", "[1,2]", "[3,4]"], "int64 [2]\n[4, 6]\n"),
        (["shop::add", "3", "-4"], "-1\n"),
        (["shop::add", "3", "-.5"], "2.5\n"),
        (["shop::add", "b=1", "a=2"], "3\n"),
        (["shop::add", "tensor:float32:[1]", "tensor:float32:[2]"], "float32 [1]\n[3.]\n"),
        (["shop::halves", "[1,2,3]"], "first: int64 [1]\n[1]\nsecond: int64 [2]\n[2, 3]\n"),
        (["shop::halves", "[1,2]", "at=0"], "first: int64 [0]\n[]\nsecond: int64 [2]\n[1, 2]\n"),
        (["shop::stack", "[[1], [2]]"], "int64 [2, 1]\n[[1],\n [2]]\n"),
        (["shop::show", "5", "3", "float16"], "'5' 3.0 float16\n"),
        (["shop::show", '"a=b"', "dtype=none"], "'a=b' 1.0 None\n"),
        (["shop::show", "--", "--json"], "'--json' 1.0 None\n"),
        (["shop::increase_", "[1]"], "int64 [1]\n[2]\n"),
        (["shop::nothing"], ""),
    ],
)
def test_a_call_prints_what_it_returns(run: RunCommand, words: list[str], out: str):
    called = run("call", *words)
    assert (called.code, called.out, called.err) == (0, out, "")


def test_a_call_prints_json(run: RunCommand):
    document = json.loads(run("call", "shop::halves", "[1,2.5]", "--json").out)
    assert document == {
        "returns": [
            {"dtype": "float64", "shape": [1], "data": [1.0]},
            {"dtype": "float64", "shape": [1], "data": [2.5]},
        ]
    }
    assert json.loads(run("call", "shop::nothing", "--json").out) == {"returns": []}


def test_a_call_shows_its_trace(run: RunCommand):
    traced = run("call", "shop::add", "[1]", "[2]", "--trace")
    assert "[call] op=[shop::add.Tensor], key=[CPU]" in traced.out
    assert traced.out.endswith("int64 [1]\n[3]\n")
    document = json.loads(run("call", "shop::add", "1", "2", "--trace", "--json").out)
    assert document["trace"][0]["operator"] == "shop::add.Scalar"
    assert document["returns"] == [3]


def test_a_call_shows_what_it_takes(run: RunCommand, tmp_path: Path):
    for name in ("calls.json", "calls.svg"):
        profiled = run("call", "shop::add", "[1]", "[2]", "--profile", name)
        assert (profiled.code, profiled.err) == (0, f"wrote {name}\n")
        assert profiled.out.startswith("int64 [1]\n[3]\n")
        for event in ("rpc shop::add", "daemon shop::add", "queue shop::add", "shop::add"):
            assert f"\n{event} " in profiled.out
    trace = json.loads((tmp_path / "calls.json").read_text())
    assert sum(event["ph"] == "X" for event in trace["traceEvents"]) == 4
    assert (tmp_path / "calls.svg").read_text().startswith("<svg")
    quiet = run("call", "shop::add", "1", "2", "--profile", "calls.json", "--json")
    assert json.loads(quiet.out) == {"returns": [3]}
    refused = run("call", "shop::add", "1", "2", "--profile", "calls.txt")
    assert (refused.code, refused.out) == (2, "")
    assert "'calls.txt' is not the name of a profile" in refused.err
    (tmp_path / "folder.json").mkdir()
    lost = run("call", "shop::add", "1", "2", "--profile", "folder.json")
    assert "cannot write folder.json: Is a directory" in lost.err


def test_pictures_go_in_and_come_out(run: RunCommand, tmp_path: Path):
    picture = np.zeros((4, 6, 3), np.uint8)
    picture[:, 3:] = 200
    Image.fromarray(picture).save(tmp_path / "in.png")
    written = run("call", "shop::edges", "@in.png", "-o", "out.png")
    assert (written.code, written.out, written.err) == (0, "", "wrote out.png\n")
    with Image.open(tmp_path / "out.png") as image:
        pixels = np.array(image)
    assert pixels.shape == (4, 5, 3)
    assert pixels[:, 2].min() == 255
    refused = run("call", "shop::edges", "@in.png", "normalize=false", "-o", "out.png")
    assert refused.code == 1
    assert "from 0 to 200" in refused.err


def test_arrays_go_in_and_come_out(run: RunCommand, tmp_path: Path):
    np.savez(tmp_path / "in.npz", x=np.arange(3), y=np.arange(3) + 10)
    assert run("call", "shop::stack", "@in.npz", "-o", "out.npy").code == 0
    assert np.load(tmp_path / "out.npy").tolist() == [[0, 1, 2], [10, 11, 12]]
    assert run("call", "shop::halves", "@in.npz:y", "--output", "out.npz").code == 0
    with np.load(tmp_path / "out.npz") as archive:
        assert archive.files == ["first", "second"]
        assert archive["second"].tolist() == [11, 12]
    refused = run("call", "shop::halves", "[1]", "-o", "out.png")
    assert (refused.code, refused.err) == (
        2,
        "opdispatch: shop::halves returns 2 tensors, but 'out.png' can hold only one; "
        "use a .npz file for several\n",
    )


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["call", "shop::missing"], "there is no operator shop::missing"),
        (["call", "shop::edges"], "missing its argument 'picture'"),
        (["call", "shop::edges", "1", "2"], "takes 1 positional argument but 2 were given"),
        (["call", "shop::edges", "word"], "expected Tensor"),
        (["call", "shop::edges", "1", "colour=1"], "has no argument 'colour'"),
        (["call", "shop::fail", "1"], "raised ValueError: out of stock"),
        (["call", "shop::show", "x", "-o", "x.npy"], "returned no tensor"),
        (["describe", "shop::missing"], "there is no operator shop::missing"),
        (["table", "shop::missing"], "there is no operator shop::missing"),
        (["unload", "missing"], "no library named 'missing'"),
        (["load", "missing.py"], "there is no file 'missing.py'"),
        (["load", "a-b"], "neither a .py or .zip file nor the dotted name of a module"),
        (["load", "missing_module"], "No module named 'missing_module'"),
        (["ops", "--address", "unix:///nowhere/daemon.sock"], "start one with `opdispatch serve`"),
    ],
)
def test_a_request_that_fails_is_one_line_and_1(run: RunCommand, words: list[str], problem: str):
    failed = run(*words)
    assert failed.code == 1
    assert failed.err.startswith("opdispatch: ")
    assert problem in failed.err
    assert failed.err.count("\n") == 1


def test_hint_names_the_path_when_load_gets_a_bare_name(run: RunCommand, tmp_path: Path):
    (tmp_path / "greetings.py").write_text(GREETING.format(answer="hi"))
    (tmp_path / "greeters").mkdir()
    for name, path in (("greetings", "greetings.py"), ("greeters", "greeters/")):
        failed = run("load", name)
        assert failed.code == 1
        assert f"No module named '{name}' when it was imported" in failed.err
        assert f"(`opdispatch load {path}` uploads the f" in failed.err


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["nothing"], "no such command 'nothing'"),
        (["cal"], "Did you mean 'call'"),
        (["serv"], "Did you mean 'serve'?"),
        (["call"], "missing argument 'OP' (see `opdispatch call --help`)"),
        (["call", "shop::edges", "--colour"], "no such option: --colour"),
        (["call", "shop::edges", "@missing.png"], "argument 1: there is no file 'missing.png'"),
        (["call", "shop::edges", "[1"], "not well-formed JSON"),
        (["call", "shop::edges", "[[1], [1, 2]]"], "of equal length"),
        (["call", "shop::edges", "a=1", "a=2"], "the argument a is given twice"),
        (["call", "shop::edges", "1", "-o", "out.txt"], "its suffix has to be one of .npy"),
        (["call", "shop::edges", "1", "-o", "no/out.npy"], "there is no folder 'no'"),
        (["call", "shop::edges", "1", "--profile", "no/p.svg"], "there is no folder 'no'"),
        (["ops", "--timeout", "-1"], "expected no negative number"),
        (["ops", "--timeout", "soon"], "--timeout"),
        (["ops", "--address", "what"], "the address 'what' is not understood"),
        (["stress", "--callers", "0"], "--callers"),
        (["state", "export"], "export takes a file"),
        (["state", "prune", "x"], "prune takes no file"),
        (["--json", "state", "export", "x"], "no such option: --json (see `opdispatch state --h"),
    ],
)
def test_wrong_usage_is_one_line_and_2(run: RunCommand, words: list[str], problem: str):
    failed = run(*words)
    assert (failed.code, failed.out) == (2, "")
    assert failed.err.startswith("opdispatch: ")
    assert problem in failed.err
    assert failed.err.count("\n") == 1


@pytest.mark.parametrize(
    "words",
    [
        *(["unload"], ["rollback"], ["drain"], ["revive"], ["describe"], ["table"], ["ops"]),
        *(["wait"], ["call"], ["load", "missing", "--name"]),
    ],
    ids=lambda words: words[0],
)
def test_a_word_that_is_not_utf_8_is_one_line(run: RunCommand, words: list[str]):
    failed = run(*words, os.fsdecode(b"caf\xe9"))
    assert failed.code == 1
    assert "a lone surrogate at index 3" in failed.err
    assert "a bug in opdispatch" not in failed.err
    assert failed.err.count("\n") == 1


def test_a_library_whose_file_name_is_not_utf_8_needs_a_name(run: RunCommand, tmp_path: Path):
    path = tmp_path / os.fsdecode(b"caf\xe9.py")
    path.write_text(GREETING.format(answer="hi"))
    failed = run("load", str(path))
    assert failed.code == 1
    assert "cannot be the name of a library" in failed.err
    assert run("load", str(path), "--name", "cafe").code == 0
    assert run("unload", "cafe").code == 0


def test_debug_shows_both_tracebacks(run: RunCommand):
    for words in (("call", "shop::fail", "1", "--debug"), ("--debug", "call", "shop::fail", "1")):
        failed = run(*words)
        assert "KernelError" in failed.err
        assert failed.err.count("in fail\n") == 1
        assert failed.err.splitlines()[-1].startswith("opdispatch: the kernel of shop::fail")


@pytest.mark.parametrize("name", ["BrokenPipeError", "EOFError", "FileNotFoundError"])
def test_error_of_a_kernel_is_not_taken_for_one_of_the_terminal(
    run: RunCommand, tmp_path: Path, name: str
):
    library = tmp_path / "raising.py"
    library.write_text(
        "import errno\n"
        "from opdispatch import Library\n"
        'lib = Library("raising", "DEF")\n'
        'lib.define("fail() -> ()")\n'
        "def fail():\n"
        f"    raise {name}(errno.EPIPE, 'no good')\n"
        'lib.impl("fail", fail, "CompositeExplicitAutograd")\n'
    )
    assert run("load", str(library)).code == 0
    outcome = run("call", "raising::fail")
    run("unload", "raising")
    assert outcome.code == 1
    assert f"raised {name}" in outcome.err
    assert len(outcome.err.splitlines()) == 1


def test_common_options_may_stand_before_the_command(run: RunCommand):
    assert json.loads(run("--json", "ops", "shop::edges").out)
    # After the command, they win.
    nowhere = "unix:///nowhere/daemon.sock"
    assert run("--address", nowhere, "ops").code == 1
    daemon = json.loads(run("--json", "libraries").out)
    assert daemon[0]["name"] == "shop"


def test_a_slow_call_ends_at_the_timeout(run: RunCommand, tmp_path: Path):
    late = run("call", "shop::wait", str(tmp_path), "--timeout", "0.3")
    (tmp_path / "leave").touch()
    assert late.code == 1
    assert "deadline" in late.err


def test_ctrl_c_ends_a_call_without_a_word(start, tmp_path: Path):
    process = start("call", "shop::wait", str(tmp_path))
    assert wait_for((tmp_path / "entered").exists)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=LONGEST_WAIT)
    (tmp_path / "leave").touch()
    assert (process.returncode, out, err) == (130, "", "")


def test_a_reader_that_leaves_is_no_error(start):
    process = start("ops")
    assert process.stdout is not None
    process.stdout.close()
    assert process.stderr is not None
    assert process.stderr.read() == ""
    process.stderr.close()
    assert process.wait(LONGEST_WAIT) == 141


def test_output_that_cannot_be_written_is_said(daemon: RunningDaemon):
    words = ["ops", "--address", daemon.address]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [SCRIPT, *words], stdout=full, stderr=subprocess.PIPE, text=True, timeout=LONGEST_WAIT
        )
    assert (done.returncode, done.stderr) == (1, "opdispatch: No space left on device\n")


def test_tables_fit_the_terminal_and_are_not_cut_elsewhere(run: RunCommand, monkeypatch):
    wide = run("ops", "shop::*").out
    assert max(map(len, wide.splitlines())) > 80
    assert "\x1b" not in wide
    monkeypatch.setenv("COLUMNS", "80")
    narrow = run("ops", "shop::*").out
    assert max(map(len, narrow.splitlines())) <= 80
    assert "".join(narrow.split()) != ""


def test_rows_that_are_too_wide_for_a_terminal_are_fields(run: RunCommand, monkeypatch):
    """As a table, words would be broken, such as ``worker`` and ``-1``."""
    monkeypatch.setenv("COLUMNS", "60")
    records = run("interpreters").out.split("\n\n")
    assert [record.split()[:2] for record in records] == [
        ["NAME", "worker-1"],
        ["NAME", "worker-2"],
    ]
    for record in records:
        places = {line.index(line.split(maxsplit=1)[1]) for line in record.splitlines()[:5]}
        assert len(places) == 1, "the values are below each other"
    monkeypatch.setenv("COLUMNS", "160")
    assert run("interpreters").out.splitlines()[0].split()[:2] == ["NAME", "PID"]


def test_a_load_lists_twenty_operators(run: RunCommand, tmp_path: Path):
    defined = [f'lib.define("op{n:02}(Tensor x) -> Tensor")' for n in range(23)]
    lines = ["from opdispatch import Library", 'lib = Library("many", "DEF")', *defined]
    (tmp_path / "many.py").write_text("\n".join(lines))
    shown = run("load", "many.py").out.splitlines()
    assert shown[1:] == [
        *(f"  many::op{n:02}" for n in range(20)),
        "  and 3 more, which `opdispatch ops` lists",
    ]
    assert run("unload", "many").code == 0


@pytest.mark.parametrize(
    "words",
    [
        ["--address", "here", "serve"],
        ["--address", "here", "worker"],
        ["--address", "there", "serve", "--listen", "here"],
        ["--address=there", "worker", "--daemon=here"],
    ],
)
def test_a_daemons_address_may_stand_before_the_command_too(words: list[str], tmp_path: Path):
    done = subprocess.run([SCRIPT, *words], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert done.stderr.startswith("opdispatch: the address 'here' is not understood")


def test_an_option_names_the_extra_that_it_needs(run: RunCommand):
    assert "opdispatch[watch]" in run("load", "--help").out


def test_help_says_of_every_command_what_it_does(run: RunCommand):
    lines = [line.strip("│ ") for line in run("--help").out.splitlines() if line.startswith("│ ")]
    commands = {point.name for point in entry_points(group=ENTRY_POINT_GROUP)} | {"load", "call"}
    for name in commands:
        (line,) = (line for line in lines if line.split()[0:1] == [name])
        assert len(line.split()) > 1, name


def test_the_help_lists_every_command(run: RunCommand):
    shown = run("--help").out
    for command in (
        *("serve", "worker", "load", "unload", "libraries", "interpreters", "revive"),
        *("ops", "describe", "table", "call", "wait", "stress"),
    ):
        assert f" {command} " in shown
        assert "--help" in run(command, "--help").out
    assert run("--version").out.startswith("opdispatch 0.")
