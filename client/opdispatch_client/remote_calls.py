"""How sessions keep values in interpreters, get them, and run programs."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

import grpc
import grpc.aio
import numpy as np

from opdispatch_client.endpoint import Endpoint
from opdispatch_client.one_loop import OneLoop
from opdispatch_client.operator_call import Call, OperatorCall
from opdispatch_client.program_call import ProgramCall, fetch, move, put
from opdispatch_client.remote_tensor import AsyncRemoteTensor, RemoteTensor, remote_from_proto
from opdispatch_client.value_lease import AsyncValueLease, Lease, ValueLease
from opdispatch_wire.errors import DaemonUnavailableError
from opdispatch_wire.status import late_answer_error
from opdispatch_wire.v1 import remote_pb2, values_pb2
from opdispatch_wire.values import DecodeRemote

Array = np.ndarray[Any, Any]
T = TypeVar("T")


class RemoteCalls:
    """The remote half of a blocking session. ``make`` makes one call and waits for it."""

    def __init__(
        self, endpoint: Endpoint, channel: grpc.Channel, make: Callable[[Call], Any]
    ) -> None:
        self._endpoint = endpoint
        self._lease = ValueLease(channel, endpoint)
        self.make = make

    def close(self) -> None:
        """Lets go of every value."""
        self._lease.close()

    def call(
        self,
        operator: str,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        *,
        retry: bool,
        deadline: float | None = None,
    ) -> Any:
        """Calls an operator; tensors among the results stay where they are."""
        with self._keeping(deadline=deadline) as (keep, make):
            call = OperatorCall(
                operator, args, kwargs, retry=retry, keep=keep, make=make, deadline=deadline
            )
            return self.make(call)

    def submit(
        self,
        operator: str,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        *,
        retry: bool,
        deadline: float | None = None,
        begin: Callable[[Callable[[], Call]], Future[Any]],
    ) -> Future[Any]:
        """``call``, which ``begin`` begins."""
        lease = self._get_lease(deadline)
        keep, make = lease.new_keep(), self._maker(lease)

        def release_on_error(future: Future[Any]) -> None:
            if future.cancelled() or future.exception() is not None:
                lease.release(keep.prefix)

        def make_call() -> Call:
            return OperatorCall(
                operator, args, kwargs, retry=retry, keep=keep, make=make, deadline=deadline
            )

        future = begin(make_call)
        future.add_done_callback(release_on_error)
        return future

    def put(
        self, array: Any, on: str | None, device: str | None, deadline: float | None
    ) -> RemoteTensor:
        """Puts an array into an interpreter."""
        with self._keeping(on, device, deadline=deadline) as (keep, make):
            [tensor] = self.make(put(array, keep, make, deadline))
            return tensor  # type: ignore[no-any-return]

    def run_program(
        self, data: bytes, inputs: Sequence[Any], keeps: bool, *, deadline: float | None = None
    ) -> list[Any]:
        """Runs a program. One that does nothing is not sent."""
        if not data:
            return []
        retry, what = self._endpoint.retry, "the program"
        if not keeps:
            call = ProgramCall(data, what, inputs, None, retry=retry, deadline=deadline)
            return self.make(call)  # type: ignore[no-any-return]
        with self._keeping(deadline=deadline) as (keep, make):
            call = ProgramCall(data, what, inputs, make, keep=keep, retry=retry, deadline=deadline)
            return self.make(call)  # type: ignore[no-any-return]

    def _get_lease(self, deadline: float | None) -> Lease:
        with _in_time(deadline, self._endpoint) as timeout:
            return self._lease.get(timeout)

    @contextlib.contextmanager
    def _keeping(
        self, on: str | None = None, device: str | None = None, *, deadline: float | None = None
    ) -> Iterator[tuple[remote_pb2.Keep, DecodeRemote]]:
        lease = self._get_lease(deadline)
        keep = lease.new_keep(on, device)
        with _released_on_error(lease, keep):
            yield keep, self._maker(lease)

    def _maker(self, lease: Lease) -> DecodeRemote:
        def make_tensor(message: values_pb2.RemoteTensor, at: str, writable: bool) -> RemoteTensor:
            facts = remote_from_proto(message, at)
            return RemoteTensor(*facts, lease, self)

        return make_tensor

    # -- what remote tensors ask for ------------------------------------------------------------

    def fetch(self, tensor: RemoteTensor, deadline: float | None = None) -> Array:
        """The elements."""
        [array] = self.make(fetch(tensor, deadline))
        return array  # type: ignore[no-any-return]

    def call_where_it_is(self, operator: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """``call``, run again or not as the session's calls are."""
        return self.call(operator, args, kwargs, retry=self._endpoint.retry)

    def move(
        self, tensor: RemoteTensor, device: str, deadline: float | None = None
    ) -> RemoteTensor:
        """The same on another device."""
        with self._keeping(device=device, deadline=deadline) as (keep, make):
            retry = self._endpoint.retry
            [moved] = self.make(move(tensor, keep, make, retry=retry, deadline=deadline))
            return moved  # type: ignore[no-any-return]


