"""``examples/digits`` in a real interpreter: the loss curve of this process; and its page."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import opdispatch_client as oc
from tests.digits_example import FOLDER, LIBRARY, make_task, train
from tests.service.running_daemon import RunningDaemon
from tests.service.test_examples import blocks, run_command
from tests.service.test_readme import commands

SHARED_WORKERS = 1


def test_the_readme_shows_what_its_commands_print(
    shared_daemon: RunningDaemon, shared: oc.Session
) -> None:
    shown = [pair for block in blocks(FOLDER, "console") for pair in commands(block)]
    shown = [pair for pair in shown if pair[0].startswith(("opdispatch load", "opdispatch call"))]
    assert len(shown) == 2
    for command, output in shown:
        assert run_command(command, FOLDER, shared_daemon.address) == output


@pytest.fixture(scope="module")
def trainer(shared_daemon: RunningDaemon) -> Iterator[oc.Session]:
    """A session of a daemon, one of whose interpreters has both libraries."""
    with shared_daemon.connect() as session:
        place = session.load(LIBRARY).interpreters[0]
        session.load("opdispatch.array_library", on=place)
        yield session
        session.unload("digits")
        session.unload("array_library")


@pytest.mark.parametrize("way", train.WAYS)
def test_each_way_gives_the_losses_of_this_process(trainer: oc.Session, way: str) -> None:
    arrays, batches = make_task(4, 8)
    expected, _, parameters = train.train_here(arrays, batches)
    losses, _, there = train.train_there(trainer, arrays, batches, way)
    np.testing.assert_allclose(losses, expected, rtol=0, atol=1e-12)
    for ours, theirs in zip(there, parameters, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-12)


def test_the_script_prints_and_draws(
    shared_daemon: RunningDaemon,
    trainer: oc.Session,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    picture = tmp_path / "losses.png"
    options = ["--steps", "2", "--address", shared_daemon.address, "-o", str(picture)]
    monkeypatch.setattr("sys.argv", ["train.py", *options])
    train.main()
    lines = capsys.readouterr().out.splitlines()
    rows = [line.split() for line in lines if line.startswith(("in this process", "daemon"))]
    assert len(rows) == 1 + len(train.WAYS)
    assert {row[-3] for row in rows} == {"2.709462"}
    assert max(float(row[-1]) for row in rows) < 1e-12
    assert lines[-1] == f"wrote {picture}"
    assert picture.read_bytes().startswith(b"\x89PNG")
