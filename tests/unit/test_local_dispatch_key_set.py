"""The included and excluded keys of a task, and the guards that change them for a block."""

import asyncio
import contextvars
import gc
import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from opdispatch import (
    BackendComponent,
    DispatchKey,
    DispatchKeySet,
    ExcludeDispatchKeyGuard,
    ForceDispatchKeyGuard,
    IncludeDispatchKeyGuard,
    KernelFunction,
    Tensor,
    local_dispatch_key_set,
    tls_is_dispatch_key_excluded,
    tls_is_dispatch_key_included,
    tls_set_dispatch_key_excluded,
    tls_set_dispatch_key_included,
)
from opdispatch.keys.dispatch_key_set import DEFAULT_EXCLUDED_SET, DEFAULT_INCLUDED_SET
from opdispatch.local_state.local_dispatch_key_set import (
    DEFAULT_STATE,
    LOCAL_STATE,
    SWITCHED_ON,
    LocalState,
)
from tests.waits import LONGEST_WAIT

K = DispatchKey
DEFAULTS = (DEFAULT_INCLUDED_SET, DEFAULT_EXCLUDED_SET)
PYTHON = DispatchKeySet.of(K.Python)
words = st.integers(0, (1 << 64) - 1)


def test_a_task_starts_with_the_defaults():
    assert local_dispatch_key_set() == DEFAULTS
    assert LOCAL_STATE.get() is DEFAULT_STATE


def test_a_guard_adds_keys_for_its_block_and_restores_exactly_what_was_before():
    with IncludeDispatchKeyGuard(PYTHON):
        assert local_dispatch_key_set() == (DEFAULT_INCLUDED_SET | PYTHON, DEFAULT_EXCLUDED_SET)
        with ExcludeDispatchKeyGuard(K.CPU):
            assert local_dispatch_key_set()[0] == DEFAULT_INCLUDED_SET | PYTHON
            assert K.CPU in local_dispatch_key_set()[1]
        assert local_dispatch_key_set() == (DEFAULT_INCLUDED_SET | PYTHON, DEFAULT_EXCLUDED_SET)
    assert local_dispatch_key_set() == DEFAULTS


def test_force_sets_both_words_whatever_they_were():
    nothing = DispatchKeySet()
    with IncludeDispatchKeyGuard(K.Tracer), ForceDispatchKeyGuard(nothing, PYTHON):
        assert local_dispatch_key_set() == (nothing, PYTHON)


def test_forcing_the_defaults_gives_the_state_that_compiled_code_knows():
    with IncludeDispatchKeyGuard(PYTHON), ForceDispatchKeyGuard(*DEFAULTS):
        assert LOCAL_STATE.get() is DEFAULT_STATE


def test_an_exception_leaves_the_block_with_the_keys_restored():
    with pytest.raises(KeyError), IncludeDispatchKeyGuard(PYTHON):
        raise KeyError
    assert local_dispatch_key_set() == DEFAULTS


def test_one_guard_may_be_entered_again_and_within_itself():
    guard = IncludeDispatchKeyGuard(PYTHON)
    for _ in range(2):
        with guard, guard:
            assert K.Python in local_dispatch_key_set()[0]
        assert local_dispatch_key_set() == DEFAULTS


def test_each_thread_has_its_own():
    seen = []
    with IncludeDispatchKeyGuard(PYTHON):
        thread = threading.Thread(target=lambda: seen.append(local_dispatch_key_set()))
        thread.start()
        thread.join(LONGEST_WAIT)
    assert seen == [DEFAULTS]


async def test_each_asyncio_task_has_its_own():
    inside, done = asyncio.Event(), asyncio.Event()

    async def guarded():
        with IncludeDispatchKeyGuard(PYTHON):
            inside.set()
            await done.wait()
            return local_dispatch_key_set()

    task = asyncio.create_task(guarded())
    await inside.wait()
    assert local_dispatch_key_set() == DEFAULTS
    done.set()
    assert (await task)[0] == DEFAULT_INCLUDED_SET | PYTHON


def test_a_copied_context_starts_with_the_keys_it_was_copied_with():
    with IncludeDispatchKeyGuard(PYTHON):
        context = contextvars.copy_context()
    assert context.run(local_dispatch_key_set)[0] == DEFAULT_INCLUDED_SET | PYTHON
    assert local_dispatch_key_set() == DEFAULTS


@given(words, words, words)
def test_the_keys_of_a_call_are_arguments_and_included_without_excluded(bits, included, excluded):
    applied = LocalState(included, excluded).apply(bits)
    union = DispatchKeySet(bits) | DispatchKeySet(included)
    assert DispatchKeySet(applied) == union - DispatchKeySet(excluded)


# -- as calls see them -----------------------------------------------------------------------


@pytest.fixture
def op(caller, define):
    """An operator whose result names the kernel that served the call."""
    kernels = {key: (lambda x, key=key: key) for key in ("CPU", "AutogradCPU", "Python", "Tracer")}
    return define("t::f(Tensor x) -> str", **kernels)


def test_an_included_key_is_served_though_no_argument_has_it(op):
    x = np.ones(2)
    assert op(x) == "CPU"
    with IncludeDispatchKeyGuard(K.Tracer):
        assert op(x) == "Tracer"
    assert op(x) == "CPU"


