"""Answers of a daemon over HTTP, and its metrics as Prometheus' own parser reads them."""

from __future__ import annotations

import contextlib
import http.client
from urllib.parse import urlsplit

import pytest

from tests.waits import LONGEST_WAIT

pytest.importorskip("prometheus_client", reason="opdispatch[http] is not installed")
pytest.importorskip("starlette", reason="opdispatch[http] is not installed")
pytest.importorskip("uvicorn", reason="opdispatch[http] is not installed")

from prometheus_client.parser import text_string_to_metric_families


def get(url: str, path: str = "", **headers: str) -> tuple[int, str]:
    address = urlsplit(url)
    connection = http.client.HTTPConnection(address.hostname, address.port, timeout=LONGEST_WAIT)
    with contextlib.closing(connection):
        connection.request("GET", f"/{path}", headers=headers)
        reply = connection.getresponse()
        return reply.status, reply.read().decode()


Samples = dict[str, dict[frozenset[tuple[str, str]], float]]


def scrape(url: str) -> Samples:
    """Return all samples by name and labels, as Prometheus' own parser reads them."""
    status, text = get(url, "metrics")
    assert status == 200, text
    found: Samples = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            key = frozenset(sample.labels.items())
            assert key not in found.setdefault(sample.name, {}), "a sample twice"
            found[sample.name][key] = sample.value
    return found


def total(samples: Samples, name: str, **labels: str) -> float:
    return sum(value for key, value in samples.get(name, {}).items() if set(labels.items()) <= key)
