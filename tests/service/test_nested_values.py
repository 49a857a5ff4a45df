"""Lists and dicts that nest without end, or share parts, from a client and from a kernel."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import opdispatch_client as oc
from opdispatch_client import aio
from opdispatch_wire import nesting_limits
from opdispatch_wire.nesting_limits import MAX_NESTING, MAX_VALUES
from tests.service.conftest import WriteLibrary
from tests.service.running_daemon import RunningDaemon
from tests.waits import LONGEST_WAIT

SHARED_WORKERS = 1
NESTED = """\
from opdispatch import Library

def nested(levels, x):
    value = []
    if levels == 0:
        value.append(value)
    for _ in range(levels):
        value = [value]
    return value

def shared(levels, x):
    value = []
    for _ in range(levels):
        value = {"a": value, "b": value} if levels % 2 else [value, value]
    return value

lib = Library("nested", "DEF")
lib.define("take(Any x) -> int")
lib.define("give(int levels, Tensor x) -> Any")
lib.define("share(int levels, Tensor x) -> Any")
lib.impl("share", shared, "CPU")
lib.impl("take", lambda x: 1, "CompositeExplicitAutograd")
lib.impl("give", nested, "CPU")
"""
LIMIT = f"more than {MAX_NESTING} levels deep"
TOO_MANY = f"more than {MAX_VALUES} values"


@pytest.fixture
def nested(shared: oc.Session, write_library: WriteLibrary) -> oc.Session:
    """A session with the library above."""
    shared.load(write_library("nested", NESTED))
    return shared


def deep(levels: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(levels):
        value = [value]
    return value


def loop() -> list[Any]:
    value: list[Any] = []
    value.append(value)
    return value


@pytest.mark.parametrize("value", [deep(40), deep(3000), loop(), [1, {"a": loop()}]])
def test_arguments_that_nest_too_deep_are_refused_by_every_way_of_calling(
    nested: oc.Session, shared_daemon: RunningDaemon, value: Any
):
    ways = [
        lambda: nested.ops.nested.take(value),
        lambda: nested.ops.nested.take(x=value),
        lambda: nested.call("nested::take", value),
        lambda: nested.submit("nested::take", value).result(LONGEST_WAIT),
        lambda: nested.with_options(remote=True).call("nested::take", value),
    ]
    for call in ways:
        with pytest.raises(oc.ArgumentError, match=rf"\$\..*{LIMIT}"):
            call()

    async def await_it() -> None:
        async with await aio.connect(shared_daemon.address) as session:
            await session.call("nested::take", value)

    with pytest.raises(oc.ArgumentError, match=rf"\$\..*{LIMIT}"):
        asyncio.run(await_it())
    assert nested.ops.nested.take([1]) == 1


@pytest.mark.parametrize("levels", [0, MAX_NESTING, 3000])
def test_results_that_nest_too_deep_are_the_kernels_fault(nested: oc.Session, levels: int):
    x = np.zeros(2)

    def run_program(remote: bool) -> None:
        with nested.program() as p:
            p.output(p.ops.nested.give(levels, x), remote=remote)

    ways = [
        lambda: nested.ops.nested.give(levels, x),
        lambda: nested.with_options(remote=True).call("nested::give", levels, x),
        lambda: run_program(False),
        lambda: run_program(True),
    ]
    for call in ways:
        with pytest.raises(oc.ReturnError, match=LIMIT):
            call()
    assert nested.ops.nested.give(1, x) == [[]]


def doubled(make: Callable[[Any], Any], levels: int = MAX_NESTING - 1) -> Any:
    value = make(None)
    for _ in range(levels):
        value = make(value)
    return value


# The first two stand for 2**31 values or more: too many to walk through them all.
SHARED = [
    (doubled(lambda part: [part] * 16), 1000),
    (doubled(lambda part: {"a": part, "b": part}), 1000),
    (["t"] * (MAX_VALUES + 1), MAX_VALUES),
]


@pytest.mark.parametrize(("value", "most"), SHARED)
def test_arguments_of_too_many_values_are_refused_by_every_way_of_calling(
    nested: oc.Session,
    shared_daemon: RunningDaemon,
    value: Any,
    most: int,
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(nesting_limits, "MAX_VALUES", most)
    monkeypatch.setattr(nesting_limits.ValueCount, "_left", most)
    too_many = f"more than {most} values"

    def record() -> None:
        with nested.program() as p:
            p.output(p.ops.nested.take(value))

    ways = [
        lambda: nested.ops.nested.take(value),
        lambda: nested.ops.nested.take(x=value),
        lambda: nested.submit("nested::take", value).result(LONGEST_WAIT),
        lambda: list(nested.map("nested::take", [(value,)])),
        lambda: nested.trace("nested::take", value),
        lambda: nested.with_options(remote=True).call("nested::take", value),
        lambda: nested.as_program(nested.ops.nested.take)(value),
        lambda: nested.as_program(lambda x: [x, value])(np.zeros(2)),
        record,
    ]
    for call in ways:
        with pytest.raises(oc.ArgumentError, match=f"{too_many}|{LIMIT}"):
            call()

    async def await_it() -> None:
        async with await aio.connect(shared_daemon.address) as session:
            await session.call("nested::take", value)

    with pytest.raises(oc.ArgumentError, match=too_many):
        asyncio.run(await_it())
    monkeypatch.undo()
    assert nested.ops.nested.take(["t"] * MAX_VALUES) == 1


@pytest.mark.parametrize("levels", [MAX_NESTING - 1, MAX_NESTING - 2])
def test_results_of_too_many_values_are_the_kernels_fault(nested: oc.Session, levels: int):
    x = np.zeros(2)

    def run_program(remote: bool) -> None:
        with nested.program() as p:
            p.output(p.ops.nested.share(levels, x), remote=remote)

    ways = [
        lambda: nested.ops.nested.share(levels, x),
        lambda: nested.with_options(remote=True).call("nested::share", levels, x),
        lambda: run_program(False),
        lambda: run_program(True),
    ]
    for call in ways:
        with pytest.raises(oc.ReturnError, match=TOO_MANY):
            call()
    assert nested.ops.nested.share(2, x) == [[[], []], [[], []]]
