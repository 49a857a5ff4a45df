"""No step of a test waits for ever: on a busy machine, one that hangs is named where it hangs."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
# What they run takes minutes, or is nothing but waiting for peers; and where the limits are.
PASSED_OVER = ("bench", "installs", "conformance/live.py", "waits.py")
# Of tests.service.running_daemon: their `wait` has a limit. So have peers' `accept`.
LIMITED = ("daemon", "first", "second", "self", "peer", "daemon.peer")
# They take connections for as long as their test runs.
SERVERS = ("squatter", "self._server")
METHODS = ("join", "wait", "accept", "communicate")
FUNCTIONS = ("run", "call", "check_call", "check_output")
# Most files need not be parsed.
MAY_WAIT = re.compile(r"\.(join|wait|accept)\(\)|\.communicate\(|subprocess\.(run|c)")


def find_unlimited(tree: ast.AST) -> Iterator[ast.Call]:
    """Yield the calls that may wait for ever for a thread, a process, an event or a socket."""
    # What is awaited or handed on, as to asyncio.wait_for, waits elsewhere.
    elsewhere = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Await)}
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    elsewhere |= {id(argument) for call in calls for argument in call.args}
    for call in calls:
        if not isinstance(call.func, ast.Attribute) or id(call) in elsewhere:
            continue
        name, owner = call.func.attr, ast.unparse(call.func.value)
        if "timeout" in (keyword.arg for keyword in call.keywords):
            continue
        is_method = name in METHODS and not call.args and owner not in (*LIMITED, *SERVERS)
        if is_method or (owner == "subprocess" and name in FUNCTIONS):
            yield call


@pytest.mark.parametrize(
    ("code", "is_unlimited"),
    [
        ("thread.join()", True),
        ("thread.join(LONGEST_WAIT)", False),
        ("process.communicate()", True),
        ("process.wait(timeout=3)", False),
        ("found.wait()", True),
        ("async def f(): await found.wait()", False),
        ("asyncio.wait_for(found.wait(), 3)", False),
        ("subprocess.run(command, check=True)", True),
        ("subprocess.run(command, timeout=3)", False),
        ("', '.join(words)", False),
        ("daemon.wait()", False),
    ],
)
def test_an_unlimited_wait_is_found(code: str, is_unlimited: bool):
    assert bool(list(find_unlimited(ast.parse(code)))) == is_unlimited


def test_no_test_waits_for_ever():
    found = []
    for path in sorted(TESTS.rglob("*.py")):
        place = path.relative_to(TESTS).as_posix()
        text = path.read_text()
        if MAY_WAIT.search(text) and not place.startswith(PASSED_OVER):
            calls = find_unlimited(ast.parse(text))
            found += [f"tests/{place}:{call.lineno}: {ast.unparse(call)}" for call in calls]
    assert not found, "give them a limit, as those of tests/waits.py:\n" + "\n".join(found)
