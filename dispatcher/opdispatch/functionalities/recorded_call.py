"""Operator calls that ``DeferredInit`` records to replay later.

Note [What a replay has to run]
    The value of a recorded tensor depends on the call that returned it, on every call that has
    written to its elements since, through any view, and in turn on the arguments of these calls.
    A replay runs these calls in the order in which they were recorded, each of them once, so that
    each reads the values that it read then. Before a call that writes, it also runs the earlier
    calls that read the same elements and whose results are still referenced: later they would read
    the new values.

Mirrors ``deferred_init.cc`` of torchdistX.
"""

from __future__ import annotations

import itertools
import threading
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from opdispatch.arrays import FakeArray, find_key_bits, on_device
from opdispatch.autograd.variable import version_of
from opdispatch.errors import ArgumentError
from opdispatch.keys.dispatch_key import DispatchKey
from opdispatch.keys.dispatch_key_set import DispatchKeySet
from opdispatch.local_state.autocast_mode import AUTOCAST_STATE
from opdispatch.local_state.grad_mode import AUTOGRAD_STATE
from opdispatch.local_state.local_dispatch_key_set import (
    ForceDispatchKeyGuard,
    local_dispatch_key_set,
)
from opdispatch.local_state.torch_dispatch_mode import keys_of_modes
from opdispatch.schema.types import DEVICE, OptionalType
from opdispatch.tensors.generator import Generator, GeneratorState, with_default_generators
from opdispatch.tensors.tensor import Tensor

if TYPE_CHECKING:
    from opdispatch.dispatch.operator_handle import OperatorHandle

_DEVICES = (DEVICE, OptionalType(DEVICE))
_OFF = DispatchKeySet.of(DispatchKey.Fake, DispatchKey.DeferredInit)
_times = itertools.count()
_replaying = threading.RLock()  # held for a whole replay: only one thread runs a recorded call


class Storage:
    """The future elements of a tensor and all its views: which calls write to them or read them."""

    __slots__ = ("__weakref__", "readers", "writers")

    def __init__(self) -> None:
        self.writers: list[RecordedCall] = []
        self.readers: list[weakref.ref[RecordedCall]] = []
        """Weak references, because a call whose results are gone need not run before a write."""


class Recorded(NamedTuple):
    """The origin of a fake array: the call that returned it, its index there, and its storage."""

    call: RecordedCall
    place: int
    storage: Storage


class _Fake(NamedTuple):
    """An argument that is the result of another recorded call."""

    recorded: Recorded
    is_tensor: bool
    requires_grad: bool


class _Real(NamedTuple):
    """An argument with elements, and its version when the call was recorded."""

    value: Any
    version: int


class _Drawn(NamedTuple):
    """A generator, with its state when the call was recorded."""

    device: str
    key_set: DispatchKeySet
    state: GeneratorState


