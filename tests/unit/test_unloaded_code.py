"""Memory of libraries that have gone, while a call in its last steps still refers to it."""

from __future__ import annotations

import gc
from collections.abc import Callable

import pytest

from opdispatch import KernelFunction
from opdispatch_server.worker.libraries.unloaded_code import UnloadedCode, functions_of


@pytest.fixture
def trims() -> list[int]:
    return []


@pytest.fixture
def unloaded(trims: list[int]) -> UnloadedCode:
    return UnloadedCode(lambda: trims.append(gc.collect()))


def kernel() -> Callable[[], None]:
    def function() -> None:
        return None

    return function


def test_code_that_nothing_refers_to_is_collected_once(unloaded: UnloadedCode, trims: list[int]):
    unloaded.note(functions_of([KernelFunction.from_unboxed(kernel())]))
    assert not unloaded.remains
    assert len(trims) == 1


def test_code_that_a_call_refers_to_is_collected_after_it(unloaded: UnloadedCode, trims: list[int]):
    in_call = kernel()
    unloaded.note(functions_of([KernelFunction.from_unboxed(in_call)]))
    assert unloaded.remains
    del in_call
    unloaded.collect()
    assert not unloaded.remains
    assert len(trims) == 2


def test_code_that_stays_in_use_is_left_alone_after_some_tries(
    unloaded: UnloadedCode, trims: list[int]
):
    kept = kernel()
    unloaded.note(functions_of([KernelFunction.from_unboxed(kept)]))
    for _ in range(10):
        unloaded.collect()
    assert not unloaded.remains
    assert len(trims) == 4


def test_kernels_without_a_function_are_passed_over():
    assert functions_of([KernelFunction.fallthrough()]) == []
