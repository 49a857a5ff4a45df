"""A fallback that runs operators without a kernel for a device on the host. Registered by users:

    Library("_", "IMPL").fallback(cpu_fallback, "PrivateUse1")

PyTorch's backends register ``at::native::cpu_fallback`` (``ATen/native/CPUFallback.cpp``) in the
same way. Tensors among the arguments are copied to the host, the operator is redispatched to its
kernel for ``CPU``, written arguments are copied back, and results are copied to the requested
device or that of the first device tensor. Since this is slow, calls are counted, and the first call
of each operator causes a warning.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from opdispatch.arrays import (
    CPU_BITS,
    ArrayBackend,
    device_errors,
    device_of,
    find_backend,
    find_layout,
    on_device,
)
from opdispatch.errors import ArgumentError
from opdispatch.functorch.aliased_return import original_of_write
from opdispatch.keys.dispatch_key_set import DispatchKeySet
from opdispatch.local_state.caller_frames import warn_caller
from opdispatch.schema.function_schema import FunctionSchema
from opdispatch.schema.types import DEVICE, OptionalType
from opdispatch.tensors.tensor import Tensor

if TYPE_CHECKING:
    from opdispatch.dispatch.operator_handle import OperatorHandle

_CPU = DispatchKeySet(CPU_BITS)
_DEVICES = (DEVICE, OptionalType(DEVICE))

_NO_VIEW = "; what it returns is a copy, where it would be a view"

_mutex = threading.Lock()  # protects _counts
_counts: Counter[str] = Counter()


class CpuFallbackWarning(UserWarning):
    """An operator has no kernel for a device, and is computed on the host."""


def cpu_fallback(op: OperatorHandle, /, *args: Any, **kwargs: Any) -> Any:
    """Run an operator on the host: a backend fallback, see above.

    An argument that is passed twice is a single array on the host, unlike in PyTorch. Results that
    would be views of arguments are copies. Raises ArgumentError if the kernel changes the shape or
    dtype of a written argument, before any device argument has been written; host arguments are
    passed to the kernel directly. Raises NoKernelError without a CPU kernel, and DeviceError, also
    for a result layout that the device does not support.
    """
    signature = op.call_signature
    schema = signature.schema
    stack = signature.bind(args, kwargs)
    host = _HostCopies()
    moved = [
        host.name_device(value) if argument.type in _DEVICES else host.of(value)
        for argument, value in zip(schema.arguments, stack, strict=True)
    ]
    _note(schema, host.device)
    results = list(moved)
    op.redispatch_boxed(_CPU, results)
    written_to = [
        (value, f"{op.name} changes the {{}} of its argument {argument.name!r} from {{}} to {{}}")
        for argument, value in zip(schema.arguments, moved, strict=True)
        if argument.is_write
    ]
    host.write_back(written_to)
    for place, returned in enumerate(schema.returns):
        written = None
        if returned.alias_info is not None and returned.alias_info.is_write:
            written = original_of_write(schema, place, results[place], moved, stack)
        results[place] = host.back(results[place]) if written is None else written
    return signature.unbox_returns(results)


def cpu_fallback_counts() -> dict[str, int]:
    """Return how often each operator ran on the host in this process, by its full name."""
    with _mutex:
        return dict(_counts)


def _note(schema: FunctionSchema, device: str) -> None:
    operator = str(schema.name)
    with _mutex:
        _counts[operator] += 1
        is_first = _counts[operator] == 1
    if is_first:
        views = [each.alias_info for each in schema.returns if each.alias_info is not None]
        also = "" if all(each.is_write for each in views) else _NO_VIEW
        warn_caller(
            f"{operator} has no kernel for {device or 'the device'}: it is computed on the host, "
            f"and its tensors are copied there and back{also}",
            CpuFallbackWarning,
        )


class _HostCopies:
    """Host copies of the arguments of one call, and their copy-back."""

    def __init__(self) -> None:
        self._found = ""
        self._asked = ""
        # By the id of each copy: the copy, to keep its id in use, and its original; and the other
        # way round.
        self._originals: dict[int, tuple[Any, Any]] = {}
        self._copies: dict[int, Any] = {}

    @property
    def device(self) -> str:
        """Device of the results: the requested one, or that of the first tensor."""
        return self._asked or self._found

    def name_device(self, value: Any) -> Any:
        """Replace a requested device by the host's, where the kernel runs."""
        if value is None:
            return None
        self._asked = value
        return "cpu"

    def of(self, value: Any) -> Any:
        """Copy the tensors of a value to the host."""
        if isinstance(value, list | tuple):
            return [self.of(item) for item in value]
        array = value.array if isinstance(value, Tensor) else value
        backend = find_backend(type(array))
        if backend is None or backend.device_type == "cpu":
            return value
        self._found = self._found or backend.device_of(array)
        copy: Any = self._copies.get(id(array))
        if copy is None:
            with device_errors(backend.device_of(array)):
                copy = self._copies[id(array)] = backend.to_host(array)
        if isinstance(value, Tensor):
            copy = Tensor(copy, requires_grad=value.requires_grad)
        self._originals[id(copy)] = copy, value
        return copy

    def write_back(self, copies: list[tuple[Any, str]]) -> None:
        """Write the copies' contents to their arguments, once all are known to fit.

        Beside each stands the text of the error, with places for what has changed, from and to.
        """
        for target, source in [each for copy, text in copies for each in self._writes(copy, text)]:
            with device_errors(device_of(target)):
                _backend_of(target).assign(target, source)

    def _writes(self, copy: Any, text: str) -> Iterator[tuple[Any, Any]]:
        """Yield the array of an argument, or of each of a list, and its new contents."""
        if isinstance(copy, list):
            for item in copy:
                yield from self._writes(item, text)
            return
        found = self._originals.get(id(copy))
        if found is None:
            return  # already on the host
        target, source = _array_of(found[1]), _array_of(copy)
        dtype = _backend_of(target).dtype_of(target)
        for what, old, new in (
            ("shape", list(target.shape), list(source.shape)),
            ("dtype", dtype, source.dtype),
        ):
            if old != new:
                raise ArgumentError(
                    f"{text.format(what, old, new)}, which cannot be done on another device"
                )
        yield target, source

    def back(self, result: Any) -> Any:
        """Copy a result to the device; a returned argument is returned itself."""
        if isinstance(result, list | tuple):
            return [self.back(item) for item in result]
        found = self._originals.get(id(result))
        if found is not None:
            return found[1]
        array = _array_of(result)
        if self.device in ("", "cpu") or not _is_on_host(array):
            return result
        there = on_device(array, self.device)
        if isinstance(result, Tensor):
            return Tensor(there, requires_grad=result.requires_grad)
        return there


def _array_of(value: Any) -> Any:
    return value.array if isinstance(value, Tensor) else value


def _backend_of(array: Any) -> ArrayBackend:
    backend = find_backend(type(array))
    assert backend is not None, "only arrays of backends are copied"
    return backend


def _is_on_host(value: Any) -> bool:
    """Return whether ``value`` is an array in host memory, of any layout."""
    if find_layout(type(value)) is None:
        return isinstance(value, np.ndarray | np.generic)
    return device_of(value) == "cpu"
