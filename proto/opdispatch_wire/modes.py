"""The modes and local keys of a task <-> ``v1.CallRequest``.

    caller      add_modes     ->  local_keys, no_grad, modes
    chooser                       check_modes, local_keys_of
    callee                        check_modes, local_keys_of, autocast_of

Keys and the grad mode have fields of their own. Everything else that changes what a call does is
named in ``modes``, so that a callee that does not know it can refuse the call, instead of doing
something else.
"""

from __future__ import annotations

import reprlib
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from opdispatch.errors import ArgumentError
from opdispatch.keys.dispatch_key import DispatchKey
from opdispatch.keys.dispatch_key_set import (
    DEFAULT_EXCLUDED_SET,
    DEFAULT_INCLUDED_SET,
    DispatchKeySet,
)
from opdispatch.local_state.autocast_mode import (
    autocast_dtypes_of_task,
    autocast_key,
    with_autocast_dtypes,
)
from opdispatch.local_state.grad_mode import is_grad_enabled
from opdispatch.local_state.local_dispatch_key_set import (
    local_dispatch_key_set,
    local_dispatch_key_set_is_default,
)
from opdispatch.local_state.torch_dispatch_mode import keys_of_modes
from opdispatch.local_state.tracing_state import keys_of_traces
from opdispatch_wire.dtypes import dtype_from_name, dtype_to_name
from opdispatch_wire.errors import UnknownModeError, WireError
from opdispatch_wire.v1 import execution_pb2

_AUTOCAST = "autocast"
_KNOWN = (_AUTOCAST,)
_NOTHING: AbstractContextManager[Any] = nullcontext()
_STAY_HERE = DispatchKeySet.of(
    DispatchKey.Fake,
    DispatchKey.DeferredInit,
    DispatchKey.FuncTorchDynamicLayerFrontMode,
    DispatchKey.FuncTorchDynamicLayerBackMode,
)


def add_modes(request: execution_pb2.CallRequest) -> None:
    """Add to the request the task's modes and local keys, unless they are the defaults."""
    if not is_grad_enabled():
        request.no_grad = True
    if local_dispatch_key_set_is_default():  # then autocast is disabled, too
        return
    if dtypes := autocast_dtypes_of_task():
        mode = request.modes.add(name=_AUTOCAST)
        for device_type, dtype in dtypes.items():
            mode.settings[device_type] = dtype_to_name(dtype, at="$.modes")
    included, excluded = local_dispatch_key_set()
    # Modes, traces and transforms apply here, not where the kernel runs.
    included = included - keys_of_modes() - keys_of_traces() - _STAY_HERE
    if (included, excluded) == (DEFAULT_INCLUDED_SET, DEFAULT_EXCLUDED_SET):
        return
    request.local_keys.SetInParent()  # two empty sets differ from the default, too
    request.local_keys.included = included.bits
    request.local_keys.excluded = excluded.bits


def modes_of_task() -> bytes:
    """Return bytes that are equal wherever ``add_modes`` would add the same."""
    request = execution_pb2.CallRequest()
    add_modes(request)
    data: bytes = request.SerializeToString(deterministic=True)
    return data


def local_keys_of(request: execution_pb2.CallRequest) -> tuple[DispatchKeySet, DispatchKeySet]:
    """Return the included and the excluded key set for the call."""
    if not request.HasField("local_keys"):
        return DEFAULT_INCLUDED_SET, DEFAULT_EXCLUDED_SET
    keys = request.local_keys
    return DispatchKeySet(keys.included), DispatchKeySet(keys.excluded)


def check_modes(request: execution_pb2.CallRequest) -> None:
    """Raise UnknownModeError if the caller has a mode enabled that is unknown here."""
    for mode in request.modes:
        if mode.name not in _KNOWN:
            raise UnknownModeError(
                f"the call asks for the mode {reprlib.repr(mode.name)}, which is not known here",
                hint="the caller is newer: bring the daemon and its interpreters up to date",
                mode=mode.name[:60],
            )


def autocast_of(request: execution_pb2.CallRequest) -> AbstractContextManager[Any]:
    """Return a block in which autocast has the dtypes of the caller. Raises WireError."""
    for i, mode in enumerate(request.modes):
        if mode.name == _AUTOCAST:
            return with_autocast_dtypes(
                {
                    _checked(device_type, at): dtype_from_name(name, at=at)
                    for device_type, name in mode.settings.items()
                    if (at := f"$.modes[{i}].settings[{reprlib.repr(device_type)}]")
                }
            )
    return _NOTHING


def _checked(device_type: str, at: str) -> str:
    try:
        autocast_key(device_type)
    except ArgumentError as error:
        raise WireError(f"{at}: {error.message}") from None
    return device_type
