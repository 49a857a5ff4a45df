"""What an asyncio session calls: operators, with values here or elsewhere, and programs."""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Sequence
from contextvars import Context, copy_context
from typing import Any

from opdispatch.errors import ArgumentError
from opdispatch.tracing.structure import leaves
from opdispatch.tracing_state import is_traced, record_awaited, traces
from opdispatch_client import traced_function
from opdispatch_client.async_operator_catalog import AsyncOperatorCatalog
from opdispatch_client.call_options import SESSIONS_OPTIONS, CallOptions, deadline_in
from opdispatch_client.calling_session import as_list, one_for_each
from opdispatch_client.endpoint import Endpoint
from opdispatch_client.listings import TraceLine
from opdispatch_client.operator_call import OperatorCall
from opdispatch_client.ordered_results import (
    IN_FLIGHT_DEFAULT,
    arguments_of_calls,
    check_in_flight,
)
from opdispatch_client.program import AsyncProgram, Placeholder, RunProgramAsync, find_recording
from opdispatch_client.remote_calls import AsyncRemoteCalls
from opdispatch_client.remote_ops import Calls, RemoteOps
from opdispatch_client.remote_tensor import AsyncRemoteTensor
from opdispatch_client.request_arguments import check_callable, check_flag
from opdispatch_wire.caller_tensors import OnTransfer


