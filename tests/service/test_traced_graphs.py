"""Traced graphs and the service: as programs, of remote tensors, and traced in an interpreter."""

from __future__ import annotations

import asyncio
import io
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import opdispatch_client as oc
from opdispatch import (
    Dispatcher,
    GraphError,
    OperatorNotFoundError,
    Tensor,
    Tracer,
    TracerWarning,
    load_graph,
    save_graph,
    trace,
)
from opdispatch import array_api as xp
from opdispatch.local_state.local_dispatch_key_set import local_dispatch_key_set_is_default
from opdispatch_client import aio
from tests.service.running_daemon import RunningDaemon
from tests.service.test_readme import promised_output

SHARED_WORKERS = 1
PAGE = Path(__file__).resolve().parents[2] / "docs" / "tracing.md"

X, W = np.arange(6.0).reshape(2, 3), np.ones((3, 2)) / 4
BIAS = Tensor(X + 1)

LIBRARY = """\
import io

from opdispatch import Library, Tensor, array_api as xp, load_graph, ops, save_graph, trace

lib = Library("tracing", "DEF")
lib.define("slope(Tensor x, float by) -> Tensor")
lib.define("text(Tensor x) -> str")
lib.define("traced(Tensor x, Tensor y) -> (Tensor, str)")


def text(x):
    return str(trace(lambda x: xp.exp(ops.tracing.slope(x, 2.0)) + 1, x))


def traced(x, y):
    file = io.BytesIO()
    save_graph(trace(lambda x, w: xp.sin(x) @ w, x, y), file)
    file.seek(0)
    graph = load_graph(file)
    return graph(x + 1, y), graph.code


lib.impl("slope", lambda x, by: x * by, "CPU")
lib.impl("text", text, "CPU")
lib.impl("traced", traced, "CPU")
"""


@pytest.fixture(scope="module")
def session(shared_daemon: RunningDaemon) -> Iterator[oc.Session]:
    path = shared_daemon.folder / "tracing.py"
    path.write_text(LIBRARY)
    with shared_daemon.connect() as session:
        session.load("opdispatch.array_library")
        session.load(path)
        yield session


def layer(x, w, *, scale=2.0):
    """Products, several returns, a list, a write through a view, and a constant."""
    q, r = xp.linalg.qr(xp.exp(x @ w / 4))
    rows = xp.unstack(q)
    total = rows[0] + rows[1] * scale
    r[0] = total
    return {"r": r, "more": (xp.sum(r @ BIAS, axis=0), 3)}


def test_a_graph_runs_as_one_message(session: oc.Session):
    graph = trace(layer, X, W)
    program = session.as_program(graph)
    before = sum(each.calls_total for each in session.interpreters())
    for x in (X, X + 0.5, X[:, ::-1]):
        found, expected = program(x, W), graph(x, W)
        np.testing.assert_allclose(found["r"], expected["r"])
        np.testing.assert_allclose(found["more"][0], expected["more"][0])
        assert found["more"][1] == 3
    assert sum(each.calls_total for each in session.interpreters()) == before + 3
    with pytest.raises(oc.ArgumentError, match="missing a required argument: 'w'"):
        program(X)


def test_a_graph_from_a_file_runs_and_keeps_its_results_there(session: oc.Session, tmp_path):
    save_graph(trace(layer, X, W), tmp_path / "layer.graph")
    program = session.as_program(load_graph(tmp_path / "layer.graph"), remote=True)
    x = session.put(X)
    found = program(x, w=session.put(W))
    assert isinstance(found["r"], oc.RemoteTensor)
    np.testing.assert_allclose(found["r"].numpy(), layer(Tensor(X), Tensor(W))["r"])


def test_a_graph_writes_to_a_remote_tensor(session: oc.Session):
    def step(w, x):
        row = w[0]
        row += x
        w *= 2.0

    graph = trace(step, X.copy(), X[0].copy())
    w = session.put(X)
    assert session.as_program(graph)(w, X[0]) is None
    expected = Tensor(X.copy())
    step(expected, Tensor(X[0]))
    np.testing.assert_array_equal(w.numpy(), expected)


def test_trace_records_calls_with_remote_tensors(session: oc.Session):
    x, w = session.put(X), session.put(W)
    graph = trace(lambda x, w: xp.exp(x @ w)[0] + 1, x, w)
    assert str(graph).splitlines()[1] == "  %matmul : float64[2, 2] = array::matmul(%x, %w)"
    expected = np.exp(X @ W)[0] + 1
    for run in (graph, session.as_program(graph), trace(lambda x, w: graph(x, w), X, W)):
        for given in ((X, W), (x, w)):
            np.testing.assert_allclose(np.asarray(run(*given)), expected)
    captured = trace(lambda x: xp.exp(x @ w)[0] + 1, x)
    assert captured.constants[0].tensor is w
    np.testing.assert_allclose(session.as_program(captured)(X), expected)
    with pytest.raises(GraphError, match=r"constant .* cannot be kept in a file"):
        save_graph(captured, io.BytesIO())
    with pytest.warns(TracerWarning, match="float"):
        trace(lambda x: x * float(xp.sum(x)), x)
    with pytest.warns(TracerWarning, match="the elements of a remote tensor"):
        trace(lambda x: x + Tensor(x.numpy()), x)


