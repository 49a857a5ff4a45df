"""``examples/language_model`` in a real interpreter: as calls, as a program, and as its script."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import opdispatch.array_library  # noqa: F401
import opdispatch_client as oc
from opdispatch import ops
from tests.language_model import FOLDER, LIBRARY, transformer
from tests.service.command_line import run_cli
from tests.service.running_daemon import RunningDaemon
from tests.service.test_readme import commands

WORKERS = 1
CONFIG = transformer.Config(num_hidden_layers=2, hidden_size=64, intermediate_size=96)
WEIGHTS = transformer.make_weights(CONFIG)
TOKENS = transformer.encode("kernels")


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningDaemon]:
    """A daemon with one interpreter, which holds the library."""
    daemon = RunningDaemon(tmp_path_factory.mktemp("lm"), workers=1)
    try:
        daemon.wait_until_ready()
        with daemon.connect() as session:
            session.load(LIBRARY)
            session.load("opdispatch.array_library")
        yield daemon
    finally:
        daemon.clean_up()


def compute(ops: Any, weights: Any, caches: Any, tokens: Any, positions: Any) -> Any:
    hidden = transformer.compute_hidden(ops, CONFIG, weights, caches, tokens, positions)
    return ops.lm.linear(hidden, weights["lm_head.weight"])


def put_all(session: oc.Session) -> tuple[dict[str, oc.RemoteTensor], list[Any]]:
    """The weights and empty caches, in the interpreter."""
    weights = {name: session.put(array) for name, array in WEIGHTS.items()}
    caches = transformer.make_caches(CONFIG)
    return weights, [tuple(session.put(cache) for cache in layer) for layer in caches]


def in_this_process() -> Any:
    caches = transformer.make_caches(CONFIG)
    return compute(ops, WEIGHTS, caches, TOKENS, np.arange(len(TOKENS)))


def test_a_program_for_each_token_gives_what_this_process_gives_for_all(
    session: oc.Session,
) -> None:
    weights, caches = put_all(session)
    traced = 0

    @session.as_program
    def step(tokens: Any, positions: Any) -> Any:
        nonlocal traced
        traced += 1
        return compute(session.ops, weights, caches, tokens, positions)

    rows = [step(TOKENS[i : i + 1], np.array([i])) for i in range(len(TOKENS))]
    np.testing.assert_allclose(np.concatenate(rows), in_this_process(), atol=1e-5)
    assert traced == 1


def test_calls_one_by_one_leave_what_they_make_in_the_interpreter(session: oc.Session) -> None:
    calls = session.with_options(remote=True)
    logits = compute(calls.ops, *put_all(session), TOKENS, np.arange(len(TOKENS)))
    assert isinstance(logits, oc.RemoteTensor)
    np.testing.assert_allclose(logits.numpy(), in_this_process(), atol=1e-5)


def test_a_cache_that_is_full_says_so_and_names_the_step(session: oc.Session) -> None:
    weights, caches = put_all(session)
    step = session.as_program(
        lambda tokens, positions: compute(session.ops, weights, caches, tokens, positions)
    )
    with pytest.raises(oc.OpdispatchError, match=r"below the capacity 256 .* got 256") as caught:
        step(TOKENS[:1], np.array([256]))
    assert caught.value.facts["operator"] == "lm::sdpa_with_kv_cache"


def test_shapes_that_do_not_fit_come_back_as_an_error_with_both(session: oc.Session) -> None:
    with pytest.raises(oc.OpdispatchError, match=r"x \[2, 3\] and weight \[2\]"):
        session.ops.lm.rms_norm(np.ones((2, 3)), np.ones(2))


def test_the_script_decodes_its_text(daemon: RunningDaemon, tmp_path: Path) -> None:
    command = [sys.executable, "run.py", "--address", daemon.address, "--tokens", "5"]
    done = subprocess.run(
        [*command, "--json", str(tmp_path / "latency.json")],
        cwd=FOLDER,
        env={**os.environ, "COLUMNS": "120"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[:2] == [
        "The quick bro",
        "47 weights and caches, 12,067,840 bytes, stay in worker-1",
    ]
    assert (tmp_path / "latency.json").exists()


def test_the_page_shows_what_calls_print(daemon: RunningDaemon) -> None:
    blocks = re.findall(r"```console\n(.*?)```", (FOLDER / "README.md").read_text(), re.DOTALL)
    shown = [pair for block in blocks for pair in commands(block) if "dispatch call" in pair[0]]
    assert len(shown) == 3
    for command, output in shown:
        _, *arguments = shlex.split(command)
        done = run_cli(*arguments, OPDISPATCH_ADDRESS=daemon.address)
        assert (done.stdout, done.stderr) == (output, "")