class AsyncCallingSession:
    """The methods of an asyncio session for calls, remote tensors and programs."""

    _remote: AsyncRemoteCalls
    _endpoint: Endpoint
    _catalog: AsyncOperatorCatalog

    def with_options(
        self,
        *,
        retry: bool | None = None,
        remote: bool = False,
        timeout: float | None = None,
        on_progress: OnTransfer | None = None,
    ) -> Calls[Coroutine[Any, Any, Any]]:
        """``call``, ``trace`` and ``ops`` with other choices; see ``Session.with_options``.

        `on_progress` is called in the event loop.
        """
        return self._calls_with(
            CallOptions.checked(
                retry=retry, remote=remote, timeout=timeout, on_progress=on_progress
            )
        )

    @property
    def ops(self) -> RemoteOps[Coroutine[Any, Any, Any]]:
        """The daemon's operators: ``await session.ops.namespace.name(...)``."""
        return self._calls_with(SESSIONS_OPTIONS).ops

    def call(
        self, operator: str, /, *args: Any, remote: bool = False, **kwargs: Any
    ) -> Coroutine[Any, Any, Any]:
        """Calls an operator; see ``Session.call``."""
        options = SESSIONS_OPTIONS if remote is False else CallOptions.checked(remote=remote)
        coroutine: Coroutine[Any, Any, Any] = self._call_operator(operator, args, kwargs, options)
        return coroutine

    def map(
        self,
        operator: str,
        list_of_args: Iterable[Iterable[Any]],
        *,
        in_flight: int = IN_FLIGHT_DEFAULT,
        remote: bool = False,
        timeout: float | None = None,
    ) -> AsyncGenerator[Any, None]:
        """Calls an operator once for each item: ``async for result in session.map(...)``.

        See ``Session.map``; calls begin with the first step of the loop.
        """

        options = CallOptions.checked(remote=remote, timeout=timeout)

        def call(args: Iterable[Any]) -> Coroutine[Any, Any, Any]:
            coroutine: Coroutine[Any, Any, Any] = self._call_operator(
                operator, tuple(args), {}, options
            )
            return coroutine

        return self._map(call, list_of_args, in_flight, copy_context())

    async def trace(
        self, operator: str, /, *args: Any, **kwargs: Any
    ) -> tuple[Any, list[TraceLine]]:
        """Calls an operator; returns the result and the kernels visited, in order of entry."""
        return await self._trace(operator, args, kwargs, SESSIONS_OPTIONS)

    async def _trace(
        self, operator: str, args: tuple[Any, ...], kwargs: dict[str, Any], options: CallOptions
    ) -> tuple[Any, list[TraceLine]]:
        retry = self._endpoint.retry if options.retry is None else options.retry
        call = OperatorCall(
            operator, args, kwargs, retry=retry, trace=True, deadline=options.deadline
        )
        result: tuple[Any, list[TraceLine]] = await self._remote.make(call)
        return result

    async def put(
        self,
        array: Any,
        on: str | None = None,
        *,
        device: str | None = None,
        timeout: float | None = None,
    ) -> AsyncRemoteTensor:
        """Puts a copy of an array into an interpreter; see ``Session.put``."""
        return await self._remote.put(array, on, device, deadline_in(timeout))

    def grad(
        self,
        outputs: Any,
        inputs: Any,
        grad_outputs: Any = None,
        *,
        retain_graph: bool | None = None,
        create_graph: bool = False,
        allow_unused: bool = False,
        timeout: float | None = None,
    ) -> Any:
        """The gradients of remote tensors, to be awaited; see ``Session.grad``.

        Those of placeholders are placeholders, at once.
        """
        gradients = self._call_operator(
            "array::grad",
            (
                as_list(outputs),
                as_list(inputs),
                [] if grad_outputs is None else as_list(grad_outputs),
            ),
            {
                "retain_graph": retain_graph,
                "create_graph": create_graph,
                "allow_unused": allow_unused,
            },
            CallOptions.checked(remote=True, timeout=timeout),
        )
        if isinstance(gradients, Placeholder):
            return one_for_each(gradients, inputs)
        return self._gradients(gradients)

    async def _gradients(self, call: Coroutine[Any, Any, Any]) -> tuple[Any, ...]:
        return tuple(await call)

    def program(self, *, timeout: float | None = None) -> AsyncProgram:
        """Records calls; they run at the end of ``async with session.program() as p``.

        See ``Session.program``.
        """
        return AsyncProgram(self._run_program_within(timeout))

    def as_program(
        self,
        function: Callable[..., Any] | None = None,
        *,
        remote: bool = False,
        timeout: float | None = None,
    ) -> Callable[..., Any]:
        """A decorator: the calls of a function, which does not wait for them, run as one program.

        What it gives is a coroutine function. See ``Session.as_program``.
        """
        remote, run = check_flag(remote, "remote"), self._run_program_within(timeout)
        if function is None:
            return lambda function: self.as_program(function, remote=remote, timeout=timeout)
        check_callable(function, "function")
        return traced_function.as_async_program(function, run, remote=remote)

    def _calls_with(self, options: CallOptions) -> Calls[Coroutine[Any, Any, Any]]:
        def call(operator: str, /, *args: Any, **kwargs: Any) -> Coroutine[Any, Any, Any]:
            coroutine: Coroutine[Any, Any, Any] = self._call_operator(
                operator, args, kwargs, options
            )
            return coroutine

        def with_options(**others: Any) -> Calls[Coroutine[Any, Any, Any]]:
            return self._calls_with(options.changed(**others))

        def trace(
            operator: str, /, *args: Any, **kwargs: Any
        ) -> Coroutine[Any, Any, tuple[Any, list[TraceLine]]]:
            return self._trace(operator, args, kwargs, options)

        return Calls(call, self._catalog, with_options, trace)

    def _run_program_within(self, timeout: float | None) -> RunProgramAsync:
        options = CallOptions.checked(timeout=timeout)

        async def run(data: bytes, inputs: Sequence[Any], keeps: bool) -> list[Any]:
            return await self._remote.run_program(data, inputs, keeps, deadline=options.deadline)

        return run

    async def _map(
        self,
        call: Callable[[Iterable[Any]], Coroutine[Any, Any, Any]],
        list_of_args: Iterable[Iterable[Any]],
        in_flight: int,
        context: Context,
    ) -> AsyncGenerator[Any, None]:
        in_flight = check_in_flight(in_flight)
        items = arguments_of_calls(list_of_args)
        tasks: deque[asyncio.Task[Any]] = deque()
        try:
            while True:
                for args in itertools.islice(items, in_flight - len(tasks)):
                    tasks.append(asyncio.create_task(call(args), context=context.copy()))
                if not tasks:
                    return
                yield await tasks[0]
                tasks.popleft()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _call_operator(
        self,
        operator: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        options: CallOptions,
    ) -> Any:
        """One call, as a coroutine; one with placeholders is recorded, and gives its own."""
        retry = self._endpoint.retry if options.retry is None else options.retry
        deadline = None if options.timeout is None else options.deadline
        if recording := find_recording(args, kwargs):
            return recording.call(operator, *args, **kwargs)

        def call() -> Coroutine[Any, Any, Any]:
            if options.remote:
                return self._remote.call(operator, args, kwargs, retry=retry, deadline=deadline)
            return self._call_now(
                OperatorCall(
                    operator,
                    args,
                    kwargs,
                    retry=retry,
                    on_progress=options.on_progress,
                    deadline=deadline,
                )
            )

        if not traces():
            return call()
        given = list(leaves((args, kwargs)))
        if any(type(each) is AsyncRemoteTensor for each in given) or (
            options.remote and any(map(is_traced, given))
        ):
            raise ArgumentError(
                f"{operator} was called within a trace with remote tensors of an asyncio session, "
                "or to give one: they are no tensors of this process, and no graph has them",
                hint="trace with a blocking session, or with values that come back",
            )
        return record_awaited(operator, args, kwargs, call)

    async def _call_now(self, call: OperatorCall) -> Any:
        return await self._remote.make(call)
