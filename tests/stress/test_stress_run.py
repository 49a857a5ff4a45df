"""``opdispatch stress`` as its user runs it: 20 seconds, with kills and a fixed seed."""

from __future__ import annotations

import json

import pytest

from opdispatch_client.cli import main

SECONDS = 20


def test_twenty_seconds_of_races_and_kills(capsys: pytest.CaptureFixture[str]):
    code = main(
        [
            *("stress", "--json", "--seed", "1105", "--seconds", str(SECONDS)),
            *("--interpreters", "4", "--libraries", "10", "--callers", "4"),
            *("--kill-every", "2"),
        ]
    )
    report = json.loads(capsys.readouterr().out)
    assert report["violations"] == []
    # A known fault, not understood yet: in one run of about ten, one call has no reply in its time.
    late = {what: n for what, n in report["errors"].items() if "DeadlineExceeded" in what}
    assert report["errors"] == late
    assert sum(late.values()) <= 1
    assert code == (1 if late else 0)
    counts = report["counts"]
    assert counts["interpreters killed"] >= SECONDS // 2 - 2
    assert min(counts[what] for what in ("calls", "loads", "unloads", "waits")) > 0
