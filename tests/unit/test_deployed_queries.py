"""The dashboard and the alerts in deploy/: every query is about metrics and labels that exist."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytest.importorskip("prometheus_client", reason="opdispatch[http] is not installed")

from prometheus_client.parser import text_string_to_metric_families

from opdispatch_server.daemon.monitoring.exposition import Exposition
from opdispatch_server.daemon.monitoring.facts import ProcessUse
from opdispatch_server.metrics.call_counts import Series
from opdispatch_server.metrics.call_table import Counts, table_of
from opdispatch_wire.v1 import registry_pb2 as pb
from tests.unit.test_exposition import NO_CALLS
from tests.unit.test_import_layers import ROOT
from tests.waits import LONGEST_WAIT

DASHBOARD = ROOT / "deploy" / "grafana" / "opdispatch.json"
ALERTS = ROOT / "deploy" / "prometheus" / "opdispatch-alerts.yaml"

FACTS = NO_CALLS._replace(
    calls=table_of({Series("a::b", "CPU", "a", "1"): Counts(ok=1, died=1)}),
    interpreters=[pb.Interpreter(name="worker-1", state="ready", supervised=True)],
    refusals={"QueueFullError": 1},
    clients={"python[4711]": 1},
    processes={"worker-1": ProcessUse(1.0, 1, 1)},
)
# Prometheus adds them when it scrapes.
ADDED = {"job", "instance"}


def queries() -> Iterator[str]:
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        for target in panel["targets"]:
            yield target["expr"]
    yield from re.findall(r"^ +expr: (.*)$", ALERTS.read_text(), re.MULTILINE)


def exposed() -> str:
    """Return the metrics of a daemon as Prometheus is sent them."""
    pieces, _ = Exposition(lambda: FACTS).scrape("")
    return b"".join(pieces).decode()


def known_labels() -> dict[str, set[str]]:
    """Return the labels of each sample that a daemon has."""
    text = exposed()
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
    text = exposed()
    for query in queries():
        for label, value in re.findall(r'(outcome|change|state)="(\w+)"', query):
            assert f'{label}="{value}"' in text, query


@pytest.fixture
def promtool() -> Callable[..., str]:
    """Return a function that runs promtool, and returns its output; skip where there is none."""
    path = shutil.which("promtool")
    if path is None:
        give_up = pytest.fail if os.environ.get("OPDISPATCH_REQUIRE_PROMTOOL") else pytest.skip
        give_up("promtool is not installed: apt-get install prometheus")

    def run(*words: str, stdin: str = "") -> str:
        found = subprocess.run(
            [str(path), *words],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=LONGEST_WAIT,
            check=False,
        )
        output = found.stdout + found.stderr
        assert found.returncode == 0, output
        return output

    return run


Promtool = Callable[..., str]


def test_prometheus_accepts_the_alerts(promtool: Promtool):
    assert "10 rules found" in promtool("check", "rules", str(ALERTS))


def test_prometheus_accepts_the_queries_of_the_dashboard(promtool: Promtool, tmp_path: Path):
    """A query is checked as a recording rule, with the values of Grafana's variables."""
    rules = [
        {"record": "opdispatch:checked", "expr": query, "labels": {"number": str(number)}}
        for number, query in enumerate(
            each.replace("$__rate_interval", "5m").replace("$job", "opdispatch")
            for each in queries()
        )
    ]
    path = tmp_path / "rules.yaml"
    path.write_text(json.dumps({"groups": [{"name": "dashboard", "rules": rules}]}))
    assert f"{len(rules)} rules found" in promtool("check", "rules", str(path))


def test_prometheus_finds_nothing_to_correct_in_the_metrics(promtool: Promtool):
    assert promtool("check", "metrics", stdin=exposed()) == ""


CALLS = 'opdispatch_calls_total{operator="a::b",library="a",version="%s",key="%s",outcome="%s"}'
RUNS = 'opdispatch_kernel_duration_seconds_%s{operator="a::b",library="a",version="%s",key="CPU"}'


@pytest.mark.parametrize(
    ("alert", "series", "fires_at"),
    [
        pytest.param(
            "OpdispatchCallsDied",
            {CALLS % ("1", "CPU", "died"): "0+1x20"},
            "10m",
            id="a library that crashes its interpreter",
        ),
        pytest.param(
            "OpdispatchCallsRefused",
            {'opdispatch_calls_refused_total{error="QueueFullError"}': "0+100x20"},
            "10m",
            id="a client that floods",
        ),
        pytest.param(
            "OpdispatchLatencyDoubled",
            {
                RUNS % ("count", "1"): "0+100x1500",
                RUNS % ("sum", "1"): "0+1x1500",
                RUNS % ("count", "2"): "0x1500 0+100x60",
                RUNS % ("sum", "2"): "0x1500 0+3x60",
            },
            "1560m",
            id="a replacement that takes twice as long",
        ),
        pytest.param(
            "OpdispatchCompositeFallback",
            {
                CALLS % ("1", "CPU", "ok"): "0+100x1500 150000x60",
                CALLS % ("1", "CompositeImplicitAutograd", "ok"): "0x1500 0+100x60",
            },
            "1540m",
            id="a key that fell back to a composite kernel",
        ),
    ],
)
def test_an_alert_fires_when_it_should_and_not_before(
    alert: str, series: dict[str, str], fires_at: str, promtool: Promtool, tmp_path: Path
):
    """Prometheus itself evaluates it over samples, one a minute."""
    expected = {
        "OpdispatchCallsDied": {"operator": "a::b", "library": "a", "version": "1"},
        "OpdispatchCallsRefused": {"error": "QueueFullError"},
        "OpdispatchLatencyDoubled": {"operator": "a::b", "library": "a"},
        "OpdispatchCompositeFallback": {"operator": "a::b"},
    }[alert]
    [(severity, summary)] = re.findall(
        rf"alert: {alert}\n.*?severity: (\w+)\n.*?summary: (.*?)\n", ALERTS.read_text(), re.DOTALL
    )
    for name, value in expected.items():
        summary = summary.strip('"').replace(f"{{{{ $labels.{name} }}}}", value)
    fired = {
        "exp_labels": {**expected, "severity": severity},
        "exp_annotations": {"summary": summary},
    }
    test = {
        "rule_files": [str(ALERTS)],
        "evaluation_interval": "1m",
        "tests": [
            {
                "interval": "1m",
                "input_series": [{"series": k, "values": v} for k, v in series.items()],
                "alert_rule_test": [
                    {"eval_time": "1m", "alertname": alert, "exp_alerts": []},
                    {"eval_time": fires_at, "alertname": alert, "exp_alerts": [fired]},
                ],
            }
        ],
    }
    path = tmp_path / "test.yaml"
    path.write_text(json.dumps(test))
    assert "SUCCESS" in promtool("test", "rules", str(path))
