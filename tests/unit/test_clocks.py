"""A clock that jumps changes nothing but the times that are shown, and when tokens end."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
ROOMS = ("dispatcher", "proto", "server", "client", "stress")

TIME_OF_DAY = {"time.time", "time.time_ns", "time.localtime", "datetime.now", "datetime.utcnow"}
SHOWN = {
    "daemon/interpreters/totals.py",  # when an interpreter died
    "daemon/interpreters/forwarded_call.py",  # when the span of a call began
    "daemon/interpreters/session.py",  # since when an interpreter has been connected
    "daemon/state/journal_database.py",  # when something was recorded
    "daemon/libraries/journaled_changes.py",  # when a library was loaded
    "daemon/libraries/version.py",
    "access/certificate_authority.py",  # from when until when a certificate is valid
    "daemon/state/folder.py",  # the name of what an import of a state has replaced
}
"""Where the time of day is noted, and nothing is reckoned with it."""
TOKENS = {
    "access/authentication.py",
    "access/revocation.py",
    "access/token.py",
    "commands/token_actions.py",
}
"""They end at a time of day, which other machines and a later process know, too."""


# Most files need not be parsed.
MAY_ASK = re.compile(r"\b(time|time_ns|localtime|now|utcnow)\(")


def wall_clocks(path: Path) -> set[str]:
    """The calls in a file that ask for the time of day."""
    text = path.read_text()
    if not MAY_ASK.search(text):
        return set()
    calls = {
        ast.unparse(node.func) for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)
    }
    return calls & TIME_OF_DAY


def test_deadlines_leases_and_waits_are_reckoned_with_clocks_that_never_jump():
    files = [path for room in ROOMS for path in (ROOT / room).rglob("*.py")]
    shown = {ROOT / "server/opdispatch_server" / name for name in SHOWN | TOKENS}
    shown.add(ROOT / "proto/opdispatch_wire/trace_context.py")  # when a span began and ended
    assert {path for path in files if wall_clocks(path)} == shown
