"""Calls of tasks that have switched keys on or off: the short way is theirs, too."""

import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from opdispatch import (
    Dispatcher,
    DispatchKey,
    DispatchKeySet,
    ExcludeDispatchKeyGuard,
    ForceDispatchKeyGuard,
    IncludeDispatchKeyGuard,
    KernelFunction,
    Library,
    OperatorNotFoundError,
    Tensor,
    capture_dispatch_trace,
    local_dispatch_key_set,
)
from opdispatch.dispatch import compiled_call
from opdispatch.dispatch.operator_state import STATE_LIMIT
from opdispatch.library.ops import Ops
from opdispatch.local_state.local_dispatch_key_set import LOCAL_STATE

K = DispatchKey
X = np.ones(2)


@pytest.fixture(autouse=True)
def _compiled(monkeypatch):
    """The generated code, whatever the environment says."""
    monkeypatch.setattr(compiled_call, "COMPILE", True)


@pytest.fixture
def op(define):
    """An operator that says which kernel was called: with a plain array, CPU's."""
    return define(
        "t::f(Tensor x) -> str",
        CPU=lambda x: "cpu",
        Tracer=lambda x: "tracer",
        AutogradCPU=lambda x: "autograd",
    )


def functions_called(call):
    """Return the names of the Python functions that are entered."""
    called = []

    def note(frame, event, _):
        if event == "call":
            called.append(frame.f_code.co_name)

    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    return called


@pytest.mark.parametrize("held", [True, False])
def test_a_known_call_takes_the_short_way_in_each_state(op, held):
    call = op if held else Ops(op.dispatcher).t.f
    call(X)
    usual = functions_called(lambda: call(X))
    guards = (
        ExcludeDispatchKeyGuard(K.Tracer),
        IncludeDispatchKeyGuard(K.Tracer),
        ForceDispatchKeyGuard(DispatchKeySet.of(K.Tracer, K.ADInplaceOrView), DispatchKeySet()),
    )
    for guard in guards:
        with guard:
            call(X)
            call(X)
            assert functions_called(lambda: call(X)) == usual


def test_each_state_has_kernels_of_its_own(op):
    tensor = Tensor(X)
    for _ in range(3):
        assert (op(X), op(tensor)) == ("cpu", "autograd")
        with IncludeDispatchKeyGuard(K.Tracer):
            assert (op(X), op(tensor)) == ("tracer", "tracer")
            with ExcludeDispatchKeyGuard(K.Tracer):
                assert (op(X), op(tensor)) == ("cpu", "autograd")
        with ExcludeDispatchKeyGuard(K.AutogradFunctionality):
            assert (op(X), op(tensor)) == ("cpu", "cpu")


def test_a_kernel_that_comes_and_goes_is_seen_in_each_state(op):
    def register(key, answer):
        kernel = KernelFunction.from_unboxed(lambda x: answer)
        return op.dispatcher.register_impl(op.name, key, kernel)

    with IncludeDispatchKeyGuard(K.Tracer):
        assert [op(X), op(X)] == ["tracer", "tracer"]
        newer = register(K.Tracer, "newer")
        assert [op(X), op(X)] == ["newer", "newer"]
        newer.close()
        assert [op(X), op(X)] == ["tracer", "tracer"]


def test_closed_kernel_is_not_called(dispatcher):
    library = Library("m", "DEF", dispatcher=dispatcher)
    library.define("f(Tensor x) -> Tensor")
    library.impl("f", lambda x: x, "CPU")
    held = dispatcher.get_schema("m::f")
    with IncludeDispatchKeyGuard(K.BackendSelect), ExcludeDispatchKeyGuard(K.Tracer):
        assert held(X) is held(X) is X
        library.close()
        with pytest.raises(OperatorNotFoundError, match="m::f is gone"):
            held(X)


def test_a_trace_sees_known_calls(op):
    with ExcludeDispatchKeyGuard(K.Tracer):
        op(X)
        op(X)
        for _ in range(2):
            with capture_dispatch_trace() as lines:
                op(X)
            assert [(line.operator, line.key) for line in lines] == [("t::f", "CPU")]


def test_states_without_end_take_no_memory(op):
    tensor = Tensor(X)
    for place in range(3 * STATE_LIMIT):
        excluded = DispatchKeySet(1 << (20 + place % 30) | 1 << (20 + place // 30))
        with ForceDispatchKeyGuard(DispatchKeySet(), excluded):
            key = op.lookup(op.dispatch_keys([tensor])).key
            expected = {K.CPU: "cpu", K.AutogradCPU: "autograd"}[key]
            assert [op(tensor), op(tensor)] == [expected, expected]
    assert len(op._entry.state.calls_of_states) == STATE_LIMIT
    with IncludeDispatchKeyGuard(K.Tracer):
        assert [op(X), op(X)] == ["tracer", "tracer"]


def test_a_call_that_should_lead_nowhere_is_found(op):
    with ExcludeDispatchKeyGuard(K.Tracer):
        memo = op._entry.state.calls_in(LOCAL_STATE.get())
    cuda = DispatchKeySet.of(K.CUDA).bits
    memo[cuda] = print
    [violation] = op._entry.state.find_violations()
    assert violation == "DispatchKeySet(CUDA) leads to a kernel, and should lead to none"
    del memo[cuda]


def test_threads_have_states_of_their_own(op):
    def work(n):
        with ExitStack() as blocks:
            if n % 2:
                blocks.enter_context(IncludeDispatchKeyGuard(K.Tracer))
            return [op(X) for _ in range(20)]

    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(work, range(20)))
    assert answers == [["tracer" if n % 2 else "cpu"] * 20 for n in range(20)]


KEYS = st.lists(
    st.sampled_from([K.Tracer, K.AutogradFunctionality, K.ADInplaceOrView, K.AutogradOther]),
    max_size=3,
)


@given(st.lists(st.tuples(KEYS, KEYS, st.booleans()), min_size=1, max_size=6))
def test_the_generated_code_agrees_with_its_twin_in_all_states(states):
    dispatcher = Dispatcher()
    library = Library("m", "DEF", dispatcher=dispatcher)
    library.define("f(Tensor x) -> str")
    for key in ("CPU", "Tracer", "Autograd", "ADInplaceOrView"):
        library.impl("f", lambda keys, x, key=key: f"{key} {keys}", key, with_keyset=True)
    op = dispatcher.get_schema("m::f")
    tensor = Tensor(X)
    for included, excluded, is_plain in states:
        value = X if is_plain else tensor
        with ForceDispatchKeyGuard(
            local_dispatch_key_set()[0] | DispatchKeySet.of(*included),
            local_dispatch_key_set()[1] | DispatchKeySet.of(*excluded),
        ):
            expected = op.interpret_call((value,), {})
            assert [op(value), op(value)] == [expected, expected]
    assert dispatcher.check_invariants() == []
