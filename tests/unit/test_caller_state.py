"""A kernel runs in its caller's grad mode and local keys, and in nothing of its own thread's."""

from __future__ import annotations

import pytest

from opdispatch import DispatchKey, ExcludeDispatchKeyGuard, inference_mode, no_grad
from opdispatch.local_state.grad_mode import AUTOGRAD_STATE, is_grad_enabled
from opdispatch.local_state.local_dispatch_key_set import (
    DEFAULT_STATE,
    DispatchKeySet,
    local_dispatch_key_set,
)
from opdispatch_server.worker.execution.caller_state import (
    RECORDING,
    GradModeOf,
    grad_mode_of,
    local_state_of,
)
from opdispatch_wire.modes import add_modes
from opdispatch_wire.v1 import execution_pb2


def request_of_now() -> execution_pb2.CallRequest:
    """A call from this task, with what is switched on in it."""
    request = execution_pb2.CallRequest()
    add_modes(request)
    return request


def test_caller_with_nothing_switched_on_gives_the_defaults():
    request = request_of_now()
    assert grad_mode_of(request) is RECORDING
    assert local_state_of(request, None, None) is DEFAULT_STATE


@pytest.mark.parametrize(("mode", "is_inference"), [(no_grad, False), (inference_mode, True)])
def test_grad_mode_of_the_caller_holds_within_a_block(mode, is_inference: bool):
    with mode():
        request = request_of_now()
    assert is_grad_enabled()
    with GradModeOf(request):
        assert not is_grad_enabled()
        assert AUTOGRAD_STATE.get().inference_mode is is_inference
    assert is_grad_enabled()


def test_local_keys_of_the_caller_come_with_its_call():
    with ExcludeDispatchKeyGuard(DispatchKey.AutogradCPU):
        included, excluded = local_dispatch_key_set()
        request = request_of_now()
    state = local_state_of(request, None, None)
    assert (DispatchKeySet(state.included), DispatchKeySet(state.excluded)) == (included, excluded)
