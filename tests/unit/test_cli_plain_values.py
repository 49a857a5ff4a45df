"""Values that the command line takes as they are, beside what typer makes of them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Annotated, Any

import pytest
import typer
import typer.main
from typer.core import TyperGroup

from opdispatch_client.cli.app import build_app
from opdispatch_client.cli.plain_values import keep_plain_values
from tests.waits import LONGEST_WAIT

TAKEN: dict[str, Any] = {}


def take(
    path: Annotated[Path, typer.Argument(dir_okay=False)],
    words: Annotated[list[str] | None, typer.Argument()] = None,
    text: str = "text",
    none: str | None = None,
    count: Annotated[int, typer.Option(min=1, max=10)] = 3,
    seconds: Annotated[float, typer.Option(min=0.5)] = 1.5,
    any_number: float = 0.0,
    flag: bool = False,
    file: Annotated[list[Path] | None, typer.Option(exists=True, dir_okay=False)] = None,
    folder: Annotated[Path | None, typer.Option(file_okay=False)] = None,
    called: Annotated[str, typer.Option(callback=lambda value: value * 2)] = "x",
    parsed: Annotated[str, typer.Option(parser=str.upper)] = "low",
) -> None:
    """Take down what it is given."""
    TAKEN.update(locals())


def outcome(words: list[str], *, plainly: bool) -> object:
    """Return the function's result, or the class and the text of the error that typer raised."""
    app = typer.Typer(add_completion=False)
    app.command()(take)
    command = typer.main.get_command(app)
    if plainly:
        keep_plain_values(command)
    TAKEN.clear()
    try:
        command.main(args=words, standalone_mode=False)
    except Exception as error:
        return type(error), error.format_message()  # type: ignore[attr-defined]
    return {name: (type(value), repr(value)) for name, value in TAKEN.items()}


@pytest.mark.parametrize(
    "line",
    [
        "",
        "new",
        "new a b 1",
        "file",
        "folder",
        "file/below",
        "new --text 7 --none=",
        "new --none x --flag",
        "new --count 7 --seconds 2",
        "new --count 10 --seconds 0.5",
        "new --count 0",
        "new --count 11",
        "new --count 1_0",
        "new --count 007",
        "new --count -1",
        "new --count 1.0",
        "new --count many",
        "new --count ٣",
        "new --seconds 0.4",
        "new --seconds 1e3",
        "new --seconds nan",
        "new --seconds .5",
        "new --seconds 1,5",
        "new --any-number inf",
        "new --any-number -1",
        "new --any-number 007.50",
        "new --any-number 99999999999999999999999",
        "new --file file --file file",
        "new --file file --file missing",
        "new --file folder",
        "new --folder folder",
        "new --folder missing",
        "new --folder file",
        "new --folder file/below",
        "new --folder a\0b",
        "new --parsed word",
        "new --called word",
    ],
)
def test_a_value_is_what_typer_makes_of_it(line, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("file").write_text("")
    Path("folder").mkdir()
    words = line.split()
    expected = outcome(words, plainly=False)
    assert outcome(words, plainly=True) == expected


def test_every_command_keeps_plain_values():
    group = build_app()
    assert isinstance(group, TyperGroup)
    whole = typer.Context(group)
    commands = [group.get_command(whole, name) for name in group.list_commands(whole)]
    assert len(commands) > 20
    for command in (group, *commands):
        context = typer.Context(command)
        for parameter in command.get_params(context):
            assert "process_value" in vars(parameter), (command.name, parameter.name)


_SERVE = """
import asyncio, sys
from opdispatch_client.cli import main

def run(coroutine):
    coroutine.close()
    raise OSError("as far as it should get")

asyncio.run = run
code = main(["serve", "--listen", "unix:///nowhere/socket", "--workers", "2", "--state", "/nowhere",
             "--heartbeat", "0.25", "--queue", "7"])
print(code, sorted({"pydantic", "rich"} & sys.modules.keys()))
"""


def test_serve_starts_without_pydantic():
    done = subprocess.run(
        [sys.executable, "-c", _SERVE], capture_output=True, text=True, timeout=LONGEST_WAIT
    )
    assert (done.stdout, done.stderr) == ("1 []\n", "opdispatch: as far as it should get\n")
