"""A daemon starts interpreters for the devices given to it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.service.conftest import StartDaemon
from tests.service.running_daemon import RunningDaemon


def test_interpreters_may_be_kept_from_gpus(start_daemon: StartDaemon):
    with start_daemon(workers="cpu:2").connect() as session:
        found = {each.name: each.devices for each in session.interpreters()}
    assert found == {"worker-1": ("cpu",), "worker-2": ("cpu",)}


def test_a_device_that_is_not_there_ends_the_start(tmp_path: Path):
    daemon = RunningDaemon(tmp_path, workers="cpu:1,cuda:99")
    daemon.expects_errors = True
    with pytest.raises(RuntimeError, match="did not start"):
        daemon.wait_until_ready()
    assert daemon.wait() == 1
    # It is looked for once.
    assert daemon.log().count("interpreter worker-2 exited with status") == 1
    why = "interpreter worker-2 cannot be started: there is no device cuda:99 here; there is cpu"
    assert why in daemon.log()
    daemon.clean_up()


def test_a_plan_that_is_none_is_wrong_usage(tmp_path: Path):
    daemon = RunningDaemon(tmp_path, workers="many")
    assert daemon.wait() == 2
    assert "neither a number of interpreters nor a list" in " ".join(daemon.log().split())
    daemon.clean_up()
