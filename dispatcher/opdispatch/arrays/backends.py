"""The registry of this process's array backends."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

from opdispatch.arrays.backend import ArrayBackend
from opdispatch.arrays.devices import split_device
from opdispatch.errors import DeviceError, DeviceLostError, OpdispatchError

T = TypeVar("T")

PLAIN_KEY_BITS: dict[type, int] = {}
"""Cache of the key bits of plain array types. Entries are added and removed one at a time, so that
generated code may read it without a lock."""

# Serializes changes. Tuples are replaced as a whole, so readers need no lock. Newest first.
_mutex = threading.Lock()
_backends: tuple[ArrayBackend, ...] = ()
# Cache of the backend that owns a class.
_owners: dict[type, ArrayBackend] = {}
# The backends that define kernel_block.
_with_blocks: tuple[ArrayBackend, ...] = ()
# Backends that make no more arrays but whose existing arrays are still tensors. Weak: the arrays
# keep their backend alive.
_retired: tuple[weakref.ref[ArrayBackend], ...] = ()
_collected: ContextVar[list[BackendRegistration] | None]
_collected = ContextVar("opdispatch_collected_backends", default=None)
# Backends that make this task's arrays in preference to registered ones.
_preferred: ContextVar[tuple[ArrayBackend, ...]]
_preferred = ContextVar("opdispatch_preferred_backends", default=())


class BackendRegistration:
    """Registration of one backend, as returned by ``register_backend``. Thread-safe."""

    def __init__(self, backend: ArrayBackend) -> None:
        self.backend = backend

    def open(self) -> None:
        """Register the backend ahead of all others."""
        with _mutex:
            self._publish((self.backend, *self._others()))

    def open_behind(self) -> None:
        """Register the backend behind others for its device type.

        Its arrays are tensors, but the others make the arrays for the device.
        """
        kind = self.backend.device_type
        with _mutex:
            others = self._others()
            alike = [n + 1 for n, each in enumerate(others) if each.device_type == kind]
            place = max(alike, default=0)
            self._publish((*others[:place], self.backend, *others[place:]))

    def close(self) -> None:
        """Unregister the backend: its arrays are no longer tensors. Idempotent."""
        with _mutex:
            self._publish(self._others())
            self._forget_types()

    def retire(self) -> None:
        """Make no more arrays by the backend; its existing arrays remain tensors. Idempotent.

        The registry then only has a weak reference to the backend.
        """
        with _mutex:
            self._publish(self._others(), weakref.ref(self.backend))
            self._forget_types()

    def _forget_types(self) -> None:
        for cls in list(PLAIN_KEY_BITS):  # a copy: other threads may add types meanwhile
            if self.backend.owns(cls):
                PLAIN_KEY_BITS.pop(cls, None)

    def _others(self) -> tuple[ArrayBackend, ...]:
        return tuple(other for other in _backends if other is not self.backend)

    def _publish(
        self, backends: tuple[ArrayBackend, ...], *retired: weakref.ref[ArrayBackend]
    ) -> None:
        global _backends, _owners, _retired, _with_blocks
        _retired = (*retired, *_retired)  # first, so that a lookup always finds the backend
        _backends = backends
        _owners = {}  # after _backends, since find_backend reads _owners first
        others = (each for each in _retired if each() not in (None, self.backend))
        _retired = (*retired, *others)
        _with_blocks = tuple(
            each for each in backends if type(each).kernel_block is not ArrayBackend.kernel_block
        )


def register_backend(backend: ArrayBackend) -> BackendRegistration:
    """Make a backend's arrays tensors in this process until the registration is closed.

    If several backends have one device type, the newest makes the arrays received for it. A backend
    that a kernel library registers on import is loaded and unloaded with the library; until the
    library is published, it makes only the arrays of the import. Raises DeviceError for an invalid
    ``device_type``.
    """
    split_device(backend.device_type)
    registration = BackendRegistration(backend)
    collected = _collected.get()
    if collected is None:
        registration.open()
    else:
        registration.open_behind()
        _preferred.set((backend, *_preferred.get()))
        collected.append(registration)
    return registration


@contextmanager
def collected_backends() -> Iterator[list[BackendRegistration]]:
    """Yield a list to which backend registrations made in the block, in this task, are added.

    They rank behind older ones until they are opened, and are closed if the block raises.
    """
    collected: list[BackendRegistration] = []
    token = _collected.set(collected)
    try:
        with preferred_backends(()):
            yield collected
    except BaseException:
        for registration in collected:
            registration.close()
        raise
    finally:
        _collected.reset(token)


@contextmanager
def preferred_backends(registrations: Sequence[BackendRegistration]) -> Iterator[None]:
    """Prefer these backends for arrays made in the block, in this task, even to newer ones.

    A library's kernels expect arrays of its own backend, not of a newer version's.
    """
    chosen = tuple(each.backend for each in registrations)
    token = _preferred.set((*chosen, *_preferred.get()))
    try:
        yield
    finally:
        _preferred.reset(token)


def backends() -> tuple[ArrayBackend, ...]:
    """Return the registered backends, newest first, without retired ones."""
    return _backends


def find_backend(cls: type) -> ArrayBackend | None:
    """Return the backend, registered or retired, that owns the class ``cls``; None if none does."""
    owners = _owners  # before _backends, so that no older backend is cached in a newer dict
    if (owner := owners.get(cls)) is not None:
        return owner
    for backend in _backends:
        if backend.owns(cls):
            owners[cls] = backend
            return backend
    retired = (reference() for reference in _retired)
    return next((each for each in retired if each is not None and each.owns(cls)), None)


def backend_of_device(device: str) -> ArrayBackend:
    """Return the backend that makes arrays on ``device``. Raises DeviceError if there is none."""
    wanted, _ = split_device(device)
    for backend in (*_preferred.get(), *_backends):
        if backend.device_type == wanted:
            return backend
    known = ", ".join(sorted({backend.device_type for backend in _backends}))
    raise DeviceError(
        f"this process has no backend for arrays on {device!r}",
        hint=f"it has those of {known}; register another one with opdispatch.register_backend",
    )


def explain_device_error(error: BaseException) -> DeviceError | None:
    """Return the first DeviceError from the backends' ``explain``; None if none explains it."""
    return next((found for each in _backends if (found := each.explain(error))), None)


@contextmanager
def device_errors(device: str) -> Iterator[None]:
    """Convert exceptions raised in the block to DeviceError; OpdispatchErrors pass through."""
    try:
        yield
    except OpdispatchError:
        raise
    except Exception as error:  # array libraries may raise any exception
        raise explain_device_error(error) or DeviceError(
            f"the backend for arrays on {device!r} raised {type(error).__name__}: {error}"
        ) from error


def find_lost_device() -> DeviceLostError | None:
    """Return the error of a lost device, after which this process should end; None if none is."""
    return next((each.lost for each in _backends if each.lost is not None), None)


def use_device(device: str) -> None:
    """Set the default device of kernels for its device type.

    Raises DeviceError if no backend has that device type.
    """
    backend_of_device(device).home = device


def backends_with_blocks() -> tuple[ArrayBackend, ...]:
    """Return the backends that define ``kernel_block``."""
    return _with_blocks


def device_of(array: Any) -> str:
    """Return the device of a dense array. Raises TypeError for any other value."""
    backend = find_backend(type(array))
    if backend is None:
        raise TypeError(f"no backend has arrays of type {type(array).__qualname__}")
    return backend.device_of(array)
