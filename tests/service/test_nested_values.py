"""Lists and dicts that nest without end, from a client and from a kernel."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

import opdispatch_client as oc
from opdispatch_client import aio
from opdispatch_wire.nesting import MAX_NESTING
from tests.service.conftest import WriteLibrary
from tests.service.running_daemon import RunningDaemon

NESTED = """\
from opdispatch import Library

def nested(levels, x):
    value = []
    if levels == 0:
        value.append(value)
    for _ in range(levels):
        value = [value]
    return value

lib = Library("nested", "DEF")
lib.define("take(Any x) -> int")
lib.define("give(int levels, Tensor x) -> Any")
lib.impl("take", lambda x: 1, "CompositeExplicitAutograd")
lib.impl("give", nested, "CPU")
"""
LIMIT = f"more than {MAX_NESTING} levels deep"


@pytest.fixture(scope="module")
def shared_workers() -> int:
    return 1


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
        lambda: nested.submit("nested::take", value).result(20),
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
