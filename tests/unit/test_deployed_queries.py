"""The dashboard and the alerts in deploy/: every query is about metrics and labels that exist."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections import defaultdict
from collections.abc import Iterator

import pytest

pytest.importorskip("prometheus_client", reason="opdispatch[http] is not installed")

from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from opdispatch_server.daemon.monitoring.exposition import DaemonCollector, registry_of
from opdispatch_server.daemon.monitoring.facts import ProcessUse
from opdispatch_server.metrics.call_counts import NOTHING, Series
from opdispatch_wire.v1 import registry_pb2 as pb
from tests.unit.test_exposition import NO_CALLS
from tests.unit.test_import_layers import ROOT
from tests.waits import LONGEST_WAIT

DASHBOARD = ROOT / "deploy" / "grafana" / "opdispatch.json"
ALERTS = ROOT / "deploy" / "prometheus" / "opdispatch-alerts.yaml"

FACTS = NO_CALLS._replace(
    calls={Series("a::b", "CPU", "a", "1"): NOTHING._replace(ok=1, died=1)},
    interpreters=[pb.Interpreter(name="worker-1", state="ready", supervised=True)],
    refusals={"QueueFullError": 1},
    processes={"worker-1": ProcessUse(1.0, 1, 1)},
)
# Prometheus adds them when it scrapes.
ADDED = {"job", "instance"}


def queries() -> Iterator[str]:
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        for target in panel["targets"]:
            yield target["expr"]
    yield from re.findall(r"^ +expr: (.*)$", ALERTS.read_text(), re.MULTILINE)


def known_labels() -> dict[str, set[str]]:
    """Return the labels of each sample that a daemon has."""
    text = generate_latest(registry_of(DaemonCollector(lambda: FACTS))).decode()
    known: defaultdict[str, set[str]] = defaultdict(set)
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            known[sample.name] |= sample.labels.keys() | ADDED
    return known


@pytest.mark.parametrize("query", sorted(set(queries())))
def test_every_query_is_about_metrics_and_labels_that_exist(query: str):
    known = known_labels()
    named = re.findall(r"\b((?:opdispatch|process)_\w+)(?:\{([^}]*)\})?", query)
    assert named
    for name, selectors in named:
        assert name in known
        assert set(re.findall(r"(\w+)(?:=~|!~|!=|=)", selectors)) <= known[name]
    for labels in re.findall(r"\b(?:by|on) \(([^)]*)\)", query):
        wanted = {label.strip() for label in labels.split(",")}
        assert all(wanted <= known[name] for name, _ in named)


def test_values_that_queries_select_are_those_that_metrics_have():
    text = generate_latest(registry_of(DaemonCollector(lambda: FACTS))).decode()
    for query in queries():
        for label, value in re.findall(r'(outcome|change|state)="(\w+)"', query):
            assert f'{label}="{value}"' in text, query


def test_prometheus_accepts_the_alerts():
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed: apt-get install prometheus")
    found = subprocess.run(
        [promtool, "check", "rules", str(ALERTS)],
        capture_output=True,
        text=True,
        timeout=LONGEST_WAIT,
        check=False,
    )
    assert found.returncode == 0, found.stdout + found.stderr
