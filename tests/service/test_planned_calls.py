"""Calls that follow a plan give what the general way gives, errors included."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import opdispatch
import opdispatch_client as oc
from opdispatch.errors import OpdispatchError
from opdispatch_client.lanes.call_plan import CallPlan
from tests.service.running_daemon import RunningDaemon

SHARED_WORKERS = WORKERS = 1
LIBRARY = """\
import os
import time

import numpy as np

import opdispatch
from opdispatch import Library, Tensor

lib = Library("planned", "DEF")
lib.define("same(Tensor x) -> Tensor")
lib.define("total(Tensor x, Tensor y) -> Tensor")
lib.define("large(Tensor x) -> Tensor")
lib.define("up_to(Tensor x) -> Tensor")
lib.define("as_bool(Tensor x) -> Tensor")
lib.define("pair(Tensor x) -> (Tensor, Tensor)")
lib.define("none(Tensor x) -> ()")
lib.define("number(Tensor x) -> int")
lib.define("write_(Tensor(a!) x) -> Tensor(a!)")
lib.define("positive(Tensor x) -> Tensor")
lib.define("recorded(Tensor x) -> Tensor")
lib.define("with_defaults(Tensor x, int n=2, *, float f=0.5, int[] sizes=[1, 2]) -> Tensor")
lib.define("with_constants(Tensor x, int n=2, bool b=True, str? s=None) -> Tensor")
lib.define("scalar(Tensor x) -> Tensor")
lib.define("scaled(Tensor x, int n, float f=0.5, *, bool b=False) -> Tensor")
lib.define("named(str s, Tensor x, int? n, Tensor y) -> Tensor")
lib.define("sized(Tensor x, int[2] size, Scalar s) -> Tensor")
lib.define("alternating(Tensor x) -> Tensor")
lib.define("die(Tensor x) -> Tensor")
lib.define("wait(Tensor x) -> Tensor")
lib.define("layered(Tensor x) -> Tensor")


def positive(x):
    if x.flat[0] < 0:
        raise ValueError(f"{x.flat[0]} is negative")
    return x + 1


def write_(x):
    x += 1
    return x


lib.impl("same", lambda x: x, "CPU")
lib.impl("total", lambda x, y: x.sum() + y.sum(), "CPU")
lib.impl("large", lambda x: np.full(100_000, x.flat[0]), "CPU")
lib.impl("up_to", lambda x: np.arange(int(x.flat[0])), "CPU")
lib.impl("as_bool", lambda x: x > 1, "CPU")
lib.impl("pair", lambda x: (x, x + 1), "CPU")
lib.impl("none", lambda x: None, "CPU")
lib.impl("number", lambda x: int(x.flat[0]), "CPU")
lib.impl("write_", write_, "CPU")
lib.impl("positive", positive, "CPU")
def die(x):
    if x.flat[0] < 0:
        os._exit(3)
    return x


def wait(x):
    if x.flat[0] < 0:
        time.sleep(3)  # longer than its caller waits
    return x


lib.impl("with_defaults", lambda x, n, *, f, sizes: x * n + f + sum(sizes), "CPU")
lib.impl("with_constants", lambda x, n, b, s: x * n + b + (s is None), "CPU")
lib.impl("scaled", lambda x, n, f, *, b: np.copysign(x * n, f) + b, "CPU")
lib.impl("named", lambda s, x, n, y: (x + y + len(s)) * (2 if n is None else n), "CPU")
lib.impl("sized", lambda x, size, s: x * size[0] + s, "CPU")
lib.impl("scalar", lambda x: x.sum(), "CPU")
lib.impl("alternating", lambda x: x if x.flat[0] % 2 else x.astype(np.float64), "CPU")
lib.impl("die", die, "CPU")
lib.impl("wait", wait, "CPU")
lib.impl("layered", lambda x: opdispatch.ops.planned.positive(x), "CompositeImplicitAutograd")
lib.impl("recorded", lambda x: Tensor(x, requires_grad=True), "CPU")
"""
OPERATORS = [
    "same",
    "large",
    "up_to",
    "as_bool",
    "pair",
    "none",
    "number",
    "write_",
    "positive",
    "recorded",
    "with_defaults",
    "with_constants",
    "scalar",
    "alternating",
    "layered",
]
ARRAYS = {
    "float32": np.arange(1, 5, dtype=np.float32),
    "no dimensions": np.array(3.0),
    "empty": np.zeros((0, 2)),
    "big-endian": np.arange(1, 5, dtype=">i4"),
    "bool": np.array([True, False]),
    "columns": np.arange(6.0).reshape(2, 3).T,
    "strides": np.arange(8)[::2],
    "read-only": np.frombuffer(bytes(range(1, 17)), np.int16),
}


def outcome(call: Callable[[], Any], array: np.ndarray[Any, Any]) -> Any:
    """Return a call's result or error, and its argument afterwards."""
    try:
        result = call()
    except OpdispatchError as error:
        result = type(error), error.message.partition("Traceback")[0]
    return describe(result), array.tolist(), result is array


