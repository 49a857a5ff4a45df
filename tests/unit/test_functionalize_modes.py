"""Functionalized functions with derivatives, modes, autocast, in one another, and in tasks."""

import asyncio
import contextvars
import copy
import re
import threading
from pathlib import Path

import numpy as np
import pytest

from opdispatch import (
    AutogradError,
    DispatchKey,
    LoggingMode,
    Tensor,
    autocast,
    capture_dispatch_trace,
    functionalize,
    local_dispatch_key_set,
    no_grad,
)
from opdispatch import array_api as xp
from opdispatch.autograd import grad, gradcheck
from opdispatch.functorch.functionalization import current_level
from tests.unit.functionalized import MODES, check, flat, tensor
from tests.waits import join

K = DispatchKey


def squares(x):
    """A call whose backward pass needs an overwritten value: only functionalized, it is there."""
    y = x * 1
    y[0] *= y[1]
    y[1:] = y[1:] * y[0]
    return xp.sum(y * y)


def squares_without_writes(x):
    first = x[:1] * x[1]
    return xp.sum(first * first) + xp.sum(xp.square(x[1:] * first))


@pytest.mark.parametrize("remove", MODES)
def test_gradients_are_those_of_the_function(remove):
    x = Tensor(np.random.default_rng(0).uniform(1, 2, (3, 2)), requires_grad=True)
    [expected] = grad(squares_without_writes(x), x)
    functional = functionalize(squares, remove=remove)
    np.testing.assert_allclose(grad(functional(x), x)[0].array, expected.array)
    assert gradcheck(functional, x)
    [inside] = (functionalize(lambda x: grad(squares(x), x)[0], remove=remove)(x),)
    np.testing.assert_allclose(inside.array, expected.array)
    with no_grad():
        assert not functional(x).requires_grad


def test_backward_in_the_function_adds_to_the_gradients_of_its_inputs():
    x = Tensor(np.array([[1.0], [2.0]]), requires_grad=True)
    functional = functionalize(lambda x: squares(x).backward())
    [expected] = grad(squares_without_writes(x), x)
    for times in (1, 2):
        functional(x)
        assert type(x.grad) is Tensor
        np.testing.assert_allclose(x.grad.array, times * expected.array)


def test_detached_tensors_are_views():
    def function(x):
        y = x.detach()
        y[0] = 5
        assert not y.requires_grad
        return x * 1

    check(function, (2,))


def test_copies_are_what_they_are_otherwise():
    def function(x):
        shallow, deep = copy.copy(x), copy.deepcopy(x)
        shallow[0], deep[1] = 5, 6
        return x * 1, deep * 1

    check(function, (2,))


def test_a_leaf_that_requires_gradients_is_not_written_to():
    x = Tensor(np.ones(2), requires_grad=True)
    with pytest.raises(AutogradError, match="a leaf that requires gradients"):
        functionalize(lambda y: y.__setitem__(0, 1.0))(x)


def test_calls_visit_functionalize_and_then_what_they_visit_otherwise():
    x = tensor(2)
    with capture_dispatch_trace() as lines:
        functionalize(lambda y: y * 2)(x)
    keys = ["FuncTorchDynamicLayerFrontMode", "Functionalize", "AutogradCPU", "CPU"]
    assert [line.key for line in lines] == keys


def test_modes_in_the_function_see_what_those_around_it_see():
    def function(x):
        with LoggingMode(inner.append):
            x[0] = 1

    inner, outer = [], []
    functionalize(function)(tensor(2))
    with LoggingMode(outer.append):
        functionalize(lambda x: x.__setitem__(0, 1))(tensor(2))
    assert inner == outer[:-1]
    assert len(inner) == 2


def test_autocast_casts_once_inside_and_around():
    x, y = tensor(2, 2, dtype=np.float32), tensor(2, 2, dtype=np.float32)

    def inside(x):
        with autocast("cpu", dtype=np.float16):
            return x @ y

    expected = inside(x)
    assert functionalize(inside)(x).dtype == expected.dtype == np.float16
    with autocast("cpu", dtype=np.float16):
        assert functionalize(lambda x: x @ y)(x).dtype == np.float16


def test_functions_may_be_functionalized_within_one_another():
    def inner(row):
        row[1] = 7
        return row * 2

    def function(x):
        doubled = functionalize(inner)(x[0])
        x[0, 0] = 8
        return doubled, functionalize(functionalize(inner))(x[1])

    called, _ = check(lambda x: function(x), (2, 3)), None
    assert called[0].count("copy_") == 1
    eager = tensor(2, 3)
    doubled = inner(eager[0])
    eager[0, 0] = 8
    expected = [doubled, inner(eager[1])]
    x = tensor(2, 3)
    result = functionalize(function)(x)
    for one, other in zip(flat((result, x)), flat((expected, eager)), strict=True):
        assert (one.array == other.array).all()


def test_threads_and_tasks_have_their_own():
    seen = []

    def function(x):
        thread = threading.Thread(target=lambda: seen.append(current_level()))
        thread.start()
        join(thread)
        seen.append(contextvars.copy_context().run(current_level) is current_level())
        x[0] = 0

    functionalize(function)(tensor(2))
    assert seen == [None, True]

    async def slow(x, first, second):
        x[0] = 5
        first.set()
        await second.wait()
        return x * 1

    async def both():
        events = asyncio.Event(), asyncio.Event()
        x, y = tensor(2), tensor(2)
        first = asyncio.create_task(functionalize(slow)(x, *events))
        second = asyncio.create_task(functionalize(slow)(y, *reversed(events)))
        await events[0].wait()
        assert current_level() is None
        results = await first, await second
        assert (results[0].array == [5, 2]).all()
        assert (x.array == y.array).all()

    asyncio.run(both())


def test_calls_outside_cost_and_visit_what_they_did():
    with capture_dispatch_trace() as lines:
        tensor(2)[0]
    assert [line.key for line in lines] == ["AutogradCPU", "ADInplaceOrView", "CPU"]
    assert not local_dispatch_key_set()[0].has(K.Functionalize)


def test_the_page_prints_what_it_says(capsys):
    page = (Path(__file__).parents[2] / "docs" / "functionalization.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    [shown] = re.findall(r"```\n\n```\n(.*?)```", page, re.DOTALL)
    promised = re.findall(r"^print\(.*\)\s+# (.*)$", page, re.MULTILINE)
    scope = {}
    for block in blocks:
        exec(block, scope)
    scope["lib"].close()
    assert capsys.readouterr().out.splitlines() == [*shown.splitlines(), *promised]
    assert len(promised) == 2
