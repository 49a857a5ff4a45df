"""Construction that is recorded, and done later: only what is needed, and where it is needed.

    from opdispatch.deferred_init import deferred_init, materialize_module

    model = deferred_init(Model, width=4096)            # fake tensors: no memory, no time
    materialize_module(model.layers[3], device="cuda")  # as if it had been made so at once

What is made is equal bit by bit to what would have been made at once, random numbers included, as
long as they come from the operators of the library ``random``.

Mirrors ``torchdistx.deferred_init``.
To import it gives the keys DeferredInit and Fake their fallbacks.
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
    """Return ``fn(*args, **kwargs)`` with fake tensors whose creation has been recorded.

    Calls of operators without tensors, and those with a recorded one, are recorded; others are
    made. Generators go on as if numbers had been drawn. Raises what ``fn`` raises:
    DataDependentOutputError if it looks at elements, and ArgumentError if it writes recorded ones
    to a tensor that has elements.
    """
    tokens = [(each, each.set(True)) for each in (IS_RECORDING, ALLOWS_REAL, DRAWS)]
    try:
        with IncludeDispatchKeyGuard(_KEYS):
            return fn(*args, **kwargs)
    finally:
        for variable, token in tokens:
            variable.reset(token)


def materialize_tensor(tensor: Any, device: str | None = None) -> Any:
    """Return the tensor that a recorded one would have been, on the device that it was to be on.

    With ``device``, on that one: all that it is made of is made there. The same one each time, and
    views of it share its elements. A tensor with elements is itself. Raises ArgumentError for a
    fake tensor whose making was not recorded, or an argument of it that was written to since;
    DeviceError; and what the recorded calls raise.
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
    """Put the tensors that recorded ones would have been in their places, in an object.

    In its attributes, in lists, dicts and tuples, and in the attributes of objects there, of any
    class but those of Python itself. Returns the object. Raises as ``materialize_tensor`` does.
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
    """Return whether it is a class, a function, a module or the like."""
    return isinstance(value, type) or type(value).__module__ in ("builtins", "types", "functools")
