"""Tensors that stay in the interpreter that made them."""

from __future__ import annotations

import weakref
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any, NoReturn, Self

import numpy as np

from opdispatch_client.value_lease import Lease
from opdispatch_wire.errors import RemoteValueGoneError
from opdispatch_wire.remote_values import RemoteFacts, facts_from_proto
from opdispatch_wire.v1 import values_pb2

Array = np.ndarray[Any, Any]


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
        """Where it was made; it moves when an operator is called with it that is not there."""
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
    def size(self) -> int:
        """The number of elements."""
        return self.nbytes // self.dtype.itemsize if self.dtype.itemsize else 0

    @property
    def nbytes(self) -> int:
        """The size of the elements."""
        return self._facts.nbytes

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


class RemoteTensor(RemoteValue):
    """A tensor that stays in its interpreter, for a blocking session.

    ``numpy()`` gets its elements, as do NumPy's functions and ``from_dlpack``. It is a context
    manager that closes it.
    """

    __slots__ = ("_fetch",)

    def __init__(
        self,
        number: bytes,
        facts: RemoteFacts,
        interpreter: str,
        lease: Lease,
        fetch: Callable[[RemoteTensor], Array],
    ) -> None:
        super().__init__(number, facts, interpreter, lease)
        self._fetch = fetch

    def numpy(self) -> Array:
        """Its elements, as an array of the caller's own. Raises RemoteValueGoneError."""
        return self._fetch(self)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        if copy is False:
            raise ValueError("the elements of a remote tensor are elsewhere: they are a copy")
        array = self.numpy()
        return array if dtype is None else array.astype(dtype, copy=False)

    def __dlpack__(self, **options: Any) -> Any:
        return self.numpy().__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)  # what is fetched is in this host's memory

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of a 0-d tensor")
        return self.shape[0]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


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
