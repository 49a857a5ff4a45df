"""Calls that keep values in interpreters or fetch them, and runs of programs, for asyncio."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from typing import Any

import numpy as np

from opdispatch_client.aio.remote_tensor import AsyncRemoteTensor
from opdispatch_client.aio.value_lease import AsyncValueLease
from opdispatch_client.endpoint import Endpoint
from opdispatch_client.lanes.call_plan import PlannedArguments
from opdispatch_client.operator_call import Call, OperatorCall
from opdispatch_client.planned_keep import NewValue, PlannedKeep
from opdispatch_client.program_call import ProgramCall, fetch, move, put
from opdispatch_client.remote_value import RemoteValue, remote_from_proto
from opdispatch_client.value_lease import Lease, in_time, released_on_error
from opdispatch_wire.v1 import remote_pb2, values_pb2
from opdispatch_wire.values import DecodeRemote

Array = np.ndarray[Any, Any]


class AsyncRemoteCalls:
    """The part of an asyncio session for remote values. ``make`` makes one call."""

    def __init__(
        self,
        endpoint: Endpoint,
        lease: AsyncValueLease,
        make: Callable[[Call], Awaitable[Any]],
    ) -> None:
        self._endpoint = endpoint
        self._lease = lease
        self.make = make

    async def close(self) -> None:
        """Release every value."""
        await self._lease.close()

    async def call(
        self,
        operator: str,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        *,
        retry: bool | None = None,
        deadline: float | None = None,
        plan_key: Hashable | None = None,
    ) -> Any:
        """Call an operator; tensors among the results stay in the interpreter.

        It is retried as the session's calls are, unless ``retry`` says otherwise.
        """
        retry = self._endpoint.retry if retry is None else retry
        lease, keep, make = await self.open(deadline=deadline)
        with released_on_error(lease, keep):
            call = OperatorCall(
                operator,
                args,
                kwargs,
                retry=retry,
                keep=keep,
                make=make,
                deadline=deadline,
                plan_key=None if plan_key is None else (plan_key, lease.session),
                new=self.new_of(lease),
            )
            return await self.make(call)

    def keep_planned(self, planned: PlannedArguments) -> bool:
        """Make a planned call keep its results; return False without retries or an open lease."""
        lease = self._lease.current
        if lease is None or lease.why_over or not self._endpoint.retry:
            return False
        keep = planned.keep = PlannedKeep(lease, self.new_of)
        planned.key = (planned.key, lease.session)
        planned.leaves.append(keep.prefix)
        return True

    def new_of(self, lease: Lease) -> NewValue:
        """Return the function that creates the remote tensors of a planned call."""
        return functools.partial(AsyncRemoteTensor, lease=lease, elsewhere=self)

    async def put(
        self, array: Any, on: str | None, device: str | None, deadline: float | None
    ) -> AsyncRemoteTensor:
        """Put an array into an interpreter."""
        lease, keep, make = await self.open(on, device, deadline=deadline)
        with released_on_error(lease, keep):
            [tensor] = await self.make(put(array, keep, make, deadline))
            return tensor  # type: ignore[no-any-return]

    async def run_program(
        self, data: bytes, inputs: Sequence[Any], keeps: bool, *, deadline: float | None = None
    ) -> list[Any]:
        """Run a program. A program without steps and outputs is not sent."""
        if not data:
            return []
        retry, what = self._endpoint.retry, "the program"
        if not keeps:
            call = ProgramCall(data, what, inputs, None, retry=retry, deadline=deadline)
            return await self.make(call)  # type: ignore[no-any-return]
        lease, keep, make = await self.open(deadline=deadline)
        with released_on_error(lease, keep):
            call = ProgramCall(data, what, inputs, make, keep=keep, retry=retry, deadline=deadline)
            return await self.make(call)  # type: ignore[no-any-return]

    async def open(
        self, on: str | None = None, device: str | None = None, *, deadline: float | None = None
    ) -> tuple[Lease, remote_pb2.Keep, DecodeRemote]:
        """Return the lease of a call's kept values, where they are kept, and their constructor."""
        with in_time(deadline, self._endpoint) as timeout:
            lease = await self._lease.get(timeout)

        def make(message: values_pb2.RemoteTensor, at: str, writable: bool) -> AsyncRemoteTensor:
            return AsyncRemoteTensor(*remote_from_proto(message, at), lease, self)

        return lease, lease.new_keep(on, device), make

    # -- requests of remote tensors ----------------------------------------------------------------

    async def fetch(self, tensor: RemoteValue, deadline: float | None = None) -> Array:
        """Return the elements as an array."""
        [array] = await self.make(fetch(tensor, deadline))
        return array  # type: ignore[no-any-return]

    async def move(
        self, tensor: RemoteValue, device: str, deadline: float | None = None
    ) -> AsyncRemoteTensor:
        """Return the same value on another device."""
        lease, keep, make = await self.open(device=device, deadline=deadline)
        with released_on_error(lease, keep):
            retry = self._endpoint.retry
            call = move(tensor, keep, make, retry=retry, deadline=deadline)
            [moved] = await self.make(call)
            return moved  # type: ignore[no-any-return]
