"""Tensors that stay in the interpreter that made them.

Note [Calculating elsewhere]
    A blocking session's remote tensor is a tensor to the dispatcher of this process, too: one
    with the key Python. Its kernel there is that of any class which handles operators itself, and
    makes the same call through the session, with `remote`. So ``opdispatch.array_api`` and whatever
    else calls operators of this process calculates where the tensor is. What was switched off on
    the way here, by modes or for the sake of another argument that is a tensor of this process,
    is not switched off there: whether the call is recorded is for ``no_grad`` to say.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn, Protocol, Self

import numpy as np

from opdispatch import DispatchKey, DispatchKeySet, ForceDispatchKeyGuard
from opdispatch.arrays import LAYOUTS, give_by_dlpack, register_tensor_type, split_device
from opdispatch.dispatch_key_set import AUTOGRAD_KEYSET
from opdispatch.errors import ArgumentError, DeviceError
from opdispatch.local_dispatch_key_set import local_dispatch_key_set_is_default
from opdispatch.operator_handle import OperatorHandle
from opdispatch.tensor_operators import TensorOperators, is_operand, namespace
from opdispatch.torch_dispatch_mode import keys_outside_modes
from opdispatch.tracing_state import is_traced, note_reading
from opdispatch_client.call_options import deadline_in
from opdispatch_client.value_lease import Lease
from opdispatch_wire.errors import RemoteValueGoneError
from opdispatch_wire.remote_values import RemoteFacts, facts_from_proto
from opdispatch_wire.v1 import values_pb2

Array = np.ndarray[Any, Any]
_RECORDING = AUTOGRAD_KEYSET.add(DispatchKey.ADInplaceOrView)


class RemoteValue:
    """What the blocking and the asyncio session's remote tensors have in common.

    The value lives until this object is closed or collected, or its session ends. It is an
    argument of calls like any tensor.
    """

    __slots__ = ("__weakref__", "_facts", "_finalizer", "_lease", "_number", "interpreter")

    def __init__(self, number: bytes, facts: RemoteFacts, interpreter: str, lease: Lease) -> None:
        self._number = number
        self._facts = facts
        self._lease = lease
        self.interpreter = interpreter
        """Where it is, as of the last call with it that has come back: see ``note_interpreter``."""
        # See Note [Letting go of a remote tensor].
        self._finalizer = weakref.finalize(self, lease.release, number)
        self._finalizer.atexit = False  # the session ends with the process

    @property
    def id(self) -> str:
        """Its name in error messages."""
        return self._number.hex()

    @property
    def shape(self) -> tuple[int, ...]:
        """The extent of each dimension, in elements."""
        return self._facts.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """The element type."""
        return self._facts.dtype

    @property
    def device(self) -> str:
        """``"cpu"``, ``"cuda:N"``, ``"privateuseone:N"``, ..."""
        return self._facts.device

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return len(self._facts.shape)

    @property
    def size(self) -> int | None:
        """The number of elements; None for a nested tensor."""
        return None if None in self.shape else math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """The size of the elements; of other layouts than the dense one, of all parts."""
        return self._facts.nbytes

    @property
    def requires_grad(self) -> bool:
        """Whether calls with it were recorded, or are to be: as of when it was made."""
        return self._facts.requires_grad

    @property
    def layout(self) -> str:
        """As ``Tensor.layout``: ``"strided"``, ``"sparse_coo"``, ``"sparse_csr"``, ``"jagged"``."""
        layout = LAYOUTS.get(self._facts.layout)
        return "strided" if layout is None else layout.pytorch_name

    @property
    def is_closed(self) -> bool:
        """Whether it was closed."""
        return not self._finalizer.alive

    def _is_on(self, device: Any) -> bool:
        """Whether it is there. Raises DeviceError for what is no text, or none at all."""
        try:
            kind, number = split_device(device)
        except DeviceError:
            if not isinstance(device, str) or not device:
                raise
            return False  # the daemon says which there are
        here, place = split_device(self.device)
        return kind == here and (kind == "cpu" or number in (None, place))

    def close(self) -> None:
        """Lets go of the value. Idempotent; using it afterwards raises RemoteValueGoneError."""
        self._finalizer()

    def __opdispatch_fill_value__(self, message: values_pb2.Value, at: str) -> None:
        why = "it was closed" if self.is_closed else self._lease.why_over
        if why:
            raise RemoteValueGoneError(
                f"{at}: the remote tensor {self.id} of interpreter {self.interpreter} is gone: "
                f"{why}",
                value=self.id,
                interpreter=self.interpreter,
                reason=why,
            )
        message.remote.id = self._number
        message.remote.session = self._lease.session

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"a {type(self).__name__} can be neither pickled nor copied: it is the only handle to "
            "its value; put() makes another value of it"
        )

    def __repr__(self) -> str:
        device = "" if self.device == "cpu" else f", device={self.device!r}"
        layout = f", layout={self._facts.layout!r}" if self._facts.layout else ""
        state = " closed" if self.is_closed else " gone" if self._lease.why_over else ""
        return (
            f"<{type(self).__name__} {self.dtype} {list(self.shape)}{device}{layout} in "
            f"{self.interpreter}{state}>"
        )


def note_interpreter(values: Iterable[Any], interpreter: str) -> None:
    """Notes where a call has run, of the remote tensors among its arguments: it moved them there.

    The daemon alone knows where a value is; of two calls at a time, the last to come back counts.
    """
    for value in values:
        if isinstance(value, RemoteValue):
            value.interpreter = interpreter
        elif isinstance(value, list | tuple):
            note_interpreter(value, interpreter)


class Elsewhere(Protocol):
    """What a session does with its remote tensors."""

    def fetch(self, tensor: RemoteTensor, deadline: float | None = None) -> Array:
        """The elements."""

    def call_where_it_is(self, operator: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Calls an operator; tensors among the results stay where they are."""

    def move(
        self, tensor: RemoteTensor, device: str, deadline: float | None = None
    ) -> RemoteTensor:
        """The same on another device."""


