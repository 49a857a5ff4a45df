"""Calls that follow a plan give what the general way gives, errors included."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import opdispatch
import opdispatch_client as oc
from opdispatch import Tensor
from opdispatch.errors import OpdispatchError
from opdispatch_wire.planned_calls import LONGEST
from opdispatch_wire.shared_memory.call_memory import THRESHOLD
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
lib.define("keyword(Tensor x, *, Tensor? y=None, float scale=1.0) -> Tensor")
lib.define("optional(Tensor x, Tensor? y, int? n=None) -> Tensor")
lib.define("joined(Tensor[] parts, int axis=0) -> Tensor")
lib.define("named_pair(Tensor x) -> (Tensor least, Tensor greatest)")
lib.define("facts(Tensor x) -> (Tensor, int, float, bool, str)")
lib.define("parts(Tensor x) -> Tensor[]")
lib.define("shape_of(Tensor x) -> int[]")
lib.define("cast(Tensor x, ScalarType dtype) -> Tensor")
lib.define("at(Tensor x, Device device) -> str")
lib.define("maybe(Tensor x) -> Tensor?")
lib.define("sum_of(int[] numbers, Scalar s) -> Scalar")
lib.define("texts(str s, str[] others) -> str[]")
lib.define("not_(bool b) -> bool")
lib.define("half(float f) -> float")
lib.define("sorted_(int[] numbers=[3, 1, 2]) -> int[]")


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
def optional(x, y, n):
    return (x if y is None else x + y) * (1 if n is None else n)


def sorted_(numbers):
    numbers.sort()  # its own list, in each call
    return numbers


lib.impl("keyword", lambda x, *, y, scale: x * scale + (0 if y is None else y), "CPU")
lib.impl("optional", optional, "CPU")
lib.impl("joined", lambda parts, axis: np.concatenate([np.asarray(p) for p in parts], axis), "CPU")
lib.impl("named_pair", lambda x: (x.min(), x.max()), "CPU")
lib.impl("facts", lambda x: (x, int(x[0]), float(x[0]), bool(x[0] > 1), str(x[0])[0]), "CPU")
lib.impl("parts", lambda x: [x + i for i in range(3)], "CPU")
lib.impl("shape_of", lambda x: list(x.shape), "CPU")
lib.impl("cast", lambda x, dtype: x.astype(dtype), "CPU")
lib.impl("at", lambda x, device: device, "CPU")
lib.impl("maybe", lambda x: None if x[0] < 0 else x, "CPU")
for name, kernel in {
    "sum_of": lambda numbers, s: sum(numbers) + s,
    "texts": lambda s, others: [s, *others],
    "not_": lambda b: not b,
    "half": lambda f: f / 2,
    "sorted_": sorted_,
}.items():
    lib.impl(name, kernel, "CompositeExplicitAutograd")
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
    if isinstance(result, list | tuple):
        return type(result), getattr(result, "_fields", ()), [describe(each) for each in result]
    if isinstance(result, Tensor):
        return Tensor, result.key_bits, result.requires_grad, describe(result.array)
    if isinstance(result, np.ndarray):
        return str(result.dtype), result.shape, result.tolist(), result.flags.writeable
    return type(result), str(result)


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


ONES, TWOS = np.ones(4), np.full(4, 2.0)
X, Y = Tensor(np.arange(4.0)), Tensor(np.arange(4.0)[::-1])
Call = tuple[tuple[Any, ...], dict[str, Any]]
# Calls that one plan covers each.
KINDS: dict[str, tuple[str, list[Call]]] = {
    "array": ("same", [((ONES,), {}), ((TWOS,), {})]),
    "keyword": ("keyword", [((ONES,), {"scale": 2.0}), ((TWOS,), {"scale": -0.0})]),
    "array by name": ("keyword", [((), {"x": ONES, "y": TWOS}), ((), {"x": TWOS, "y": ONES})]),
    "bool array": ("same", [((np.array([True, False]),), {}), ((np.array([False, False]),), {})]),
    "bytes as bools": ("as_bool", [((np.array([0, 2], np.uint8).view(bool),), {})]),
    "big-endian": ("same", [((np.arange(3, dtype=">i4"),), {}), ((np.ones(3, ">i4"),), {})]),
    "bfloat16": ("same", [((np.arange(3, dtype=ml_dtypes.bfloat16),), {})]),
    "complex array": ("same", [((np.array([1j, 2]),), {}), ((np.array([3, -1j]),), {})]),
    "empty": ("same", [((np.zeros((0, 2)),), {})]),
    "NumPy scalar": ("scaled", [((ONES, np.int64(3)), {}), ((ONES, np.int64(-4)), {})]),
    "Tensor": ("total", [((X, Y), {}), ((Y, Y), {})]),
    "Tensor and array": ("same", [((X,), {}), ((Y,), {})]),
    "int": ("scaled", [((ONES, 3), {}), ((ONES, -(2**63)), {}), ((ONES, 2**63 - 1), {})]),
    "int for a float": ("scaled", [((ONES, 3, 1), {}), ((ONES, 3, -1), {})]),
    "float": ("scaled", [((ONES, 3, 0.0), {}), ((ONES, 3, -0.0), {}), ((ONES, 1, np.nan), {})]),
    "bool": ("scaled", [((ONES, 3), {"b": True}), ((ONES, 4), {"b": False})]),
    "only numbers": ("half", [((1.0,), {}), ((3.5,), {}), ((float("inf"),), {})]),
    "only a bool": ("not_", [((True,), {}), ((False,), {})]),
    "text": ("named", [(("ab", ONES, None, TWOS), {}), (("cd", TWOS, None, TWOS), {})]),
    "None": ("optional", [((ONES, None, None), {}), ((TWOS, None, None), {})]),
    "optional, given": ("optional", [((ONES, TWOS, 3), {}), ((ONES, ONES, -3), {})]),
    "optional, left out": ("optional", [((ONES, TWOS), {}), ((ONES, ONES), {})]),
    "list of arrays": ("joined", [(([ONES, TWOS],), {}), (((TWOS, ONES),), {})]),
    "list of Tensors": ("joined", [(([X, Y],), {"axis": 0}), (([Y, Y],), {"axis": -1})]),
    "list of ints": ("sum_of", [(([1, 2], 3), {}), (([1, -2], 4), {}), (([2, 2], 2), {})]),
    "list of texts": ("texts", [(("ab", ["c", "de"]), {}), (("xy", ["z", "äh"[1:] + "h"]), {})]),
    "no list": ("sorted_", [((), {}), ((), {})]),
    "list that is written to": ("sorted_", [(([2, 1],), {}), (([5, -1],), {})]),
    "size": ("sized", [((ONES, 2, 1.0), {}), ((ONES, 3, 2.0), {})]),
    "dtype": ("cast", [((ONES, np.float32), {}), ((TWOS, np.float32), {})]),
    "dtype by name": ("cast", [((ONES,), {"dtype": np.dtype("int8")})]),
    "device": ("at", [((ONES, "cpu"), {}), ((TWOS, "cpu"), {})]),
    "pair": ("pair", [((ONES,), {}), ((TWOS,), {})]),
    "results by name": ("named_pair", [((ONES,), {}), ((X.array,), {})]),
    "results of many kinds": ("facts", [((ONES,), {}), ((TWOS,), {}), ((-ONES * 7,), {})]),
    "list of results": ("parts", [((ONES,), {}), ((TWOS,), {})]),
    "list of numbers": ("shape_of", [((ONES,), {}), ((TWOS,), {})]),
    "no result": ("none", [((ONES,), {}), ((TWOS,), {})]),
    "None or a result": ("maybe", [((ONES,), {}), ((-ONES,), {})]),
    "number": ("number", [((ONES,), {}), ((-ONES * 1e9,), {}), ((ONES * 2**62,), {})]),
}


@pytest.mark.parametrize(("operator", "calls"), KINDS.values(), ids=KINDS)
def test_every_kind_of_call_is_planned_and_gives_what_the_general_way_gives(
    planned: tuple[oc.Session, list[int]], operator: str, calls: list[Call]
):
    session, numbers = planned
    name = f"planned::{operator}"
    general = session.with_options(retry=True)
    before = 0
    for _ in range(5):
        before = len(numbers)
        for args, kwargs in calls:
            mine = outcome(lambda: session.call(name, *args, **kwargs), ONES)  # noqa: B023
            late = outcome(lambda: session.submit(name, *args, **kwargs).result(), ONES)  # noqa: B023
            other = outcome(lambda: general.call(name, *args, **kwargs), ONES)  # noqa: B023
            assert str(mine) == str(late) == str(other)  # no number equals none
    assert len(numbers) == before + 2 * len(calls)


def test_arguments_that_are_converted_by_value_are_looked_at_in_every_call(
    planned: tuple[oc.Session, list[int]],
):
    session, numbers = planned
    general = session.with_options(retry=True)
    for _ in range(5):
        assert session.call("planned::at", ONES, "cpu") == "cpu"
    before = len(numbers)
    for device in ("cup", "!!!"):
        with pytest.raises(OpdispatchError) as mine:
            session.call("planned::at", ONES, device)
        with pytest.raises(OpdispatchError) as other:
            general.call("planned::at", ONES, device)
        assert type(mine.value) is type(other.value)
        assert mine.value.message == other.value.message
    assert len(numbers) == before + 2


@pytest.mark.parametrize(
    ("operator", "args"),
    [
        ("same", (Tensor(np.ones(4), requires_grad=True),)),
        ("scaled", (ONES, 2**70)),
        ("sum_of", ([1] * 17, 1j)),
        ("sum_of", ([1], 1j)),
    ],
)
def test_other_calls_take_the_general_way(
    planned: tuple[oc.Session, list[int]], operator: str, args: tuple[Any, ...]
):
    session, numbers = planned
    general = session.with_options(retry=True)
    for _ in range(5):
        mine = outcome(lambda: session.call(f"planned::{operator}", *args), ONES)
        other = outcome(lambda: general.call(f"planned::{operator}", *args), ONES)
        assert mine == other
    assert not numbers


def test_calls_that_are_all_of_other_shapes_leave_no_plans(planned: tuple[oc.Session, list[int]]):
    session, numbers = planned
    for size in range(1, 20):
        assert session.call("planned::same", np.ones(size)).tolist() == [1.0] * size
    assert not numbers
    for _ in range(3):
        session.call("planned::same", np.ones(7))
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


# -- asyncio --------------------------------------------------------------------------------------


def run(session: oc.Session, calls: Callable[[oc.aio.AsyncSession], Any], **settings: Any) -> Any:
    """Run a coroutine with an asyncio session of the same daemon."""

    async def main() -> Any:
        async with oc.aio.connect(session.address, **settings) as there:
            return await calls(there)

    return asyncio.run(main())


async def awaited_outcome(call: Any) -> Any:
    """As ``outcome``, of a coroutine."""
    try:
        result = await call
    except OpdispatchError as error:
        result = type(error), error.message.partition("Traceback")[0]
    return describe(result), ONES.tolist(), False


def test_every_kind_of_call_is_planned_in_an_asyncio_session(
    planned: tuple[oc.Session, list[int]],
):
    session, numbers = planned
    general = session.with_options(retry=True)

    async def calls(there: oc.aio.AsyncSession) -> None:
        for kind, (operator, kinds) in KINDS.items():
            name = f"planned::{operator}"
            for _ in range(5):
                before = len(numbers)
                for args, kwargs in kinds:
                    mine = await awaited_outcome(there.call(name, *args, **kwargs))
                    other = outcome(lambda: general.call(name, *args, **kwargs), ONES)  # noqa: B023
                    assert str(mine) == str(other), kind
            assert len(numbers) == before + len(kinds), kind

    run(session, calls)


def test_awaited_calls_in_flight_get_their_own_results_and_errors(
    planned: tuple[oc.Session, list[int]],
):
    session, numbers = planned
    arrays = [np.full(4, value) for value in (1.0, -1.0, 2.0, 3.0)]

    async def calls(there: oc.aio.AsyncSession) -> None:
        for _ in range(4):
            await there.call("planned::positive", arrays[0])
        before = len(numbers)
        found = await asyncio.gather(
            *(there.call("planned::positive", array) for array in arrays * 20),
            return_exceptions=True,
        )
        for array, result in zip(arrays * 20, found, strict=True):
            if array[0] < 0:
                assert isinstance(result, oc.KernelError)
            else:
                assert result.tolist() == (array + 1).tolist()
        assert len(numbers) == before + 80
        results = [each async for each in there.map("planned::same", [(a,) for a in arrays] * 5)]
        assert [each.tolist() for each in results] == [a.tolist() for a in arrays] * 5

    run(session, calls)


def test_an_awaited_planned_call_keeps_its_deadline_and_can_be_cancelled(
    planned: tuple[oc.Session, list[int]],
):
    session, numbers = planned

    async def calls(there: oc.aio.AsyncSession) -> None:
        for _ in range(5):
            await there.call("planned::wait", ONES)
        before = len(numbers)
        slow = asyncio.create_task(there.call("planned::wait", -ONES))
        waiting = [asyncio.create_task(there.call("planned::wait", ONES)) for _ in range(3)]
        await asyncio.sleep(0)
        for task in waiting:
            task.cancel()
        found = await asyncio.gather(*waiting, return_exceptions=True)
        assert all(isinstance(each, asyncio.CancelledError) for each in found)
        with pytest.raises(oc.DeadlineExceededError):
            await slow
        assert len(numbers) == before + 4

    run(session, calls, timeout=1.0)
    assert session.call("planned::same", ONES).tolist() == ONES.tolist()


def test_an_awaited_planned_call_runs_the_new_version(
    planned: tuple[oc.Session, list[int]], tmp_path: Path
):
    session, numbers = planned

    async def calls(there: oc.aio.AsyncSession) -> None:
        for _ in range(4):
            assert (await there.call("planned::positive", ONES)).tolist() == [2.0] * 4
        assert numbers
        (tmp_path / "planned.py").write_text(LIBRARY.replace("return x + 1", "return x + 2"))
        await there.load(tmp_path / "planned.py")
        for _ in range(4):
            assert (await there.call("planned::positive", ONES)).tolist() == [3.0] * 4

    run(session, calls)


def test_an_awaited_planned_call_that_ends_its_interpreter_is_blamed(
    daemon: RunningDaemon, numbers: list[int], tmp_path: Path
):
    (tmp_path / "planned.py").write_text(LIBRARY)
    daemon.expects_errors = True

    async def calls(there: oc.aio.AsyncSession) -> None:
        await there.load(tmp_path / "planned.py")
        for _ in range(5):
            await there.call("planned::die", ONES)
        before = len(numbers)
        with pytest.raises(oc.InterpreterDiedError, match="planned::die"):
            await there.call("planned::die", -ONES)
        assert len(numbers) == before + 1

    with daemon.connect() as session:
        run(session, calls, retry=False)


# Bytes of an array around which calls go another way: the message, and shared memory.
THRESHOLDS = (LONGEST // 2, THRESHOLD, LONGEST, 1 << 20)
LAYOUTS: dict[str, Callable[[int], np.ndarray[Any, Any]]] = {
    "bytes": lambda size: np.arange(size, dtype=np.uint8),
    "float32": lambda size: np.arange(size // 4, dtype=np.float32),
    "big-endian": lambda size: np.arange(size // 4, dtype=">f4"),
    "every second": lambda size: np.arange(size // 2, dtype=np.float32)[::2],
    "columns": lambda size: np.arange(size // 16 * 2.0).reshape(-1, 2).T,
    "bfloat16": lambda size: np.arange(size // 2).astype(ml_dtypes.bfloat16),
    "bool": lambda size: np.arange(size) % 3 == 0,
    "read-only": lambda size: np.frombuffer(bytes(size), np.int8),
}


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize("size", [t + d for t in THRESHOLDS for d in (-64, 0, 64)])
def test_large_arrays_are_planned_and_give_what_the_general_way_gives(
    planned: tuple[oc.Session, list[int]],
    layout: Callable[[int], np.ndarray[Any, Any]],
    size: int,
):
    session, numbers = planned
    general, array = session.with_options(retry=True), layout(size)
    for _ in range(4):
        before = len(numbers)
        mine = [session.call("planned::pair", array), session.submit("planned::pair", array)]
        other = general.call("planned::pair", array)
        for found in (mine[0], mine[1].result()):
            for each, expected in zip(found, other, strict=True):
                assert each.dtype == expected.dtype
                assert each.shape == expected.shape
                assert each.tobytes() == expected.tobytes()
                each.reshape(-1)[:1] = 0  # ours to write to
    assert len(numbers) == before + 2


def test_large_results_of_small_arguments_and_others_are_planned(
    planned: tuple[oc.Session, list[int]],
):
    session, numbers = planned
    for value in (1.0, 2.0, 3.0, 4.0, 5.0):
        before = len(numbers)
        assert (session.call("planned::large", np.full(4, value)) == value).all()
        assert (
            session.call("planned::total", np.full(100_000, value), np.ones(4)) == 1e5 * value + 4
        )
    assert len(numbers) == before + 2


def test_an_argument_that_a_planned_kernel_has_kept_does_not_change(
    planned: tuple[oc.Session, list[int]], tmp_path: Path
):
    session, numbers = planned
    library = 'kept = []\nlib = __import__("opdispatch").Library("keeps", "DEF")\n'
    library += 'lib.define("keep(Tensor x) -> float")\nlib.define("first(int n) -> float")\n'
    library += 'lib.impl("keep", lambda x: kept.append(x[:2]) or float(x[0]), "CPU")\n'
    library += 'lib.impl("first", lambda n: float(kept[n][0]), "CompositeExplicitAutograd")\n'
    (tmp_path / "keeps.py").write_text(library)
    session.load(tmp_path / "keeps.py")
    for value in range(8):
        assert session.call("keeps::keep", np.full(100_000, float(value))) == value
    assert numbers
    assert [session.call("keeps::first", n) for n in range(8)] == list(range(8))


def test_large_calls_fail_and_are_given_up_as_small_ones(
    planned: tuple[oc.Session, list[int]],
):
    session, numbers = planned
    ones = np.ones(1 << 18)
    for _ in range(4):
        assert session.call("planned::positive", ones)[0] == 2
        assert session.call("planned::wait", ones)[0] == 1
    assert numbers
    for _ in range(3):
        with pytest.raises(oc.KernelError, match="negative"):
            session.call("planned::positive", -ones)
        with pytest.raises(oc.KernelError, match="negative"):
            session.submit("planned::positive", -ones).result()
    slow = session.submit("planned::wait", -ones)
    futures = [session.submit("planned::wait", ones * n) for n in range(1, 6)]
    assert futures[2].cancel() or futures[2].done()
    slow.cancel()
    # What is sent while a cancelled call may still read its memory lies elsewhere.
    assert [session.call("planned::same", ones * n)[-1] for n in range(5)] == list(range(5))
    assert futures[3].result()[0] == 4


def test_awaited_large_calls_are_planned(planned: tuple[oc.Session, list[int]]):
    session, numbers = planned
    ones = np.ones(1 << 18)

    async def run() -> None:
        async with oc.aio.connect(session.address) as awaited:
            for n in range(6):
                before = len(numbers)
                assert (await awaited.call("planned::same", ones * n) == n).all()
            assert len(numbers) == before + 1
            for _ in range(4):
                await awaited.call("planned::positive", ones)
            with pytest.raises(oc.KernelError, match="negative"):
                await awaited.call("planned::positive", -ones)
            both = [awaited.call("planned::same", ones * n) for n in range(8)]
            results = await asyncio.gather(*both)
            assert [each[-1] for each in results] == list(range(8))

    asyncio.run(run())


def test_a_large_planned_call_that_ends_its_interpreter_is_blamed(
    daemon: RunningDaemon, numbers: list[int], tmp_path: Path
):
    (tmp_path / "planned.py").write_text(LIBRARY)
    daemon.expects_errors = True
    ones = np.ones(1 << 18)
    with daemon.connect(retry=False) as session:
        session.load(tmp_path / "planned.py")
        for _ in range(4):
            session.call("planned::die", ones)
        assert numbers
        with pytest.raises(oc.InterpreterDiedError, match="planned::die"):
            session.call("planned::die", -ones)
        for n in range(5):
            assert (session.call("planned::same", ones * n) == n).all()
