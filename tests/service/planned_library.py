"""A library whose operators are called by plans, and what to compare of their calls."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import opdispatch_client as oc
from opdispatch import Tensor
from opdispatch.errors import OpdispatchError
from tests.service.running_daemon import RunningDaemon

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
lib.define("derived(Tensor x) -> Tensor")
lib.define("records(Tensor x) -> bool")


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
    while x.flat[0] < 0 and os.path.exists("hold"):
        time.sleep(0.005)
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


def records(x):
    leaf = Tensor(np.ones(2), requires_grad=True)
    return opdispatch.ops.planned.derived(leaf).requires_grad


lib.impl("derived", lambda x: np.asarray(x) * 2, "CPU")
lib.register_autograd("derived", lambda ctx, grad: grad)
lib.impl("records", records, "CPU")
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
    "derived",
    "records",
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


@contextmanager
def held(daemon: RunningDaemon) -> Iterator[None]:
    """Hold the calls of ``planned::wait`` with a negative number until the end of the block."""
    path = daemon.folder / "hold"
    path.touch()
    try:
        yield
    finally:
        path.unlink()


@pytest.fixture
def planned(shared: oc.Session, numbers: list[int], tmp_path: Path) -> tuple[oc.Session, list[int]]:
    """A session with the library, and the ids of the calls that follow a plan."""
    library = tmp_path / "planned.py"
    library.write_text(LIBRARY)
    shared.load(library)
    return shared, numbers
