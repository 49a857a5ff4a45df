"""User code under ``mypy --strict``: decorators keep the types of what they decorate."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from mypy import api

ROOT = Path(__file__).parents[2]
USER_CODE = ROOT / "tests" / "user_code" / "user_library.py"


def test_mypy_strict_sees_the_types_of_decorated_functions(monkeypatch: pytest.MonkeyPatch):
    """Exactly the lines that are marked have an error, each of the kind that it says."""
    marked = {
        number: error[1]
        for number, line in enumerate(USER_CODE.read_text().splitlines(), 1)
        if (error := re.search(r"# error: \[([a-z-]+)\]$", line))
    }
    monkeypatch.setenv("MYPYPATH", str(ROOT / "dispatcher"))  # as a wheel's site-packages
    out, err, _ = api.run(
        [
            "--strict",
            "--config-file=",
            "--python-version=3.11",
            "--follow-imports=silent",
            f"--cache-dir={ROOT / '.mypy_cache' / 'user_code'}",
            "--no-error-summary",
            "--hide-error-context",
            str(USER_CODE),
        ]
    )
    found = re.findall(r"user_library\.py:(\d+): error: .*\[([a-z-]+)\]$", out, re.MULTILINE)
    assert {int(number): kind for number, kind in found} == marked, out + err
    assert "error:" not in re.sub(r"user_library\.py:\d+: error:", "", out), out