class AsyncElsewhere(Protocol):
    """The same of an asyncio session, which calls nothing by itself."""

    async def fetch(self, tensor: AsyncRemoteTensor, deadline: float | None = None) -> Array:
        """The elements."""

    async def move(
        self, tensor: AsyncRemoteTensor, device: str, deadline: float | None = None
    ) -> AsyncRemoteTensor:
        """The same on another device."""


class RemoteTensor(RemoteValue, TensorOperators):
    """A tensor that stays in its interpreter, for a blocking session.

    ``numpy()`` gets its elements, as do NumPy's functions and ``from_dlpack``. Operators of this
    process, those of ``opdispatch.array_api`` and Python's own (``x + 1``, ``x[0]``) among them,
    run where the tensor is, if it is one of their arguments; their results stay there. It is a
    context manager that closes it.
    """

    __slots__ = ("_elsewhere",)

    key_bits = DispatchKeySet.of(DispatchKey.Python).bits
    __hash__ = object.__hash__  # type: ignore[assignment]

    def __init__(
        self,
        number: bytes,
        facts: RemoteFacts,
        interpreter: str,
        lease: Lease,
        elsewhere: Elsewhere,
    ) -> None:
        super().__init__(number, facts, interpreter, lease)
        self._elsewhere = elsewhere

    @classmethod
    def __torch_dispatch__(
        cls,
        func: OperatorHandle,
        types: tuple[type, ...],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Calls the operator in the session. See Note [Calculating elsewhere]."""
        kwargs = kwargs or {}
        call = _first_of(cls, [*args, *kwargs.values()])._elsewhere.call_where_it_is
        if local_dispatch_key_set_is_default():
            return call(str(func.name), args, kwargs)
        included, excluded = keys_outside_modes()
        with ForceDispatchKeyGuard(included, excluded - _RECORDING):
            return call(str(func.name), args, kwargs)

    def numpy(self, *, timeout: float | None = None) -> Array:
        """Its elements, as an array of the caller's own. Raises RemoteValueGoneError.

        That may take `timeout` seconds, instead of the session's: see ``Session.with_options``.
        """
        deadline = deadline_in(timeout)
        note_reading(self, "the elements of a remote tensor")
        return self._elsewhere.fetch(self, deadline)

    def to(self, device: str, *, timeout: float | None = None) -> Self:
        """The tensor on ``device``: itself, if it is there; else a new remote tensor.

        It is moved by the daemon: within its interpreter, if that has the device, and else to one
        that has it, where the new tensor is then; this one stays where it is. Without a number,
        such as ``"cuda"``, it is that interpreter's own device of that type. Within an interpreter
        the move is recorded, and gradients go back; from another one it comes without its history.
        Raises DeviceError, which names the devices that there are, DeviceMemoryError,
        RemoteLimitError and RemoteValueGoneError. The move may take `timeout` seconds, instead of
        the session's.
        """
        deadline = deadline_in(timeout)
        if self._is_on(device):
            return self
        moved: Any
        if is_traced(self):  # by an operator, which is recorded
            moved = namespace().astype(self, self.dtype, device=device)
        else:
            moved = self._elsewhere.move(self, device, deadline)
        return moved  # type: ignore[no-any-return]

    def to_device(self, device: str, /, *, stream: Any = None) -> Self:
        """``to``, by the array API standard's name. Raises ArgumentError for a stream."""
        _refuse_stream(stream)
        return self.to(device)

    def cpu(self, *, timeout: float | None = None) -> Self:
        """``to("cpu")``."""
        return self.to("cpu", timeout=timeout)

    def detach(self) -> Self:
        """The same elements, of which nothing is recorded: a call of ``array::detach``."""
        from opdispatch.array_api.operators import OPERATORS

        detached: Self = OPERATORS.detach.default(self)
        return detached

    @property
    def array(self) -> Array:
        """``numpy()``."""
        return self._elsewhere.fetch(self)  # whoever asks by a number has noted it

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        if copy is False:
            raise ValueError("the elements of a remote tensor are elsewhere: they are a copy")
        if self._facts.layout:
            raise ArgumentError(
                f"a {self._facts.layout} tensor is no dense array", hint="get it with numpy()"
            )
        array = self.numpy()
        return array if dtype is None else array.astype(dtype, copy=False)

    def __dlpack__(self, **options: Any) -> Any:
        if options.get("copy") is False:
            raise BufferError("the elements of a remote tensor are elsewhere: they are a copy")
        return give_by_dlpack(self.__array__(), **options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)  # what is fetched is in this host's memory

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


register_tensor_type(RemoteTensor)


def _first_of(cls: type[RemoteTensor], values: Sequence[Any]) -> RemoteTensor:
    """The first such tensor, also in lists."""
    for value in values:
        if isinstance(value, cls):
            return value
        if isinstance(value, list) and any(isinstance(item, cls) for item in value):
            return _first_of(cls, value)
    raise AssertionError("a call that arrives at Python has a tensor of a class that handles it")


class AsyncRemoteTensor(RemoteValue):
    """A tensor that stays in its interpreter, for an asyncio session: ``await t.numpy()``.

    What cannot wait for its elements raises ArgumentError: Python's operators and conversions, and
    NumPy. In sets and as a key it is itself, as any object.
    """

    __slots__ = ("_elsewhere",)

    def _refuse(self, *args: Any, **options: Any) -> NoReturn:
        raise ArgumentError(
            "the elements of an AsyncRemoteTensor are elsewhere, and nothing here waits for them",
            hint="calculate with what `await tensor.numpy()` gives, or call operators with it",
        )

    def _calculate(self, other: object) -> Any:
        if isinstance(other, AsyncRemoteTensor) or is_operand(other):
            self._refuse()
        return NotImplemented

    __bool__ = __int__ = __float__ = __complex__ = _refuse
    __array__ = __array_ufunc__ = _refuse
    __neg__ = __pos__ = __abs__ = __invert__ = _refuse
    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = _calculate
    __add__ = __sub__ = __mul__ = __matmul__ = __truediv__ = __floordiv__ = __mod__ = _calculate
    __pow__ = __and__ = __or__ = __xor__ = __lshift__ = __rshift__ = _calculate
    __radd__ = __rsub__ = __rmul__ = __rmatmul__ = __rtruediv__ = __rfloordiv__ = _calculate
    __rmod__ = __rpow__ = __rand__ = __ror__ = __rxor__ = __rlshift__ = __rrshift__ = _calculate
    __hash__ = object.__hash__

    def __init__(
        self,
        number: bytes,
        facts: RemoteFacts,
        interpreter: str,
        lease: Lease,
        elsewhere: AsyncElsewhere,
    ) -> None:
        super().__init__(number, facts, interpreter, lease)
        self._elsewhere = elsewhere

    async def numpy(self, *, timeout: float | None = None) -> Array:
        """Its elements, as an array of the caller's own; see ``RemoteTensor.numpy``."""
        return await self._elsewhere.fetch(self, deadline_in(timeout))

    async def to(self, device: str, *, timeout: float | None = None) -> AsyncRemoteTensor:
        """The tensor on ``device``; see ``RemoteTensor.to``."""
        deadline = deadline_in(timeout)
        return self if self._is_on(device) else await self._elsewhere.move(self, device, deadline)

    async def cpu(self, *, timeout: float | None = None) -> AsyncRemoteTensor:
        """``to("cpu")``."""
        return await self.to("cpu", timeout=timeout)

    async def to_device(self, device: str, /, *, stream: Any = None) -> AsyncRemoteTensor:
        """``to``, by the array API standard's name. Raises ArgumentError for a stream."""
        _refuse_stream(stream)
        return await self.to(device)


def _refuse_stream(stream: Any) -> None:
    if stream is not None:
        raise ArgumentError(
            "to_device takes no stream; the interpreter uses the current one of the device"
        )


def remote_from_proto(message: values_pb2.RemoteTensor, at: str) -> tuple[bytes, RemoteFacts, str]:
    """The first three arguments of a RemoteValue. Raises WireError."""
    return message.id, facts_from_proto(message, at=at), message.interpreter