class AsyncRemoteCalls:
    """The remote half of an asyncio session. ``make`` makes one call."""

    def __init__(
        self,
        endpoint: Endpoint,
        channel: grpc.aio.Channel,
        make: Callable[[Call], Awaitable[Any]],
        loop: OneLoop,
    ) -> None:
        self._endpoint = endpoint
        self._loop = loop
        self._lease = AsyncValueLease(channel, endpoint)
        self.make = make

    async def close(self) -> None:
        """Lets go of every value."""
        await self._lease.close()

    async def call(
        self,
        operator: str,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        *,
        retry: bool,
        deadline: float | None = None,
    ) -> Any:
        """Calls an operator; tensors among the results stay where they are."""
        lease, keep = await self._open(deadline=deadline)
        with _released_on_error(lease, keep):
            make = self._maker(lease)
            call = OperatorCall(
                operator, args, kwargs, retry=retry, keep=keep, make=make, deadline=deadline
            )
            return await self.make(call)

    async def put(
        self, array: Any, on: str | None, device: str | None, deadline: float | None
    ) -> AsyncRemoteTensor:
        """Puts an array into an interpreter."""
        lease, keep = await self._open(on, device, deadline=deadline)
        with _released_on_error(lease, keep):
            [tensor] = await self.make(put(array, keep, self._maker(lease), deadline))
            return tensor  # type: ignore[no-any-return]

    async def run_program(
        self, data: bytes, inputs: Sequence[Any], keeps: bool, *, deadline: float | None = None
    ) -> list[Any]:
        """Runs a program. One that does nothing is not sent."""
        if not data:
            return []
        retry, what = self._endpoint.retry, "the program"
        if not keeps:
            call = ProgramCall(data, what, inputs, None, retry=retry, deadline=deadline)
            return await self.make(call)  # type: ignore[no-any-return]
        lease, keep = await self._open(deadline=deadline)
        with _released_on_error(lease, keep):
            make = self._maker(lease)
            call = ProgramCall(data, what, inputs, make, keep=keep, retry=retry, deadline=deadline)
            return await self.make(call)  # type: ignore[no-any-return]

    async def _open(
        self, on: str | None = None, device: str | None = None, *, deadline: float | None = None
    ) -> tuple[Lease, remote_pb2.Keep]:
        self._loop.check()
        with _in_time(deadline, self._endpoint) as timeout:
            lease = await self._lease.get(timeout)
        return lease, lease.new_keep(on, device)

    def _maker(self, lease: Lease) -> DecodeRemote:
        def make_tensor(
            message: values_pb2.RemoteTensor, at: str, writable: bool
        ) -> AsyncRemoteTensor:
            return AsyncRemoteTensor(*remote_from_proto(message, at), lease, self)

        return make_tensor

    # -- what remote tensors ask for ------------------------------------------------------------

    async def fetch(self, tensor: AsyncRemoteTensor, deadline: float | None = None) -> Array:
        """The elements."""
        [array] = await self.make(fetch(tensor, deadline))
        return array  # type: ignore[no-any-return]

    async def move(
        self, tensor: AsyncRemoteTensor, device: str, deadline: float | None = None
    ) -> AsyncRemoteTensor:
        """The same on another device."""
        lease, keep = await self._open(device=device, deadline=deadline)
        with _released_on_error(lease, keep):
            make, retry = self._maker(lease), self._endpoint.retry
            call = move(tensor, keep, make, retry=retry, deadline=deadline)
            [moved] = await self.make(call)
            return moved  # type: ignore[no-any-return]


@contextlib.contextmanager
def _in_time(deadline: float | None, endpoint: Endpoint) -> Iterator[float]:
    """A block that may take as many seconds as it is given: a handshake's, or those that are left.

    Raises DeadlineExceededError instead of DaemonUnavailableError when the deadline has passed.
    """
    timeout = endpoint.handshake_timeout
    if deadline is not None:
        timeout = min(timeout, max(deadline - time.monotonic(), 0.0))
    try:
        yield timeout
    except DaemonUnavailableError:
        if deadline is not None and time.monotonic() >= deadline:
            raise late_answer_error(endpoint.address) from None
        raise


@contextlib.contextmanager
def _released_on_error(lease: Lease, keep: remote_pb2.Keep) -> Iterator[None]:
    try:
        yield
    except BaseException:
        lease.release(keep.prefix)  # it may have run, and nobody knows what it has kept
        raise
