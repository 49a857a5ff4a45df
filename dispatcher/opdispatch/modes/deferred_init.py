"""Deferred initialization: record how tensors are created, and create only those needed, later.

    from opdispatch.deferred_init import deferred_init, materialize_module

    model = deferred_init(Model, width=4096)            # fake tensors: no memory, no time
    materialize_module(model.layers[3], device="cuda")  # creates this layer's tensors

The tensors are bitwise equal to those of an immediate initialization, including random numbers that
come from operators of the library ``random``.

Mirrors ``torchdistx.deferred_init``. Importing the module registers the fallbacks of the keys
DeferredInit and Fake.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from opdispatch.arrays import FakeArray
from opdispatch.errors import ArgumentError
from opdispatch.functionalities.deferred_init import IS_RECORDING, record_call
from opdispatch.functionalities.fake import ALLOWS_REAL, DRAWS
from opdispatch.functionalities.recorded_call import replay
from opdispatch.keys.dispatch_key import DispatchKey
from opdispatch.keys.dispatch_key_set import DispatchKeySet
from opdispatch.local_state.local_dispatch_key_set import IncludeDispatchKeyGuard
from opdispatch.modes import fake_tensor
from opdispatch.tensors.tensor import Tensor

T = TypeVar("T")

fake_tensor.lib.fallback(record_call, "DeferredInit", with_keyset=True)
_KEYS = DispatchKeySet.of(DispatchKey.DeferredInit, DispatchKey.Fake)


def deferred_init(fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> T:
    """Call ``fn(*args, **kwargs)``, creating fake tensors and recording how they are created.

    Operator calls without tensor arguments, and those with a recorded tensor, are recorded; others
    are executed. Generators advance as if the numbers had been drawn. Raises the errors of ``fn``,
    including DataDependentOutputError if it reads elements, and ArgumentError if it writes a
    recorded tensor to one that has elements.
    """
    tokens = [(each, each.set(True)) for each in (IS_RECORDING, ALLOWS_REAL, DRAWS)]
    try:
        with IncludeDispatchKeyGuard(_KEYS):
            return fn(*args, **kwargs)
    finally:
        for variable, token in tokens:
            variable.reset(token)


def materialize_tensor(tensor: Any, device: str | None = None) -> Any:
    """Create the tensor that a recorded one represents, by replaying its recorded calls.

    It is created on the recorded device; with ``device``, all recorded calls run on that device
    instead. Later calls return the same tensor, and its views share its elements. A tensor that has
    elements is returned as is. Raises ArgumentError for a fake tensor that was not recorded, or if
    an argument of a recorded call was written to since; DeviceError; and the errors of the recorded
    calls.
    """
    array = tensor.array if isinstance(tensor, Tensor) else tensor
    if not isinstance(array, FakeArray):
        return tensor
    if array.recorded is None:
        raise ArgumentError(
            "a fake tensor can only be materialized if its making was recorded",
            hint="make it in a function that deferred_init calls",
        )
    replay(array.recorded, device)
    call, place, _ = array.recorded
    if isinstance(tensor, Tensor):
        return call.tensor(place, device, tensor.requires_grad)
    return call.array(place, device)


def materialize_module(module: T, device: str | None = None) -> T:
    """Replace the recorded tensors in an object by materialized ones, and return the object.

    Recursively visits attributes, lists, dicts and tuples, but not the attributes of Python's
    built-in types. Raises the errors of ``materialize_tensor``.
    """
    made: T = _materialize(module, device, {})
    return made


def _materialize(value: Any, device: str | None, seen: dict[int, Any]) -> Any:
    if isinstance(value, Tensor | FakeArray):
        return materialize_tensor(value, device)
    if id(value) in seen:
        return value
    if isinstance(value, tuple):
        items = [_materialize(each, device, seen) for each in value]
        if all(new is old for new, old in zip(items, value, strict=True)):
            return value
        return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
    if isinstance(value, list | dict):
        seen[id(value)] = value
        for place, each in enumerate(value) if isinstance(value, list) else list(value.items()):
            value[place] = _materialize(each, device, seen)
    elif hasattr(value, "__dict__") and not _is_of_python(value):
        seen[id(value)] = value
        _materialize(vars(value), device, seen)
    return value


def _is_of_python(value: Any) -> bool:
    """Return whether ``value`` is a class, a function, a module or the like."""
    return isinstance(value, type) or type(value).__module__ in ("builtins", "types", "functools")