def test_an_excluded_key_is_passed_by(op):
    x = Tensor(np.ones(2))
    assert op(x) == "AutogradCPU"
    with ExcludeDispatchKeyGuard(K.AutogradCPU):
        assert op(x) == "CPU"
    assert op(x) == "AutogradCPU"


def test_exclusion_wins_over_inclusion(op):
    with IncludeDispatchKeyGuard(K.Python), ExcludeDispatchKeyGuard(K.Python):
        assert op(np.ones(2)) == "CPU"


def test_excluding_a_backend_excludes_dense_and_leaves_autograd(op):
    with ExcludeDispatchKeyGuard(K.CUDA):
        assert op(Tensor(np.ones(2))) == "AutogradCPU"


def test_kernel_found_under_a_guard_is_not_used_outside(op):
    """The kernel found for some key bits is kept for calls in the default state only."""
    x = np.ones(2)
    with IncludeDispatchKeyGuard(K.Tracer):
        assert [op(x), op(x)] == ["Tracer", "Tracer"]
    assert [op(x), op(x)] == ["CPU", "CPU"]


def test_local_keys_do_not_count_for_a_redispatch(op):
    with IncludeDispatchKeyGuard(K.Tracer), ExcludeDispatchKeyGuard(K.CPU):
        assert op.redispatch(DispatchKeySet.of(K.CPU), np.ones(2)) == "CPU"


def test_the_kernel_runs_under_the_guards_of_its_caller(dispatcher, define, caller):
    op = define("t::f(Tensor x) -> str", CPU=lambda x: str(local_dispatch_key_set()[0]))
    with IncludeDispatchKeyGuard(K.BackendSelect):
        assert op(np.ones(2)) == str(DEFAULT_INCLUDED_SET)
    wrapped = KernelFunction.fallthrough()
    dispatcher.register_impl(op.name, K.Python, wrapped)
    with IncludeDispatchKeyGuard(K.Python):
        assert op(np.ones(2)) == str(DEFAULT_INCLUDED_SET | PYTHON)


def test_the_compiled_calls_ask_for_the_state_while_any_task_may_have_one():
    gc.collect()
    before = set(SWITCHED_ON)  # a trace that the environment asks for is always on
    with IncludeDispatchKeyGuard(PYTHON):
        assert len(SWITCHED_ON - before) == 1
        inside = contextvars.copy_context()
    assert len(SWITCHED_ON - before) == 1  # the copy is still in the state
    assert inside.run(LOCAL_STATE.get) is not DEFAULT_STATE
    del inside
    gc.collect()
    assert before == SWITCHED_ON


def test_a_known_call_in_the_copy_of_a_context_sees_what_is_switched_on_there(op):
    x = np.ones(2)
    with IncludeDispatchKeyGuard(K.Tracer):
        inside = contextvars.copy_context()
    assert [op(x), op(x)] == ["CPU", "CPU"]
    assert inside.run(op, x) == "Tracer"
    assert op(x) == "CPU"


# -- without a block -----------------------------------------------------------------------------

SETTERS = {
    "included": (tls_is_dispatch_key_included, tls_set_dispatch_key_included),
    "excluded": (tls_is_dispatch_key_excluded, tls_set_dispatch_key_excluded),
}


@pytest.mark.parametrize("place", SETTERS)
def test_a_key_is_switched_on_and_off_in_one_of_the_two_sets(place):
    def switch():
        is_set, set_state = SETTERS[place]
        others = [ask for name, (ask, _) in SETTERS.items() if name != place]
        for key in (K.Python, "Tracer"):
            set_state(key, True)
            set_state(key, True)
            assert is_set(key)
            assert not any(ask(key) for ask in others)
            set_state(key, False)
            assert not is_set(key)
        return LOCAL_STATE.get()

    assert contextvars.copy_context().run(switch) is DEFAULT_STATE


def test_switching_a_key_off_leaves_its_backend_as_in_every_key_set():
    def switch():
        tls_set_dispatch_key_included("CUDA", True)
        tls_set_dispatch_key_included("CUDA", False)
        return local_dispatch_key_set()[0]

    keys = contextvars.copy_context().run(switch)
    assert keys == DEFAULT_INCLUDED_SET | DispatchKeySet(BackendComponent.CUDA)


def test_include_and_exclude_guards_restore_their_own_set_alone():
    with IncludeDispatchKeyGuard(K.Conjugate):
        tls_set_dispatch_key_excluded(K.Negative, True)
    assert local_dispatch_key_set() == (DEFAULT_INCLUDED_SET, DEFAULT_EXCLUDED_SET.add(K.Negative))
    with ExcludeDispatchKeyGuard("Conjugate"):
        tls_set_dispatch_key_excluded(K.Negative, False)
        tls_set_dispatch_key_included(K.Meta, True)
    assert local_dispatch_key_set()[1] == DEFAULT_EXCLUDED_SET.add(K.Negative)
    assert tls_is_dispatch_key_included(K.Meta)
    LOCAL_STATE.set(DEFAULT_STATE)
