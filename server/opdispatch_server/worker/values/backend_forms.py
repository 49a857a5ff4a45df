"""A value that an interpreter keeps, as an array of one backend at a time.

Note [Values of two versions]
    A value on a device is an array of some backend, which a library may provide. Kernels of the
    library's next version do not know such arrays, nor do those of the previous version after a
    rollback: they are given a copy, which becomes the value. That would lose what a call in
    progress then writes to the array that it was given. So a call declares before its kernel runs
    which values it writes to (``Tensor(a!)``), and is a writer of them until it has ended. While a
    value has writers, it keeps their form:

    - a call that reads it in another form gets a copy of its own, and runs concurrently with the
      write, as calls of one version do;
    - a call that writes to it in another form waits until the writers have ended.

    A call becomes a writer of all its values at once, and of none while it waits, so that calls
    with common values cannot deadlock. A kernel's nested calls get the array from the kernel, not
    from here. Values on the host are never copied, and no call waits for them.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from opdispatch.arrays import (
    ArrayBackend,
    backend_of_device,
    device_errors,
    find_backend,
    find_layout,
)
from opdispatch.arrays.layouts import elements_of
from opdispatch.autograd.variable import meta_of
from opdispatch.errors import DeviceError
from opdispatch.tensors.tensor import Tensor


class Form(NamedTuple):
    """A value, and the backend of its elements if they are on a device; None: on the host."""

    value: Any
    backend: ArrayBackend | None

    @classmethod
    def of(cls, value: Any) -> Form:
        """Return the form of a value on arrival."""
        backend = find_backend(type(elements_of(getattr(value, "array", value))))
        return cls(value, None if backend is None or backend.device_type == "cpu" else backend)

    @property
    def device(self) -> str:
        """The device, if it is not the host."""
        assert self.backend is not None, "values of the host stay what they are"
        return self.backend.device_of(elements_of(getattr(self.value, "array", self.value)))

    def find_wanted(self) -> ArrayBackend | None:
        """Return the backend that now makes arrays for its device, for this task.

        None: its own backend does.
        """
        if self.backend is None:
            return None
        try:
            wanted = backend_of_device(self.backend.device_type)
        except DeviceError:  # its library was unloaded, and may come back
            return None
        return None if wanted is self.backend else wanted

    def converted(self, wanted: ArrayBackend) -> Form:
        """Return the value on its device, by another backend: copied through host memory.

        Raises DeviceError, and DeviceMemoryError.
        """
        assert self.backend is not None, "values of the host stay what they are"
        array, device = getattr(self.value, "array", self.value), self.device
        layout = find_layout(type(array))
        parts = [array] if layout is None else layout.parts(array)
        with device_errors(device):
            moved = [wanted.from_host(self.backend.to_host(part), device) for part in parts]
        made = moved[0] if layout is None else layout.assemble(moved, layout.facts(array))
        if isinstance(self.value, Tensor):
            made = with_history_of(self.value, made)
        return Form(made, wanted)


class StoredValue:
    """One value. Its store's lock protects changes of all fields; ``form`` is read without it.

    Invariant: no other thread changes ``form`` while there are ``writers``, calls that may be
    writing to it, or while it ``is_changing``, because one thread is about to store another form.
    """

    __slots__ = (
        "form",
        "is_changing",
        "is_leaving",
        "is_released",
        "key",
        "next_place",
        "pins",
        "session",
        "unreached_place",
        "writers",
    )

    def __init__(self, form: Form, session: bytes, key: bytes) -> None:
        self.form = form
        self.session = session
        self.key = key
        self.writers = 0
        self.is_changing = False
        self.pins = 0
        """How many direct calls that have arrived will use it."""
        self.is_released = False
        """Whether it is dropped once it has no ``pins`` any more."""
        self.is_leaving = False
        """Whether another interpreter has asked for it to become its home, and has not failed."""
        self.next_place = 0
        """The latest place to which another interpreter has asked to move it."""
        self.unreached_place = 0
        """The latest place to which moving it has failed."""

    def note_next_place(self, place: int) -> None:
        """Note that another interpreter has asked for it, to store it at that place."""
        self.next_place = max(self.next_place, place)
        self.is_leaving = self.next_place > self.unreached_place

    def note_unreached_place(self, place: int) -> None:
        """Note that moving it to that place has failed; a late request for it may still come."""
        self.unreached_place = max(self.unreached_place, place)
        self.is_leaving = self.next_place > self.unreached_place

    @property
    def must_wait(self) -> bool:
        """Whether a call of this task that writes to the value has to wait for others."""
        return self.is_changing or (self.writers > 0 and self.form.find_wanted() is not None)


def with_history_of(tensor: Tensor, array: Any) -> Tensor:
    """Return a tensor over another array, with the same history."""
    shown = Tensor(array, keys=tensor.key_set)
    shown.autograd_meta = meta_of(tensor)
    shown.requires_grad_flag = tensor.requires_grad_flag
    return shown
