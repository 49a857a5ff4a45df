"""`opdispatch stress`, short."""

from __future__ import annotations

import json

from tests.cli.conftest import RunCommand
from tests.service.running_daemon import RunningDaemon

SHORT = ("--seconds", "1.5", "--interpreters", "2", "--callers", "2", "--libraries", "2")


def test_a_race_against_a_daemon_of_its_own(run: RunCommand, monkeypatch):
    # Had it no daemon of its own, it would find none.
    monkeypatch.setenv("OPDISPATCH_ADDRESS", "unix:///nowhere/daemon.sock")
    raced = run("stress", *SHORT, "--seed", "5", "--json")
    report = json.loads(raced.out)
    assert (report["errors"], report["violations"]) == ({}, [])
    assert raced.code == 0
    assert report["seed"] == 5
    assert report["counts"]["loads"] > 0
    assert report["counts"]["waits"] > 0
    assert report["counts"]["calls"] + report["counts"]["calls of nothing"] > 0
    assert report["call_latencies_ms"]["p50"] <= report["call_latencies_ms"]["max"]


def test_a_race_against_a_daemon_that_runs(run: RunCommand, daemon: RunningDaemon):
    raced = run("stress", *SHORT, "--address", daemon.address)
    assert raced.code == 0, raced.out
    assert raced.out.rstrip().endswith("no violations: every answer was right")
    assert raced.out.startswith("seed ")
    libraries = json.loads(run("libraries", "--json").out)
    assert [library["name"] for library in libraries] == ["shop"]


def test_only_interpreters_of_its_own_are_killed(run: RunCommand, daemon: RunningDaemon):
    refused = run("stress", *SHORT, "--kill-every", "1", "--address", daemon.address)
    assert refused.code == 2
    assert refused.err == (
        "opdispatch: --kill-every needs a daemon of its own: leave --address out, and one is "
        "started\n"
    )
