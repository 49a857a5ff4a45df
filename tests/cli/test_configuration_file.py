"""Options from a TOML file: ``--config`` and ``opdispatch config show``."""

from __future__ import annotations

import os
import subprocess
import tomllib
from pathlib import Path

import pytest
import typer
import typer.main

from opdispatch_server.commands.running import serve, worker
from tests.service.warm_daemon import run_code

SHOW = """\
import sys

from opdispatch_client.cli import main

sys.argv[1:] = {words}
sys.exit(main())
"""


def show(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    home = {"XDG_CONFIG_HOME": "/nonexistent", "XDG_STATE_HOME": "/state"}
    code = SHOW.format(words=["config", "show", *words])
    return run_code(code, env={**os.environ, **home, **environment}, cwd=Path.cwd())


def write(folder: Path, *lines: str) -> str:
    file = folder / "config.toml"
    file.write_text("\n".join(("[serve]", *lines, "")))
    return str(file)


def test_options_outrank_the_environment_then_the_file_then_defaults(tmp_path: Path):
    file = write(tmp_path, "queue = 256", "heartbeat = 1", "remote-values = 7")
    words = ("--config", file, "--origin", "serve", "--", "--remote-values", "9")
    lines = show(*words, OPDISPATCH_QUEUE="512").stdout.splitlines()
    assert f"queue = 512  # OPDISPATCH_QUEUE; over 256 ({file})" in lines
    assert f"heartbeat = 1.0  # {file}" in lines
    assert f"remote-values = 9  # --remote-values; over 7 ({file})" in lines
    assert "lock-timeout = 10.0  # default" in lines


def test_config_show_prints_a_file_of_the_same_settings(tmp_path: Path):
    file = write(tmp_path, 'listen = ["127.0.0.1:0"]', "workers = 3", 'state = "/a \\"b"')
    shown = show("--config", file).stdout
    (tmp_path / "again.toml").write_text(shown)
    assert show("--config", str(tmp_path / "again.toml")).stdout == shown
    table = tomllib.loads(shown)["serve"]
    assert (table["listen"], table["workers"], table["state"]) == (["127.0.0.1:0"], "3", '/a "b')


def test_default_values_that_serve_finds_for_itself_are_shown():
    table = tomllib.loads(show(OPDISPATCH_ADDRESS="unix:///run/one.sock").stdout)["serve"]
    assert table["listen"] == ["unix:///run/one.sock"]
    assert table["state"] == "/state/opdispatch"
    assert int(table["workers"]) > 0


def test_file_in_the_configuration_folder_is_read_without_being_named(tmp_path: Path):
    (tmp_path / "opdispatch").mkdir()
    file = write(tmp_path / "opdispatch", "queue = 5")
    assert f"queue = 5  # {file}" in show("--origin", XDG_CONFIG_HOME=str(tmp_path)).stdout
    by_variable = show("--origin", OPDISPATCH_CONFIG=file).stdout
    assert f"queue = 5  # {file}" in by_variable


def test_each_command_reads_its_own_table(tmp_path: Path):
    file = tmp_path / "config.toml"
    file.write_text('[serve]\nlog-level = "debug"\n[worker]\nreconnect = 3\n')
    assert "reconnect = 3.0" in show("--config", str(file), "worker").stdout
    assert 'log-level = "info"' in show("--config", str(file), "worker").stdout


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("quue = 3", "unknown key 'quue' in [serve]; did you mean 'queue'?"),
        ("load_timeout = 3", "unknown key 'load_timeout' in [serve]; did you mean 'load-timeout'?"),
        ('queue = "3"', "queue = '3': expected an integer"),
        ("queue = true", "queue = True: expected an integer"),
        ("queue = 1.5", "queue = 1.5: expected an integer"),
        ("queue = -1", "queue = -1: Input should be greater than or equal to 0"),
        ('heartbeat = "1"', "heartbeat = '1': expected a number"),
        ("insecure = 1", "insecure = 1: expected true or false"),
        ('library = "a.py"', "library = 'a.py': expected an array of strings"),
        ('log-level = "loud"', "log-level = 'loud': expected one of debug, info, warning, error"),
        ('workers = "many"', "'many' is neither a number of interpreters nor a list"),
        ('direct-ports = "9"', "'9' is not a range of ports; expected FIRST-LAST, any or none"),
        ("[server]", "unknown table 'server'; did you mean 'serve'?"),
        ("queue = ", "is not TOML"),
        ('config = "other.toml"', "unknown key 'config'"),
    ],
)
def test_file_with_a_mistake_is_refused_by_name_and_place(tmp_path: Path, text: str, said: str):
    file = write(tmp_path, text)
    done = show("--config", file)
    assert (done.returncode, done.stdout) == (2, "")
    assert f"invalid value for --config: {file}: " in done.stderr
    assert said in done.stderr
    assert done.stderr.count("\n") == 1


def test_file_that_is_not_there_or_cannot_be_read_is_refused(tmp_path: Path):
    assert "cannot be read: No such file" in show("--config", str(tmp_path / "none")).stderr
    (tmp_path / "bytes").write_bytes(b"\xff\xfe")
    assert "is not TOML" in show("--config", str(tmp_path / "bytes")).stderr


@pytest.mark.parametrize("command", [serve, worker])
def test_every_option_has_an_environment_variable(command):
    app = typer.Typer(add_completion=False)
    app.command()(command)
    parsed = typer.main.get_command(app)
    variables = [each.envvar for each in parsed.params]
    assert all(each and each.startswith("OPDISPATCH_") for each in variables)
    assert len(set(variables)) == len(variables)