def describe(result: Any) -> Any:
    """The type, elements and writability of a result."""
    if isinstance(result, tuple):
        return tuple(describe(each) for each in result)
    if isinstance(result, np.ndarray):
        return str(result.dtype), result.shape, result.tolist(), result.flags.writeable
    return type(result), str(result)


@pytest.fixture
def numbers(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The ids of the calls that follow a plan."""
    found: list[int] = []
    encode = CallPlan.encode

    def noting(self: CallPlan, args: Any, timeout: float | None, number: int) -> bytes:
        found.append(number)
        return encode(self, args, timeout, number)

    monkeypatch.setattr(CallPlan, "encode", noting)
    return found


@pytest.fixture
def planned(shared: oc.Session, numbers: list[int], tmp_path: Path) -> tuple[oc.Session, list[int]]:
    """A session with the library, and the ids of the calls that follow a plan."""
    library = tmp_path / "planned.py"
    library.write_text(LIBRARY)
    shared.load(library)
    return shared, numbers


@pytest.mark.parametrize("array", ARRAYS.values(), ids=ARRAYS)
def test_planned_calls_give_what_others_give(
    planned: tuple[oc.Session, list[int]], array: np.ndarray[Any, Any]
):
    session, _ = planned
    general = session.with_options(retry=True)
    for operator in OPERATORS:
        name = f"planned::{operator}"
        for step in (0, 1, 2, -9, 3):
            x, y = array.copy() + array.dtype.type(step), array.copy() + array.dtype.type(step)
            mine = outcome(lambda x=x, name=name: session.call(name, x), x)  # type: ignore[misc]
            z = array.copy() + array.dtype.type(step)
            late = outcome(lambda z=z, name=name: session.submit(name, z).result(), z)  # type: ignore[misc]
            assert mine == late, (name, step)
            other = outcome(lambda y=y, name=name: general.call(name, y), y)  # type: ignore[misc]
            assert mine == other, (name, step)


def test_calls_follow_a_plan_once_one_has_gone_directly(planned: tuple[oc.Session, list[int]]):
    session, numbers = planned
    x, y = np.ones(4, np.float32), np.ones((2, 2))
    for _ in range(10):  # the first ones ask for the route, and leave the plan
        assert session.call("planned::total", x, y) == 8
    assert numbers
    numbers.clear()
    assert session.call("planned::total", x, y) == 8
    assert len(numbers) == 1
    session.call("planned::total", x, np.ones((4, 1)))
    session.call("planned::total", x, y=y)
    session.with_options(timeout=10).call("planned::total", x, y)
    with opdispatch.no_grad():
        session.call("planned::total", x, y)
    assert len(numbers) == 1
    session.ops.planned.total(x, y)
    assert len(numbers) == 2


@pytest.mark.parametrize(
    ("operator", "args"),
    [
        ("scaled", (np.ones(4), 3)),
        ("scaled", (np.ones(4), 3, 0.0)),
        ("scaled", (np.ones(4), 3, -0.0)),
        ("scaled", (np.ones(4), 3, 2)),
        ("scaled", (np.ones(4), True)),
        ("scaled", (np.ones(4), 1.5)),
        ("scaled", (np.ones(4), 3, float("nan"))),
        ("named", ("text", np.ones(4), None, np.ones(4))),
        ("named", ("longer", np.ones(4), 7, np.ones(4))),
        ("named", ("longer", np.ones(4), 2**70, np.ones(4))),
        ("sized", (np.ones(4), 2, 1.0)),
        ("sized", (np.ones(4), 2, 1)),
        ("sized", (np.ones(4), 2, True)),
    ],
)
def test_constants_of_planned_calls_are_those_of_others(
    planned: tuple[oc.Session, list[int]], operator: str, args: tuple[Any, ...]
):
    session, _ = planned
    general = session.with_options(retry=True)
    for _ in range(5):
        mine = outcome(lambda: session.call(f"planned::{operator}", *args), np.ones(1))
        other = outcome(lambda: general.call(f"planned::{operator}", *args), np.ones(1))
        assert str(mine) == str(other)  # no number equals none


def test_a_call_with_constants_is_planned_when_it_comes_again(
    planned: tuple[oc.Session, list[int]],
):
    session, numbers = planned
    x = np.ones(4)
    for n in range(20):
        assert session.call("planned::scaled", x, n).tolist() == [float(n)] * 4
    assert not numbers
    for _ in range(3):
        session.call("planned::scaled", x, 7)
    assert numbers


def test_submitted_calls_follow_a_plan_and_make_one(planned: tuple[oc.Session, list[int]]):
    session, numbers = planned
    x, y = np.ones(4, np.float32), np.ones((2, 2))
    for _ in range(10):
        assert session.submit("planned::total", x, y).result() == 8
    assert numbers
    before = len(numbers)
    futures = [session.submit("planned::total", x, y) for _ in range(20)]
    x[:] = 7.0  # what was submitted is what was there then
    assert [future.result() for future in futures] == [8.0] * 20
    assert list(session.map("planned::total", [(x, y)] * 20)) == [32.0] * 20
    assert len(numbers) == before + 40
    session.submit("planned::total", x, y, timeout=10).result()
    assert len(numbers) == before + 40


def test_errors_of_planned_calls_are_those_of_their_futures(planned: tuple[oc.Session, list[int]]):
    session, numbers = planned
    arrays = [np.full(4, value) for value in (1.0, -1.0, 2.0)]
    for _ in range(4):
        session.call("planned::positive", arrays[0])
    before = len(numbers)
    futures = [session.submit("planned::positive", array) for array in arrays]
    assert futures[0].result().tolist() == [2.0] * 4
    with pytest.raises(oc.KernelError, match="negative"):
        futures[1].result()
    assert futures[2].result().tolist() == [3.0] * 4
    assert len(numbers) == before + 3


def test_planned_calls_under_way_run_one_version_or_the_next(
    planned: tuple[oc.Session, list[int]], tmp_path: Path
):
    session, numbers = planned
    x = np.ones(4)
    for _ in range(4):
        session.call("planned::positive", x)
    (tmp_path / "planned.py").write_text(LIBRARY.replace("return x + 1", "return x + 2"))
    futures = [session.submit("planned::positive", x) for _ in range(200)]
    session.load(tmp_path / "planned.py")
    futures += [session.submit("planned::positive", x) for _ in range(50)]
    results = [float(future.result()[0]) for future in futures]
    assert set(results[:200]) <= {2.0, 3.0}
    assert results[200:] == [3.0] * 50
    assert numbers


def test_a_planned_call_that_waits_can_be_cancelled(
    planned: tuple[oc.Session, list[int]], tmp_path: Path
):
    session, _ = planned
    for _ in range(5):
        session.call("planned::wait", np.ones(4))
    slow = session.submit("planned::wait", -np.ones(4))
    futures = [session.submit("planned::wait", np.ones(4)) for _ in range(5)]
    assert all(future.cancel() for future in futures)
    slow.cancel()
    assert session.call("planned::same", np.ones(4)).tolist() == [1.0] * 4


def test_a_planned_call_runs_the_new_version(planned: tuple[oc.Session, list[int]], tmp_path: Path):
    session, numbers = planned
    x = np.ones(4)
    for _ in range(4):
        assert session.call("planned::positive", x).tolist() == [2.0] * 4
    assert numbers
    (tmp_path / "planned.py").write_text(LIBRARY.replace("return x + 1", "return x + 2"))
    session.load(tmp_path / "planned.py")
    assert session.call("planned::positive", x).tolist() == [3.0] * 4


def test_a_planned_call_that_ends_its_interpreter_is_blamed(
    daemon: RunningDaemon, numbers: list[int], tmp_path: Path
):
    (tmp_path / "planned.py").write_text(LIBRARY)
    daemon.expects_errors = True
    with daemon.connect(retry=False) as session:
        session.load(tmp_path / "planned.py")
        for _ in range(5):
            assert session.call("planned::die", np.ones(4)).tolist() == [1.0] * 4
        assert numbers
        before = len(numbers)
        with pytest.raises(oc.InterpreterDiedError, match="planned::die"):
            session.call("planned::die", -np.ones(4))
        assert len(numbers) == before + 1


def test_a_planned_call_keeps_its_deadline(planned: tuple[oc.Session, list[int]]):
    session, numbers = planned
    with oc.connect(session.address, timeout=1.0) as patient:
        for _ in range(5):
            assert patient.call("planned::wait", np.ones(4)).tolist() == [1.0] * 4
        before = len(numbers)
        with pytest.raises(oc.DeadlineExceededError):
            patient.call("planned::wait", -np.ones(4))
        assert len(numbers) == before + 1


def test_planned_calls_of_many_threads_get_their_own_results(
    planned: tuple[oc.Session, list[int]],
):
    session, numbers = planned

    def run(place: int) -> list[float]:
        x = np.full(4, place, np.float32)
        y = np.full((2, 2), place)
        return [float(session.call("planned::total", x, y)) for _ in range(50)]

    with ThreadPoolExecutor(8) as pool:
        for place, totals in enumerate(pool.map(run, range(8))):
            assert totals == [8.0 * place] * 50
    assert numbers
