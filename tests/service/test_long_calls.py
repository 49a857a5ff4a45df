"""Calls of many values: taken, or refused alone, whichever way they come."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

import opdispatch_client as oc
from opdispatch_wire.errors import WireError
from opdispatch_wire.nesting_limits import MAX_VALUES, ValueCount
from tests.service.running_daemon import RunningDaemon

SHARED_WORKERS = 1
LIBRARY = """
from opdispatch import Library

lib = Library("long", "DEF")
lib.define("numbers(Tensor x, int[] n, float[] f) -> (int[], float[])")
lib.impl("numbers", lambda x, n, f: (n, f), "CPU")
lib.define("texts(Tensor x, str[] t) -> int")
lib.impl("texts", lambda x, t: len(t), "CPU")
lib.define("length(Tensor x, str text) -> int")
lib.impl("length", lambda x, text: len(text), "CPU")
lib.define("total(Tensor[] x) -> Tensor")
lib.impl("total", lambda x: sum(x), "CPU")
"""
X = np.arange(3.0)


@pytest.fixture(params=["local", "stream", "grpc", "direct"])
def session(shared_daemon: RunningDaemon, request: pytest.FixtureRequest) -> Iterator[oc.Session]:
    path = shared_daemon.folder / "long.py"
    path.write_text(LIBRARY)
    way = request.param
    options = {} if way == "direct" else {"lane": way, "direct": False}
    with shared_daemon.connect(**options) as session:
        session.load(path)
        yield session


def test_long_lists_of_numbers_go_and_come(session: oc.Session):
    numbers, floats = list(range(100_000)), [0.5] * 300_000
    for _ in range(2):  # the second one may go directly
        assert session.ops.long.numbers(X, numbers, floats) == (numbers, floats)


def test_many_tensors_and_texts_go(session: oc.Session):
    for _ in range(2):
        np.testing.assert_array_equal(session.ops.long.total([X] * 5_000), 5_000 * X)
        assert session.ops.long.texts(X, ["a"] * 90_000) == 90_000


def test_a_text_may_be_as_long_as_a_message(session: oc.Session):
    for _ in range(2):
        assert session.ops.long.length(X, "a" * 20_000_000) == 20_000_000


def test_call_of_too_many_values_is_refused_alone(
    session: oc.Session, monkeypatch: pytest.MonkeyPatch
):
    too_many = (["a"] * (MAX_VALUES + 1), ["some text"] * 400_000)
    for texts in too_many:
        with pytest.raises(oc.ArgumentError, match=f"more than {MAX_VALUES} values"):
            session.ops.long.texts(X, texts)
    # The daemon refuses them as well when a client does not count what it sends.
    monkeypatch.setattr(ValueCount, "_left", 1_000_000)
    for texts in (*too_many, ["a" * 900] * 5_000):
        with pytest.raises(WireError, match=r"the limit is|more than"):
            session.ops.long.texts(X, texts)
    with pytest.raises(WireError, match="more than"):
        session.call("long::total", *[X] * 20_000)
    assert session.ops.long.texts(X, ["a"]) == 1