class RecordedCall:
    """A recorded call: the operator, its arguments, and the dispatch state at the time."""

    def __init__(self, op: OperatorHandle, stack: Sequence[Any]) -> None:
        self.time = next(_times)
        self._op = op
        schema = op.call_signature.schema
        self._arguments = [self._note(op, value) for value in stack]
        self._is_device = [argument.type in _DEVICES for argument in schema.arguments]
        self.producers = [each.recorded for each in _flat(self._arguments) if type(each) is _Fake]
        self._makes_new = not any(type(each) in (_Fake, _Real) for each in _flat(self._arguments))
        self.touches = {each.storage for each in self.producers}
        self.writes: set[Storage] = set()
        for argument, noted in zip(schema.arguments, self._arguments, strict=True):
            for each in _flat([noted]) if argument.is_write else ():
                if type(each) is _Real:
                    raise ArgumentError(
                        f"{op.name} writes to a tensor that already has elements; under "
                        "deferred_init, expected one that was made there",
                        operator=str(op.name),
                    )
                if type(each) is _Fake:
                    self.writes.add(each.recorded.storage)
        included, excluded = local_dispatch_key_set()
        self._keys = included - keys_of_modes() - _OFF, excluded - _OFF
        self._autograd, self._autocast = AUTOGRAD_STATE.get(), AUTOCAST_STATE.get()
        self.drawn: Mapping[str, GeneratorState] = {}
        """The states of the default generators that the call drew from, before it did."""
        self._results: dict[str | None, list[Any]] = {}

    def _note(self, op: OperatorHandle, value: Any) -> Any:
        if isinstance(value, list):
            return [self._note(op, each) for each in value]
        if isinstance(value, Generator):
            return _Drawn(value.device, value.key_set, value.state)
        if value is None or find_key_bits(value) is None:
            return value
        is_tensor = isinstance(value, Tensor)
        array = value.array if is_tensor else value
        if isinstance(array, FakeArray):
            if array.recorded is None:
                raise ArgumentError(
                    f"{op.name} was called with a fake tensor that deferred_init did not record",
                    hint="create it in the function that deferred_init calls",
                    operator=str(op.name),
                )
            return _Fake(array.recorded, is_tensor, is_tensor and value.requires_grad)
        if isinstance(value, np.ndarray):  # whose writes are not counted
            return _Real(value.copy(), 0)
        return _Real(value, version_of(value) if is_tensor else 0)

    def keep(self, results: Sequence[Any]) -> None:
        """Mark fake results as made by this call, and register it with the storages it touches."""
        for place, value in enumerate(_flat(results)):
            array = value.array if isinstance(value, Tensor) else value
            if isinstance(array, FakeArray) and array.recorded is None:
                base = array.base
                storage = Storage() if base is None else base.recorded.storage
                array.recorded = Recorded(self, place, storage)
        for storage in self.touches:
            storage.readers.append(weakref.ref(self))
        for storage in self.writes:
            storage.writers.append(self)

    def tensor(self, place: int, device: str | None, requires_grad: bool) -> Tensor:
        """Return the result at index ``place`` as a tensor; the call must have been run.

        This is the same tensor each time, or a detached one if the result requires gradients
        and ``requires_grad`` is False.
        """
        results = self._results[device]
        tensor = results[place]
        if not isinstance(tensor, Tensor):
            tensor = results[place] = Tensor(tensor)
        if tensor.requires_grad == requires_grad:
            return tensor
        if requires_grad:
            tensor.requires_grad = True
            return tensor
        return tensor.detach()

    def array(self, place: int, device: str | None) -> Any:
        """Return the result at index ``place`` as an array; the call must have been run."""
        result = self._results[device][place]
        return result.array if isinstance(result, Tensor) else result

    def is_done(self, device: str | None) -> bool:
        """Return whether the call has been run for that device."""
        return device in self._results

    def before(self) -> Iterator[RecordedCall]:
        """Yield the calls that must run before. See Note [What a replay has to run]."""
        yield from (each.call for each in self.producers)
        for storage in self.touches:
            yield from (call for call in storage.writers if call.time < self.time)
        for storage in self.writes:
            readers = (reader() for reader in storage.readers)
            yield from (call for call in readers if call is not None and call.time < self.time)

    def run(self, device: str | None) -> None:
        """Run the call for ``device``. The calls that ``before`` yields must have been run."""
        stack = [
            self._device_for(value, device) if is_device else self._value_of(value, device)
            for value, is_device in zip(self._arguments, self._is_device, strict=True)
        ]
        drawn = {}
        for name, state in self.drawn.items():
            generator = drawn[device or name] = Generator(device or name)
            generator.state = state
        tokens = AUTOGRAD_STATE.set(self._autograd), AUTOCAST_STATE.set(self._autocast)
        try:
            with ExitStack() as blocks:
                blocks.enter_context(ForceDispatchKeyGuard(*self._keys))
                blocks.enter_context(with_default_generators(drawn))
                self._op.call_boxed(stack)
        except BaseException as error:
            error.add_note(f"raised by {self._op.name}, whose call was recorded by deferred_init")
            raise
        finally:
            AUTOGRAD_STATE.reset(tokens[0])
            AUTOCAST_STATE.reset(tokens[1])
        self._results[device] = list(_flat(stack))

    def _device_for(self, recorded: str | None, device: str | None) -> str | None:
        if device is None or (recorded is None and not self._makes_new):
            return recorded
        return device

    def _value_of(self, noted: Any, device: str | None) -> Any:
        if isinstance(noted, list):
            return [self._value_of(each, device) for each in noted]
        if type(noted) is _Drawn:
            generator = Generator(device or noted.device, key_set=None if device else noted.key_set)
            generator.state = noted.state
            return generator
        if type(noted) is _Real:
            return self._real(noted, device)
        if type(noted) is not _Fake:
            return noted
        call, place, _ = noted.recorded
        if noted.is_tensor:
            return call.tensor(place, device, noted.requires_grad)
        return call.array(place, device)

    def _real(self, noted: _Real, device: str | None) -> Any:
        value = noted.value
        if not isinstance(value, Tensor):
            return value if device is None or not value.shape else on_device(value, device)
        if version_of(value) != noted.version:
            raise ArgumentError(
                f"an argument of {self._op.name} was written to after the call was recorded, so "
                "the result of the call can no longer be computed",
                operator=str(self._op.name),
            )
        return value if device is None or not value.shape else value.to(device)


def replay(recorded: Recorded, device: str | None) -> None:
    """Run the calls that a recorded array depends on, on ``device``; None: on the devices recorded.

    Raises ArgumentError if an argument with elements has been written to since, DeviceError, and
    the errors of the calls.
    """
    with _replaying:
        found: dict[int, RecordedCall] = {}
        todo = [recorded.call, *recorded.storage.writers]
        while todo:
            call = todo.pop()
            if call.time not in found and not call.is_done(device):
                found[call.time] = call
                todo += call.before()
        for time in sorted(found):
            found[time].run(device)


def _flat(values: Sequence[Any]) -> Iterator[Any]:
    for value in values:
        if type(value) in (list, tuple):
            yield from _flat(value)
        else:
            yield value
