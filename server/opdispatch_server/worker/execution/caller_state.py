"""The local state in which a kernel runs, that of its caller: keys, grad mode, trace, profile."""

from __future__ import annotations

from opdispatch.keys.dispatch_key import DispatchKey
from opdispatch.local_state.grad_mode import AUTOGRAD_STATE, RECORDING, AutogradState
from opdispatch.local_state.local_dispatch_key_set import DEFAULT_STATE, LocalState
from opdispatch_server.worker.execution.daemon_lane import CallTrace
from opdispatch_server.worker.execution.kernel_profile import KernelProfile
from opdispatch_wire.modes import local_keys_of
from opdispatch_wire.trace_context import kernel_sink
from opdispatch_wire.v1 import execution_pb2

_NOT_RECORDING = AutogradState(grad_mode=False)
_INFERENCE = AutogradState(grad_mode=False, inference_mode=True)


class GradModeOf:
    """A block with the caller's grad mode."""

    __slots__ = ("_state", "_token")

    def __init__(self, request: execution_pb2.CallRequest) -> None:
        self._state = grad_mode_of(request)

    def __enter__(self) -> None:
        self._token = AUTOGRAD_STATE.set(self._state)

    def __exit__(self, *exc: object) -> None:
        AUTOGRAD_STATE.reset(self._token)


def grad_mode_of(request: execution_pb2.CallRequest) -> AutogradState:
    """Return the caller's grad mode."""
    if not request.no_grad:
        return RECORDING
    # There is no flag for inference mode: it alone excludes ADInplaceOrView, as in PyTorch.
    if request.HasField("local_keys"):
        included, _ = local_keys_of(request)
        if not included.has(DispatchKey.ADInplaceOrView):
            return _INFERENCE
    return _NOT_RECORDING


def local_state_of(
    request: execution_pb2.CallRequest, trace: CallTrace | None, profile: KernelProfile | None
) -> LocalState:
    """Return the local state for a kernel: that of its caller, and nothing of this thread's."""
    sink = trace.sink() if trace else kernel_sink() if request.traceparent else None
    if sink is None and profile is None and not request.HasField("local_keys"):
        return DEFAULT_STATE
    included, excluded = local_keys_of(request)
    if profile is None:
        return LocalState(included.bits, excluded.bits, sink)
    # The lines of a trace name interpreters; they are passed on, and visits are not counted.
    return LocalState(included.bits, excluded.bits, sink or profile.sink(), profile.observer)
