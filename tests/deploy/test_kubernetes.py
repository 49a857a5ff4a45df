"""The manifests of ``deploy/kubernetes``, which the chart of ``deploy/helm`` renders by default."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cli.conftest import SCRIPT
from tests.waits import LONGEST_WAIT

DEPLOY = Path(__file__).parents[2] / "deploy"
MANIFESTS = DEPLOY / "kubernetes" / "opdispatch.yaml"
CHART = DEPLOY / "helm" / "opdispatch"
HELM = shutil.which("helm")
VALIDATE = shutil.which("kubernetes-validate")
needs_helm = pytest.mark.skipif(HELM is None, reason="needs helm")
needs_validate = pytest.mark.skipif(VALIDATE is None, reason="needs kubernetes-validate")
EVERYTHING = ("--set", "metrics.enabled=true", "--set", "workers.autoscaling.enabled=true")


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, timeout=LONGEST_WAIT)


def render(*options: str) -> str:
    done = run(str(HELM), "template", "opdispatch", str(CHART), *options)
    assert done.returncode == 0, done.stderr
    return done.stdout


def containers(text: str) -> list[dict[str, Any]]:
    found = []
    for manifest in yaml.safe_load_all(text):
        if manifest["kind"] in ("StatefulSet", "Deployment"):
            found += manifest["spec"]["template"]["spec"]["containers"]
    return found


@pytest.mark.parametrize("container", containers(MANIFESTS.read_text()), ids=lambda c: c["name"])
def test_arguments_of_a_container_are_those_that_its_command_takes(container: dict[str, Any]):
    command, *options = container["args"]
    words = [each.replace("$(POD_NAME)", "pod-1") for each in options]
    done = subprocess.run(
        [SCRIPT, "config", "show", command, "--", *words],
        env={**os.environ, "XDG_CONFIG_HOME": "/nonexistent"},
        capture_output=True,
        text=True,
        timeout=LONGEST_WAIT,
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("container", containers(MANIFESTS.read_text()), ids=lambda c: c["name"])
def test_containers_have_no_privilege_and_a_root_that_is_read_only(container: dict[str, Any]):
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


def test_every_probe_is_a_command_of_the_command_line():
    probes = [
        container[kind]["exec"]["command"]
        for container in containers(MANIFESTS.read_text())
        for kind in ("startupProbe", "readinessProbe", "livenessProbe")
        if kind in container
    ]
    assert probes
    for _, command, *_ in probes:
        assert run(SCRIPT, command, "--help").returncode == 0


@needs_helm
def test_manifests_are_what_the_chart_renders():
    assert MANIFESTS.read_text() == render()


@needs_helm
def test_helm_finds_no_fault_in_the_chart():
    done = run(str(HELM), "lint", "--strict", str(CHART))
    assert done.returncode == 0, done.stdout + done.stderr


@needs_validate
def test_manifests_are_valid_by_the_schemas_of_kubernetes(tmp_path: Path):
    files = [MANIFESTS]
    if HELM is not None:
        files.append(tmp_path / "all.yaml")
        files[-1].write_text(render(*EVERYTHING))
    for file in files:
        done = run(str(VALIDATE), "--strict", str(file))
        assert done.returncode == 0, done.stdout + done.stderr
