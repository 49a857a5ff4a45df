"""The functionality of ``examples/call_cache``: right results, bounds, and nothing private."""

from __future__ import annotations

import ast
import asyncio
import importlib.util
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

import opdispatch
from opdispatch import (
    DispatchKey,
    IncludeDispatchKeyGuard,
    Library,
    LoggingMode,
    MetaArray,
    NoKernelError,
    Tensor,
    autocast,
    local_dispatch_key_set,
    no_grad,
    ops,
    profile,
)
from opdispatch import array_api as xp
from tests.waits import join

FOLDER = Path(__file__).resolve().parents[2] / "examples/call_cache"
X = np.arange(6.0).reshape(2, 3)


@pytest.fixture(scope="module", autouse=True)
def example() -> Iterator[ModuleType]:
    spec = importlib.util.spec_from_file_location("call_cache", FOLDER / "call_cache.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["call_cache"] = module
    spec.loader.exec_module(module)
    yield module
    module.lib.close()
    del sys.modules["call_cache"]


@pytest.fixture
def call_cache(example):
    return example.call_cache


RUNS: list[str] = []
"""The kernels of the library below that have run."""


@pytest.fixture(scope="module", autouse=True)
def library() -> Iterator[Library]:
    def ran(name, result):
        RUNS.append(name)
        return result

    def write(x):
        x[...] = 0
        return ran("write_", x)

    with Library("cached", "DEF") as lib:
        lib.define("double(Tensor x, *, float by=2.0) -> Tensor")
        lib.impl("double", lambda x, *, by: ran("double", x * by), "CPU")
        lib.define("twice(Tensor x) -> Tensor")
        lib.impl("twice", lambda x: ran("twice", ops.cached.double(ops.cached.double(x))), "CPU")
        lib.define("write_(Tensor(a!) x) -> Tensor(a!)")
        lib.impl("write_", write, "CPU")
        lib.define("view(Tensor(a) x) -> Tensor(a)")
        lib.impl("view", lambda x: ran("view", x[:1]), "CPU")
        lib.define("undeclared_view(Tensor x) -> Tensor")
        lib.impl("undeclared_view", lambda x: ran("undeclared_view", x[:1]), "CPU")
        lib.define("random(Tensor x) -> Tensor", tags=("nondeterministic_seeded",))
        lib.impl("random", lambda x: ran("random", x + np.random.random()), "CPU")
        lib.define("fails(Tensor x) -> Tensor")
        lib.impl("fails", lambda x: 1 / ran("fails", 0), "CPU")
        lib.define("many(Tensor[] xs, Scalar s, str how) -> (Tensor, Tensor[], int)")
        lib.impl("many", lambda xs, s, how: ran("many", (xs[0] * s, [xs[1] + 1], 3)), "CPU")
        lib.define("fill(int n) -> Tensor")
        lib.impl("fill", lambda n: ran("fill", np.ones(n)), "CompositeExplicitAutograd")
        yield lib


@pytest.fixture(autouse=True)
def no_runs():
    RUNS.clear()


# -- nothing private -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["call_cache.py", "run.py"])
def test_call_cache_imports_only_public_names(name):
    tree = ast.parse((FOLDER / name).read_text(encoding="utf-8"))
    imported = 0
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            assert not any(alias.name.startswith("opdispatch") for alias in node.names)
        if isinstance(node, ast.ImportFrom) and node.module.startswith("opdispatch"):
            assert node.module == "opdispatch"
            for alias in node.names:
                assert alias.name in {*opdispatch.__all__, "array_api"}
                imported += 1
        if isinstance(node, ast.Attribute) and node.attr.startswith("_"):
            own = isinstance(node.value, ast.Name) and node.value.id in ("self", "other", "mine")
            dunder = node.attr.startswith("__")
            assert own or dunder or node.attr == "_version"  # PyTorch's public name
        if isinstance(node, ast.Name):
            assert node.id not in ("getattr", "setattr", "vars", "eval", "exec")
    assert imported


def test_the_key_is_free(example):
    op = ops.cached.double.default
    with_fallback = {str(row.key) for row in op.table_rows()}
    assert str(example.KEY) in with_fallback
    example.lib.close()
    try:
        assert str(example.KEY) not in {str(row.key) for row in op.table_rows()}
    finally:
        example.lib = Library("_", "IMPL")
        kernel = opdispatch.KernelFunction.from_boxed(example._call)
        example.lib.fallback(kernel, example.KEY)


# -- what is remembered --------------------------------------------------------------------------


@pytest.mark.parametrize("by", ["elements", "version"])
def test_a_call_that_was_made_before_is_not_made_again(call_cache, by):
    x = Tensor(X.copy())
    with call_cache(by=by) as cache:
        first = ops.cached.double(x)
        again = ops.cached.double(x)
    assert RUNS == ["double"]
    assert (cache.hits, cache.misses, cache.passed) == (1, 1, 0)
    assert isinstance(again, Tensor)
    np.testing.assert_array_equal(first.array, again.array)
    assert cache.num_bytes == X.nbytes
    ops.cached.double(x)  # outside of the block
    assert RUNS == ["double"] * 2
    with cache:  # what it has remembered stays
        ops.cached.double(x)
    assert cache.hits == 2
    cache.clear()
    assert cache.num_bytes == 0
    with cache:
        ops.cached.double(x)
    assert RUNS == ["double"] * 3


DIFFERENT = {
    "elements": (X, X + 1),
    "shape": (X, X.reshape(3, 2)),
    "dtype": (X, X.astype(np.int64)),
    "same bytes, other dtype": (np.zeros(2, np.int64), np.zeros(2, np.float64)),
    "sign of zero": (np.zeros(2), -np.zeros(2)),
    "kind of tensor": (X, Tensor(X)),
    "empty": (np.zeros((0, 3)), np.zeros((3, 0))),
    "no dimensions": (np.array(1.0), np.array([1.0])),
}


@pytest.mark.parametrize("pair", DIFFERENT.values(), ids=DIFFERENT)
def test_other_arguments_are_another_call(call_cache, pair):
    with call_cache() as cache:
        for value in (*pair, *pair):
            result = ops.cached.double(value)
            assert isinstance(result, Tensor) is isinstance(value, Tensor)
            np.testing.assert_array_equal(np.asarray(result), np.asarray(value) * 2)
            assert np.array_equal(np.signbit(result), np.signbit(np.asarray(value) * 2.0))
    assert (cache.hits, cache.misses) == (2, 2)


def test_cache_distinguishes_equal_numbers_of_different_types(call_cache):
    nan = float("nan")
    calls = [(2.0, "a"), (2, "a"), (0.0, "a"), (-0.0, "a"), (nan, "a"), (True, "a"), (2.0, "b")]
    with call_cache() as cache:
        for s, how in calls * 2:
            first, [second], three = ops.cached.many([X, X], s, how)
            np.testing.assert_array_equal(first, X * s)
            np.testing.assert_array_equal(second, X + 1)
            assert three == 3
    assert (cache.hits, cache.misses) == (len(calls), len(calls))


def test_strides_do_not_matter(call_cache):
    with call_cache() as cache:
        ops.cached.double(X)
        result = ops.cached.double(np.asfortranarray(X))
    assert cache.hits == 1
    np.testing.assert_array_equal(result, X * 2)


def test_a_kernel_over_another_one_is_asked(call_cache, library):
    with call_cache():
        ops.cached.double(X)
        with library.impl("double", lambda x, *, by: x * 0, "CPU", allow_override=True):
            assert not ops.cached.double(X).any()
        assert ops.cached.double(X).any()
    assert RUNS == ["double"]


# -- what is not ---------------------------------------------------------------------------------


def test_calls_that_are_not_functions_of_their_arguments_pass(call_cache):
    x = X.copy()
    with call_cache() as cache:
        for _ in range(2):
            assert ops.cached.write_(x) is x
            assert np.shares_memory(ops.cached.view(x), x)
            ops.cached.random(x)
            ops.cached.fill(3)
    assert RUNS == ["write_", "view", "random", "fill"] * 2
    assert (cache.hits, cache.misses) == (0, 0)
    assert cache.passed == 6  # a composite kernel, as fill has, comes before a fallback


def test_a_view_that_the_schema_does_not_declare_stays_one(call_cache):
    with call_cache() as cache:
        for _ in range(2):
            assert np.shares_memory(ops.cached.undeclared_view(X), X)
    assert (cache.hits, cache.num_bytes) == (0, 0)


def test_errors_and_other_arrays_are_not_remembered(call_cache):
    with call_cache() as cache:
        for _ in range(2):
            with pytest.raises(ZeroDivisionError):
                ops.cached.fails(X)
            with pytest.raises(NoKernelError):
                ops.cached.double(MetaArray((2, 3), np.float64))
        ops.cached.double(np.array([2, None, 3][::2], object))
    assert RUNS == ["fails", "fails", "double"]
    assert cache.hits == 0
    assert cache.passed == 3


# -- writes --------------------------------------------------------------------------------------


@pytest.mark.parametrize("by", ["elements", "version"])
def test_a_write_is_seen(call_cache, by):
    x = Tensor(X.copy())
    with call_cache(by=by) as cache:
        before = ops.cached.double(x).array.copy()
        x[0] = 7.0
        after = ops.cached.double(x)
        assert (after.array[0] == 14).all()
        assert not np.array_equal(before, after.array)
        view = x[1:]
        ops.cached.double(x)
        assert cache.hits == 1
        view[...] = 1.0  # a write through a view counts for its base
        assert (ops.cached.double(x).array[1] == 2).all()


def test_writes_to_results_do_not_reach_what_is_remembered(call_cache):
    with call_cache():
        for _ in range(3):
            result = ops.cached.double(X)
            np.testing.assert_array_equal(result, X * 2)
            result[...] = -1


def test_another_tensor_at_the_same_address_is_another_one(call_cache):
    with call_cache(by="version") as cache:
        for n in range(20):
            result = ops.cached.double(Tensor(np.full(3, float(n))))
            assert (result.array == 2 * n).all()
    assert cache.hits == 0


# -- how much ------------------------------------------------------------------------------------


def test_the_results_used_least_recently_go_first(call_cache):
    a, b, c = (np.full(10, float(n)) for n in range(3))
    with call_cache(max_bytes=160) as cache:
        for value in (a, b, a, c):  # b is the oldest when c comes
            ops.cached.double(value)
        assert cache.num_bytes == 160
        ops.cached.double(a)
        ops.cached.double(c)
        assert cache.hits == 3
        ops.cached.double(b)
        assert cache.hits == 3
        ops.cached.double(np.zeros(21))  # alone too large
        assert cache.num_bytes == 160
    with pytest.raises(ValueError, match="expected max_bytes >= 0"):
        call_cache(max_bytes=-1)
    with pytest.raises(ValueError, match="expected"):
        call_cache(by="name")


# -- beside other functionalities ----------------------------------------------------------------


def test_gradients_are_recorded_around_it(call_cache):
    x = Tensor(np.array([0.5, 1.0]), requires_grad=True)
    xp.sum(xp.exp(x)).backward()
    expected = x.grad.array.copy()
    with call_cache() as cache:
        for _ in range(2):
            x.grad = None
            xp.sum(xp.exp(x)).backward()
            np.testing.assert_array_equal(x.grad.array, expected)
        first, second = xp.exp(x), xp.exp(x)
        assert first.grad_fn is not second.grad_fn
        with no_grad():
            assert xp.exp(x).requires_grad is False
    assert cache.hits >= 6


def test_autocast_and_modes_come_before_it(call_cache):
    x = Tensor(np.ones((3, 3), np.float32))
    lines: list[str] = []
    with call_cache() as cache:
        assert str((x @ x).dtype) == "float32"
        with autocast("cpu"):
            assert str((x @ x).dtype) == "bfloat16"
            assert str((x @ x).dtype) == "bfloat16"
        assert str((x @ x).dtype) == "float32"
        with LoggingMode(lines.append):
            xp.matmul(x, x)
    assert lines == ["array::matmul(float32[3, 3], float32[3, 3]) -> float32[3, 3]"]
    assert cache.hits >= 3


def test_cached_call_replaces_the_calls_of_its_kernel(call_cache):
    with call_cache() as cache, profile() as prof:
        ops.cached.twice(X)
        ops.cached.twice(X)
    assert RUNS == ["double", "double", "twice"]
    assert (cache.hits, cache.misses) == (1, 1)
    grid = prof.key_grid()
    assert grid.count("cached::twice", "FPGA") == 2
    assert grid.count("cached::twice", "CPU") == 1
    assert grid.count("cached::double", "FPGA") == 0


# -- tasks and threads ---------------------------------------------------------------------------


def test_blocks_may_be_nested_and_end_as_they_began(call_cache):
    before = local_dispatch_key_set()
    with call_cache() as outer:
        ops.cached.double(X)
        with call_cache() as inner:
            ops.cached.double(X)
        ops.cached.double(X)
    assert local_dispatch_key_set() == before
    assert (outer.hits, outer.misses, inner.misses) == (1, 1, 1)
    with IncludeDispatchKeyGuard(DispatchKey.FPGA):  # the key without a cache
        np.testing.assert_array_equal(ops.cached.double(X), X * 2)


def test_tasks_that_overlap_have_their_own(call_cache):
    async def one(cache, first, then):
        await asyncio.sleep(first)
        with cache:
            ops.cached.double(X)
            await asyncio.sleep(then)
            ops.cached.double(X)
        ops.cached.double(X)

    async def main():
        caches = [call_cache(), call_cache()]
        await asyncio.gather(one(caches[0], 0.0, 0.01), one(caches[1], 0.005, 0.01))
        return caches

    for cache in asyncio.run(main()):
        assert (cache.hits, cache.misses) == (1, 1)
    assert len(RUNS) == 4


def test_threads_share_a_cache(call_cache):
    cache = call_cache(max_bytes=2000)
    wrong = []

    def work(seed):
        rng = np.random.default_rng(seed)
        with cache:
            for _ in range(150):
                n = int(rng.integers(0, 30))
                if not (ops.cached.double(np.full(10, float(n))) == 2 * n).all():
                    wrong.append(n)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        join(thread)
    assert not wrong
    assert cache.hits + cache.misses == 600
    assert cache.num_bytes <= 2000
    assert cache.num_bytes == sum(each.num_bytes for each in cache._remembered.values())
