"""Grad mode and inference mode: flags of a task, and what calls visit under them."""

import asyncio
import threading

import numpy as np
import pytest

from opdispatch import (
    DispatchKey,
    DispatchKeySet,
    ForceDispatchKeyGuard,
    IncludeDispatchKeyGuard,
    Tensor,
    capture_dispatch_trace,
    enable_grad,
    inference_mode,
    is_grad_enabled,
    is_inference_mode_enabled,
    local_dispatch_key_set,
    no_grad,
    set_grad_enabled,
)
from opdispatch.local_state.local_dispatch_key_set import DEFAULT_STATE, LOCAL_STATE
from tests.waits import LONGEST_WAIT

K = DispatchKey


def test_gradients_are_recorded_unless_a_block_says_otherwise():
    assert is_grad_enabled()
    with no_grad():
        assert not is_grad_enabled()
        with enable_grad():
            assert is_grad_enabled()
        assert not is_grad_enabled()
    assert is_grad_enabled()


def test_grad_mode_leaves_calls_on_the_short_way():
    with no_grad():
        assert LOCAL_STATE.get() is DEFAULT_STATE


def test_set_grad_enabled_is_a_function_and_a_block():
    set_grad_enabled(False)
    assert not is_grad_enabled()
    set_grad_enabled(True)
    with set_grad_enabled(False):
        assert not is_grad_enabled()
    assert is_grad_enabled()


def test_grad_mode_set_under_a_key_guard_persists():
    with IncludeDispatchKeyGuard(K.Fake):
        set_grad_enabled(False)
    assert not is_grad_enabled()
    set_grad_enabled(True)


MODES = {
    "no_grad": lambda: no_grad,
    "no_grad()": no_grad,
    "set_grad_enabled(False)": lambda: set_grad_enabled(False),
    "inference_mode": lambda: inference_mode,
    "inference_mode()": inference_mode,
}


@pytest.mark.parametrize("mode", MODES)
def test_a_mode_decorates_functions(mode):
    @MODES[mode]()
    def decorated(depth):
        """Return the mode of each depth."""
        return [is_grad_enabled(), *(decorated(depth - 1) if depth else [])]

    assert is_grad_enabled()
    assert decorated(2) == [False] * 3
    assert is_grad_enabled()
    assert decorated.__doc__ == "Return the mode of each depth."


def test_a_generator_has_the_mode_while_it_runs_and_its_caller_has_not():
    seen = []

    @no_grad()
    def generate():
        try:
            seen.append((yield is_grad_enabled()))
            yield is_grad_enabled()
        except KeyError:
            seen.append(is_grad_enabled())
            yield "caught"
        finally:
            seen.append(is_grad_enabled())
        return "returned"

    def delegate():
        seen.append((yield from generate()))

    steps = delegate()
    assert next(steps) is False
    assert is_grad_enabled()
    assert steps.send("sent") is False
    assert steps.throw(KeyError()) == "caught"
    assert list(steps) == []
    assert seen == ["sent", False, False, "returned"]

    steps = generate()
    next(steps)
    steps.close()
    assert seen[4:] == [False]
    assert is_grad_enabled()


def test_a_coroutine_has_the_mode_and_other_tasks_have_not():
    async def main():
        inside, done = asyncio.Event(), asyncio.Event()

        @inference_mode()
        async def infer():
            inside.set()
            await done.wait()
            return is_inference_mode_enabled()

        task = asyncio.create_task(infer())
        await inside.wait()
        assert not is_inference_mode_enabled()
        done.set()
        return await task

    assert asyncio.run(main())


def test_each_thread_has_its_own():
    seen = []
    with no_grad():
        thread = threading.Thread(target=lambda: seen.append(is_grad_enabled()))
        thread.start()
        thread.join(LONGEST_WAIT)
    assert seen == [True]


# -- inference mode --------------------------------------------------------------------------


def test_inference_mode_drops_view_tracking_and_autograd():
    before = local_dispatch_key_set()
    with inference_mode():
        included, excluded = local_dispatch_key_set()
        assert included == before[0].remove(K.ADInplaceOrView)
        assert excluded == before[1] | DispatchKeySet.of(
            K.AutogradFunctionality, K.AutogradOther, K.AutogradNestedTensor
        )
        assert (is_inference_mode_enabled(), is_grad_enabled()) == (True, False)
        with inference_mode(False):
            assert local_dispatch_key_set() == before
            assert (is_inference_mode_enabled(), is_grad_enabled()) == (False, True)
        assert (is_inference_mode_enabled(), is_grad_enabled()) == (True, False)
    assert local_dispatch_key_set() == before
    assert (is_inference_mode_enabled(), is_grad_enabled()) == (False, True)


def test_leaving_inference_mode_restores_the_exact_words():
    words = DispatchKeySet.of(K.CPU), DispatchKeySet.of(K.AutogradCPU)
    with ForceDispatchKeyGuard(*words):
        with inference_mode(False):
            assert local_dispatch_key_set() == (words[0].add(K.ADInplaceOrView), DispatchKeySet(1))
        assert local_dispatch_key_set() == words


def test_calls_in_inference_mode_pass_autograd_by(caller, define):
    op = define("t::f(Tensor x) -> ()", CPU=lambda x: None)
    x = Tensor(np.ones(2))
    for mode, keys in ((inference_mode(), ["CPU"]), (no_grad(), ["AutogradCPU", "CPU"])):
        with mode, capture_dispatch_trace() as lines:
            op(x)
        assert [line.key for line in lines] == keys
