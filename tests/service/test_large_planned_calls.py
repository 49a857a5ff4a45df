"""Calls of large arrays follow a plan, and give what the general way gives."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import opdispatch_client as oc
from opdispatch_wire.planned_calls import LONGEST
from opdispatch_wire.shared_memory.call_memory import THRESHOLD
from tests.service.planned_library import (
    LIBRARY,
    held,
    planned,
)
from tests.service.running_daemon import RunningDaemon

__all__ = ["planned"]

SHARED_WORKERS = WORKERS = 1


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
    planned: tuple[oc.Session, list[int]], lent_daemon: RunningDaemon
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
    with held(lent_daemon):
        slow = session.submit("planned::wait", -ones)
        futures = [session.submit("planned::wait", ones * n) for n in range(1, 6)]
        assert futures[2].cancel() or futures[2].done()
        slow.cancel()
        # What is sent while a cancelled call may still read its memory lies elsewhere.
        others = [session.submit("planned::same", ones * n) for n in range(5)]
    assert [each.result()[-1] for each in others] == list(range(5))
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
