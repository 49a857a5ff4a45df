"""No test gives up on what must come before a busy machine has had time for it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.import_graph import parse
from tests.waits import LONGEST_WAIT

TESTS = Path(__file__).parent.parent
# Those below wait to see that something does not come.
SHORTEST = 1.5
POSITIONS = {
    "communicate": 0,
    "join": 0,
    "result": 0,
    "settimeout": 0,
    "timeout": 0,
    "wait": 0,
    "wait_for": 1,
    "select": 3,
}
NAMED = {*POSITIONS, "acquire", "as_completed", "get", "run"}


def short_waits(text: str) -> Iterator[int]:
    """Yield the numbers of the lines that wait for less than `LONGEST_WAIT`."""
    for call in ast.walk(parse(text)):
        if not isinstance(call, ast.Call):
            continue
        name = getattr(call.func, "attr", getattr(call.func, "id", ""))
        limits = [each.value for each in call.keywords if each.arg == "timeout" and name in NAMED]
        if len(call.args) - 1 == POSITIONS.get(name, -2):
            limits.append(call.args[-1])
        for limit in limits:
            seconds = limit.value if isinstance(limit, ast.Constant) else None
            if isinstance(seconds, int | float) and SHORTEST <= seconds < LONGEST_WAIT:
                yield call.lineno


def test_tests_wait_long_enough():
    found = [
        f"{path.relative_to(TESTS)}:{line}"
        for path in TESTS.rglob("*.py")
        if "bench" not in path.parts
        for line in short_waits(path.read_text())
    ]
    assert found == [], "LONGEST_WAIT of tests.waits is for that"


@pytest.mark.parametrize(
    "wait", ["x.join(10)", "x.get(timeout=20)", "asyncio.wait_for(x, 5)", "s.select(x, [], [], 2)"]
)
def test_short_waits_are_found(wait: str):
    assert list(short_waits(f"\n{wait}\n")) == [2]