def test_calls_of_a_session_are_recorded_of_operators_that_are_unknown_here(session: oc.Session):
    def function(x):
        steep = session.ops.tracing.slope(x, 2.0)
        with pytest.raises(oc.ArgumentError):
            session.call("tracing::slope", x)
        return xp.sum(session.call("tracing::slope", steep, by=0.5))

    graph = trace(function, X)
    assert [node.operator for node in graph.nodes] == [
        *("tracing::slope", "tracing::slope", "array::sum")
    ]
    assert graph.nodes[0].schema is None
    assert session.as_program(graph)(X + 1) == np.sum(X + 1)
    assert graph.run(session.call, (X + 2,), {}) == np.sum(X + 2)
    with pytest.raises(OperatorNotFoundError, match="tracing::slope"):
        graph.on(Dispatcher())(X)


def test_calls_that_are_awaited_are_recorded(shared_daemon: RunningDaemon, session: oc.Session):
    async def run() -> Any:
        async with aio.connect(shared_daemon.address) as other:
            w, kept = Tensor(W), await other.put(X)
            with Tracer(x=(x := Tensor(X))) as tracer:
                never = other.call("tracing::slope", x, 9.0)
                steep, other_way = await asyncio.gather(
                    other.call("tracing::slope", x, 2.0), other.ops.tracing.slope(x, by=0.5)
                )
                with pytest.raises(oc.ArgumentError):
                    await other.call("tracing::slope", x)
                there = await other.call("tracing::slope", steep, 1.0)
                for remote in (False, True):
                    with pytest.raises(oc.ArgumentError, match="of an asyncio session"):
                        other.call("tracing::slope", x if remote else kept, 1.0, remote=remote)
                text = await other.ops.tracing.text(x)  # calls within are not recorded
                tracer.output(xp.sum(Tensor(other_way) @ w), there)
            never.close()
            assert "exp" in text
            assert local_dispatch_key_set_is_default()
            await other.call("tracing::slope", x, 2.0)
            return tracer.graph

    graph = asyncio.run(run())
    names = [node.operator for node in graph.nodes]
    assert sorted(names[:2]) == ["tracing::slope"] * 2
    assert names[2:4] == ["tracing::slope", "tracing::text"]
    assert "array::matmul" in names[4:]
    total, there = graph.run(session.call, (X + 1,), {})
    np.testing.assert_allclose(total, np.sum((X + 1) * 0.5 @ W))
    np.testing.assert_allclose(there, (X + 1) * 2)


def test_calls_that_are_submitted_are_constants(session: oc.Session):
    def function(x):
        return xp.sum(Tensor(session.submit("tracing::slope", x, 2.0).result()))

    with pytest.warns(TracerWarning, match="tracing::slope is not recorded") as caught:
        graph = trace(function, X)
    assert caught[0].filename == __file__
    assert [node.operator for node in graph.nodes] == ["array::sum"]
    with Tracer(x=X):  # of other tensors, there are no warnings
        assert session.submit("tracing::slope", W, 2.0).result().shape == W.shape


def test_a_kernel_traces_in_its_interpreter(session: oc.Session):
    assert session.ops.tracing.text(X).splitlines()[1:3] == [
        "  %slope : float64[2, 3] = tracing::slope(%x, 2.0)",
        "  %exp : float64[2, 3] = array::exp(%slope)",
    ]
    result, code = session.ops.tracing.traced(X, W)
    np.testing.assert_allclose(result, np.sin(X + 1) @ W)
    assert "matmul = ops.array.matmul.default(sin, w)" in code


def test_a_trace_does_not_travel(session: oc.Session):
    with Tracer(x=X) as tracer:
        text = session.ops.tracing.text(X)
        tracer.output(session.ops.tracing.slope(X, 2.0))
    assert "exp" in text
    assert [node.operator for node in tracer.graph.nodes] == ["tracing::text", "tracing::slope"]


def test_the_page_about_traces_prints_what_it_says(
    session: oc.Session,
    shared_daemon: RunningDaemon,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
):
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    [service] = [block for block in blocks if "oc.connect()" in block]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OPDISPATCH_ADDRESS", shared_daemon.address)
    scope: dict[str, Any] = {}
    for block in (*blocks[:2], service):
        capsys.readouterr()
        exec(compile(block, "docs/tracing.md", "exec"), scope)
    scope["session"].close()
    assert capsys.readouterr().out.splitlines() == promised_output(service) != []


def test_an_asyncio_session_takes_graphs_too(session: oc.Session, shared_daemon: RunningDaemon):
    graph = trace(layer, X, W)

    async def run() -> dict[str, np.ndarray]:
        async with aio.connect(shared_daemon.address) as other:
            return await other.as_program(graph)(X, W)

    np.testing.assert_allclose(asyncio.run(run())["r"], graph(X, W)["r"])
