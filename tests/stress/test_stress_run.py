"""``opdispatch stress`` as its user runs it: five seconds, with kills and a fixed seed."""

from __future__ import annotations

import json

import pytest

from opdispatch_client.cli import main

pytestmark = pytest.mark.slow

SECONDS = 5


def test_seconds_of_races_and_kills(capsys: pytest.CaptureFixture[str]):
    code = main(
        [
            *("stress", "--json", "--seed", "1105", "--seconds", str(SECONDS)),
            *("--interpreters", "4", "--libraries", "10", "--callers", "4"),
            *("--kill-every", "2"),
        ]
    )
    output, errors = capsys.readouterr()
    assert output, errors
    report = json.loads(output)
    assert report["violations"] == []
    assert report["errors"] == {}
    assert code == 0
    counts = report["counts"]
    assert counts["interpreters killed"] >= SECONDS // 2 - 1
    assert min(counts[what] for what in ("calls", "loads", "unloads", "waits")) > 0
