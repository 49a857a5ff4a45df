"""Nothing that a library says reaches a terminal with control characters in it."""

from __future__ import annotations

import json
import traceback
import unicodedata
from collections.abc import Iterator
from pathlib import Path

import pytest

import opdispatch_client as oc
from tests.cli.conftest import Outcome, RunCommand
from tests.service.running_daemon import RunningDaemon

# Clears the screen, sets the title, reorders what follows, and makes lines that look like ours.
SPELL = "\x1b[2J\x1b]0;owned\x07\x9b31m\u202eevil\u2066\r\nopdispatch: loaded\u2028[bold]x[/]\x7f"

EVIL = f"""\
import sys
from opdispatch import Library

SPELL = {SPELL!r}
lib = Library("evil", "DEF")
lib.define("say(str x) -> str", tags=())
lib.define("fail(str x) -> str")
lib.define("many(str x) -> (str first, str[] rest)")

def say(x):
    \"\"\"Say it. {ascii(SPELL)[1:-1]}\"\"\"
    print(SPELL, flush=True)
    return SPELL

def fail(x):
    error = ValueError(SPELL)
    error.add_note(SPELL)
    raise error

lib.impl("say", say, "CompositeExplicitAutograd")
lib.impl("fail", fail, "CompositeExplicitAutograd")
lib.impl("many", lambda x: (SPELL, [SPELL, SPELL]), "CompositeExplicitAutograd")
"""


def check_text(text: str) -> None:
    """Assert that a terminal shows all of it and obeys none of it."""
    obeyed = {c for c in text if unicodedata.category(c) in ("Cc", "Cf", "Zl", "Zp")}
    assert obeyed <= {"\n"}, ascii(text)


def check_output(outcome: Outcome) -> None:
    """Assert that of what a command has printed, and that no line on stderr is forged."""
    check_text(outcome.out)
    check_text(outcome.err)
    for line in outcome.err.splitlines():
        assert not line.startswith("opdispatch: loaded")


@pytest.fixture
def evil(run: RunCommand, tmp_path: Path) -> Iterator[RunCommand]:
    """Run commands; the library above is loaded."""
    path = tmp_path / "evil.py"
    path.write_text(EVIL)
    outcome = run("load", str(path))
    assert outcome.code == 0, outcome.err
    yield run
    assert run("unload", "evil").code == 0


def test_no_command_prints_control_characters(evil: RunCommand):
    for words in (
        ["libraries"],
        ["ops"],
        ["describe", "evil::say"],
        ["table", "evil::say"],
        ["interpreters"],
        ["call", "evil::say", "x"],
        ["call", "evil::many", "x"],
        ["call", "--trace", "evil::say", SPELL],
    ):
        for options in ([], ["--json"]):
            outcome = evil(*words, *options)
            assert outcome.code == 0, outcome.err
            check_output(outcome)
    assert json.loads(evil("call", "evil::say", "x", "--json").out) == {"returns": [SPELL]}


def test_no_error_prints_control_characters(evil: RunCommand, tmp_path: Path):
    raises = tmp_path / "raises.py"
    raises.write_text(f"raise RuntimeError({SPELL!r})\n")
    odd = tmp_path / f"{SPELL.replace('/', '')}.py"
    odd.write_text("")
    for words in (
        ["call", "evil::fail", "x"],
        ["call", f"evil::{SPELL}", "x"],
        ["load", str(raises)],
        ["load", str(odd)],
        ["load", SPELL],
        ["load", "x.py", "--name", SPELL],
        ["unload", SPELL],
        ["describe", SPELL],
        ["--address", f"unix:///{SPELL}", "ops"],
        [SPELL],
    ):
        for options in ([], ["--debug"]):
            outcome = evil(*words, *options)
            assert outcome.code != 0, words
            check_output(outcome)
            assert outcome.err


def test_errors_and_documentation_print_no_control_characters(
    evil: RunCommand, daemon: RunningDaemon
):
    with daemon.connect() as session:
        with pytest.raises(oc.KernelError) as caught:
            session.ops.evil.fail("x")
        documentation = session.ops.evil.say.__doc__
    printed = "".join(traceback.format_exception_only(caught.value))
    for text in (printed, documentation):
        check_text(text)
        assert "owned" in text
