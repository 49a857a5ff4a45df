"""The backends that are registered in this process."""

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
"""The keys of every instance of a plain array type that has been seen. Types come and go one at a
time, so that generated code may read it without a lock."""

# Protects the order of changes; readers see a whole tuple. The newest first.
_mutex = threading.Lock()
_backends: tuple[ArrayBackend, ...] = ()
# Which of them has the arrays of a class, once it has been asked.
_owners: dict[type, ArrayBackend] = {}
# Those whose kernels run in blocks.
_with_blocks: tuple[ArrayBackend, ...] = ()
# Those that make no arrays any more, as long as there are some: these know of them.
_retired: tuple[weakref.ref[ArrayBackend], ...] = ()
_collected: ContextVar[list[BackendRegistration] | None]
_collected = ContextVar("opdispatch_collected_backends", default=None)
# Those that make the arrays of this task before all others do.
_preferred: ContextVar[tuple[ArrayBackend, ...]]
_preferred = ContextVar("opdispatch_preferred_backends", default=())


class BackendRegistration:
    """Result of ``register_backend``. Any thread may use it."""

    def __init__(self, backend: ArrayBackend) -> None:
        self.backend = backend

    def open(self) -> None:
        """Put the backend before all others."""
        with _mutex:
            self._publish((self.backend, *self._others()))

    def open_behind(self) -> None:
        """Put it behind those for its type of device: its arrays are known, others are made."""
        kind = self.backend.device_type
        with _mutex:
            others = self._others()
            alike = [n + 1 for n, each in enumerate(others) if each.device_type == kind]
            place = max(alike, default=0)
            self._publish((*others[:place], self.backend, *others[place:]))

    def close(self) -> None:
        """Undo the registration: its arrays are no longer tensors. Idempotent."""
        with _mutex:
            self._publish(self._others())
            self._forget_types()

    def retire(self) -> None:
        """Stop making arrays; those made already stay tensors. Idempotent.

        It is forgotten with the last of them, and with every other reference to it.
        """
        with _mutex:
            self._publish(self._others(), weakref.ref(self.backend))
            self._forget_types()

    def _forget_types(self) -> None:
        for cls in list(PLAIN_KEY_BITS):  # at once: calls may see another type meanwhile
            if self.backend.owns(cls):
                PLAIN_KEY_BITS.pop(cls, None)

    def _others(self) -> tuple[ArrayBackend, ...]:
        return tuple(other for other in _backends if other is not self.backend)

    def _publish(
        self, backends: tuple[ArrayBackend, ...], *retired: weakref.ref[ArrayBackend]
    ) -> None:
        global _backends, _owners, _retired, _with_blocks
        _retired = (*retired, *_retired)  # at no time is an array of none
        _backends = backends
        _owners = {}  # after them: see find_backend
        others = (each for each in _retired if each() not in (None, self.backend))
        _retired = (*retired, *others)
        _with_blocks = tuple(
            each for each in backends if type(each).kernel_block is not ArrayBackend.kernel_block
        )


def register_backend(backend: ArrayBackend) -> BackendRegistration:
    """Make the arrays of a backend tensors, in this process, until the registration is closed.

    Of several for one type of device the newest makes the arrays that arrive for it. What a kernel
    library registers when it is imported comes and goes with the library: before it is published,
    the import alone has its arrays made by it. Raises DeviceError if its ``device_type`` is none.
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
    """Collect the registrations that are made in the block, in this thread.

    Close them if the block raises.

    They are behind older ones until they are opened.
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
    """Let these backends make the arrays of the block, in this task, before any newer ones.

    Kernels know the arrays of their own library's backend, and not those of the next version's.
    """
    chosen = tuple(each.backend for each in registrations)
    token = _preferred.set((*chosen, *_preferred.get()))
    try:
        yield
    finally:
        _preferred.reset(token)


def backends() -> tuple[ArrayBackend, ...]:
    """Return the registered backends, the newest first."""
    return _backends


def find_backend(cls: type) -> ArrayBackend | None:
    """Return the backend whose arrays are of that class, even a retired one.

    None if there is none.
    """
    owners = _owners  # before the backends: what is noted in it, is of those or of newer ones
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
    """Return the device error behind a kernel's exception (``ArrayBackend.explain``), or None."""
    return next((found for each in _backends if (found := each.explain(error))), None)


@contextmanager
def device_errors(device: str) -> Iterator[None]:
    """Convert errors that the backend of ``device`` raises in the block to DeviceError."""
    try:
        yield
    except OpdispatchError:
        raise
    except Exception as error:  # a library's code: it raises what it likes
        raise explain_device_error(error) or DeviceError(
            f"the backend for arrays on {device!r} raised {type(error).__name__}: {error}"
        ) from error


def find_lost_device() -> DeviceLostError | None:
    """Return the error of a device that this process has lost, for which it should end.

    None if there is none. None: it need not.
    """
    return next((each.lost for each in _backends if each.lost is not None), None)


def use_device(device: str) -> None:
    """Set the device that kernels use unless their arguments are on another one."""
    backend_of_device(device).home = device


def backends_with_blocks() -> tuple[ArrayBackend, ...]:
    """Return those whose kernels run in blocks: see ``ArrayBackend.kernel_block``."""
    return _with_blocks


def device_of(array: Any) -> str:
    """Return the device of an array of any backend. Raises TypeError if it is of none."""
    backend = find_backend(type(array))
    if backend is None:
        raise TypeError(f"no backend has arrays of type {type(array).__qualname__}")
    return backend.device_of(array)
