"""Methods of an asyncio session's remote tensors that fetch elements or move them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, Self

import numpy as np

from opdispatch.local_state.tracing_state import note_reading
from opdispatch_client.call_options import deadline_in
from opdispatch_client.remote_value import RemoteValue, refuse_stream

Array = np.ndarray[Any, Any]


class AsyncElsewhere(Protocol):
    """A session's operations on its remote tensors."""

    async def fetch(self, tensor: RemoteValue, deadline: float | None = None) -> Array:
        """Return the elements as an array."""

    async def call(
        self,
        operator: str,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        *,
        retry: bool | None = None,
    ) -> Any:
        """Call an operator; tensors among the results stay in the interpreter."""

    async def move(self, tensor: RemoteValue, device: str, deadline: float | None = None) -> Any:
        """Return the same value on another device."""


class AsyncTensorTransfers(RemoteValue):
    """A remote value that its session can fetch and move."""

    __slots__ = ()

    _elsewhere: AsyncElsewhere

    async def numpy(self, *, timeout: float | None = None) -> Array:
        """Return a copy of the elements as an array. Raises RemoteValueGoneError.

        It may take `timeout` seconds, instead of the session's: see ``AsyncSession.with_options``.
        """
        deadline = deadline_in(timeout)
        note_reading(self, "the elements of a remote tensor")
        return await self._elsewhere.fetch(self, deadline)

    async def to(self, device: str, *, timeout: float | None = None) -> Self:
        """Return the tensor on ``device``: itself, if it is there; else a new remote tensor.

        The daemon moves it: within its interpreter, if that has the device, and otherwise to an
        interpreter that has it, where the new tensor then is; this one stays where it is. A device
        without a number, such as ``"cuda"``, is the interpreter's own device of that type. A move
        within an interpreter is recorded for gradients; a move to another interpreter loses the
        history. Raises DeviceError, which lists the existing devices, DeviceMemoryError,
        RemoteLimitError and RemoteValueGoneError. The move may take `timeout` seconds, instead of
        the session's.
        """
        deadline = deadline_in(timeout)
        return self if self._is_on(device) else await self._move(device, deadline)

    async def to_device(self, device: str, /, *, stream: Any = None) -> Self:
        """Call ``to``, under the array API standard's name. Raises ArgumentError for a stream."""
        refuse_stream(stream)
        return await self.to(device)

    async def cpu(self, *, timeout: float | None = None) -> Self:
        """Return ``to("cpu")``."""
        return await self.to("cpu", timeout=timeout)

    async def _move(self, device: str, deadline: float | None) -> Any:
        return await self._elsewhere.move(self, device, deadline)
