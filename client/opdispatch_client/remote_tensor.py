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
from collections.abc import Awaitable, Callable, Iterable, Sequence
from types import TracebackType
from typing import Any, NoReturn, Self

import numpy as np

from opdispatch import DispatchKey, DispatchKeySet, ForceDispatchKeyGuard
from opdispatch.arrays import LAYOUTS, register_tensor_type
from opdispatch.dispatch_key_set import AUTOGRAD_KEYSET
from opdispatch.errors import ArgumentError
from opdispatch.local_dispatch_key_set import local_dispatch_key_set_is_default
from opdispatch.operator_handle import OperatorHandle
from opdispatch.tensor_operators import TensorOperators
from opdispatch.torch_dispatch_mode import keys_outside_modes
from opdispatch.tracing_state import note_reading
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
        state = " closed" if self.is_closed else " gone" if self._lease.why_over else ""
        return (
            f"<{type(self).__name__} {self.dtype} {list(self.shape)}{device} in "
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


CallRemotely = Callable[[str, tuple[Any, ...], dict[str, Any]], Any]
"""Calls an operator; tensors among the results stay where they are."""


class RemoteTensor(RemoteValue, TensorOperators):
    """A tensor that stays in its interpreter, for a blocking session.

    ``numpy()`` gets its elements, as do NumPy's functions and ``from_dlpack``. Operators of this
    process, those of ``opdispatch.array_api`` and Python's own (``x + 1``, ``x[0]``) among them,
    run where the tensor is, if it is one of their arguments; their results stay there. It is a
    context manager that closes it.
    """

    __slots__ = ("_call", "_fetch")

    key_bits = DispatchKeySet.of(DispatchKey.Python).bits
    __hash__ = object.__hash__  # type: ignore[assignment]

    def __init__(
        self,
        number: bytes,
        facts: RemoteFacts,
        interpreter: str,
        lease: Lease,
        fetch: Callable[[RemoteTensor], Array],
        call: CallRemotely,
    ) -> None:
        super().__init__(number, facts, interpreter, lease)
        self._fetch = fetch
        self._call = call

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
        call = _first_of(cls, [*args, *kwargs.values()])._call
        if local_dispatch_key_set_is_default():
            return call(str(func.name), args, kwargs)
        included, excluded = keys_outside_modes()
        with ForceDispatchKeyGuard(included, excluded - _RECORDING):
            return call(str(func.name), args, kwargs)

    def numpy(self) -> Array:
        """Its elements, as an array of the caller's own. Raises RemoteValueGoneError."""
        note_reading(self, "the elements of a remote tensor")
        return self._fetch(self)

    def to_device(self, device: str, /, *, stream: Any = None) -> Self:
        """Itself, if it is there: it does not leave its interpreter's device.

        Raises ArgumentError for another device.
        """
        if stream is not None or device not in (self.device, self.device.partition(":")[0]):
            raise ArgumentError(
                f"a remote tensor on {self.device!r} cannot be moved to {device!r}",
                hint="get its elements with numpy(), and put them into an interpreter with that "
                "device",
            )
        return self

    @property
    def array(self) -> Array:
        """``numpy()``."""
        return self._fetch(self)  # whoever asks by a number has noted it

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
        return self.__array__().__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)  # what is fetched is in this host's memory

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
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
    """A tensor that stays in its interpreter, for an asyncio session: ``await t.numpy()``."""

    __slots__ = ("_fetch",)

    def __init__(
        self,
        number: bytes,
        facts: RemoteFacts,
        interpreter: str,
        lease: Lease,
        fetch: Callable[[AsyncRemoteTensor], Awaitable[Array]],
    ) -> None:
        super().__init__(number, facts, interpreter, lease)
        self._fetch = fetch

    async def numpy(self) -> Array:
        """Its elements, as an array of the caller's own. Raises RemoteValueGoneError."""
        return await self._fetch(self)


def remote_from_proto(message: values_pb2.RemoteTensor, at: str) -> tuple[bytes, RemoteFacts, str]:
    """The first three arguments of a RemoteValue. Raises WireError."""
    return message.id, facts_from_proto(message, at=at), message.interpreter
