"""Single calls, and ``map``, of an asyncio session.

Written by hand, like its counterpart ``blocking.submission``: here calls are made when they are
awaited, and a call with placeholders of a program is recorded at once.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable
from contextvars import Context, copy_context
from typing import Any

from opdispatch.errors import ArgumentError
from opdispatch.local_state.tracing_state import is_traced, record_awaited, traces
from opdispatch.tracing.pytree import leaves
from opdispatch_client.aio.calls import AsyncCalls
from opdispatch_client.aio.remote_calls import AsyncRemoteCalls
from opdispatch_client.aio.remote_tensor import AsyncRemoteTensor
from opdispatch_client.call_options import (
    KEEPING_OPTIONS,
    SESSIONS_OPTIONS,
    CallOptions,
    options_of,
)
from opdispatch_client.endpoint import Endpoint
from opdispatch_client.lanes.call_plan import UNPLANNED, nothing_is_set, planned_arguments
from opdispatch_client.map_arguments import (
    IN_FLIGHT_DEFAULT,
    arguments_of_calls,
    check_in_flight,
)
from opdispatch_client.operator_call import OperatorCall
from opdispatch_client.program_recording import Placeholder, find_recording, one_for_each

AsyncGradients = Any
"""A coroutine that returns a tuple; the tuple itself while a program is recorded."""


class AsyncSubmission:
    """The calls of an asyncio session, which are made when awaited, and ``map``."""

    _calls: AsyncCalls
    _remote: AsyncRemoteCalls
    _endpoint: Endpoint

    def map(
        self,
        operator: str,
        list_of_args: Iterable[Iterable[Any]],
        *,
        in_flight: int = IN_FLIGHT_DEFAULT,
        remote: bool = False,
        timeout: float | None = None,
    ) -> AsyncGenerator[Any, None]:
        """Call an operator once for each item: ``async for result in session.map(...)``.

        See ``Session.map``; calls begin with the first iteration.
        """

        options = options_of(remote, timeout)

        def call(args: Iterable[Any]) -> Coroutine[Any, Any, Any]:
            return self._call_operator(operator, tuple(args), {}, options)

        return self._map(call, list_of_args, in_flight, copy_context())

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
    ) -> Coroutine[Any, Any, Any]:
        """Return one call as a coroutine.

        A call with placeholders is recorded, and returns a placeholder.
        """
        retry = self._endpoint.retry if options.retry is None else options.retry
        deadline = None if options.timeout is None else options.deadline
        if recording := find_recording(args, kwargs):
            return recording.call(operator, *args, **kwargs)  # type: ignore[return-value]

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
            if options is SESSIONS_OPTIONS or options is KEEPING_OPTIONS:
                return self._call_planned(operator, args, kwargs, options)
            return call()
        given = list(leaves((args, kwargs)))
        if any(type(each) is AsyncRemoteTensor for each in given) or (
            options.remote and any(map(is_traced, given))
        ):
            raise ArgumentError(
                f"{operator} takes or returns remote tensors of an asyncio session within a trace: "
                "graphs cannot refer to them",
                hint="trace with a blocking session, or without remote=True",
            )
        return record_awaited(operator, args, kwargs, call)

    async def _call_planned(
        self,
        operator: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        options: CallOptions,
    ) -> Any:
        """Call an operator by its plan, if a plan is valid when the coroutine is awaited."""
        key = None
        if nothing_is_set():
            planned = planned_arguments(operator, args, kwargs)
            if planned is not None:
                key, result = planned.key, UNPLANNED
                try:
                    if options is SESSIONS_OPTIONS or self._remote.keep_planned(planned):
                        result = await self._calls.call_planned(operator, planned)
                except BaseException:
                    planned.abandon()
                    raise
                finally:  # an exception that is kept would keep these alive
                    planned.leaves.clear()
                if result is not UNPLANNED:
                    return result
        retry = self._endpoint.retry
        if options.remote:
            return await self._remote.call(operator, args, kwargs, retry=retry, plan_key=key)
        return await self._remote.make(
            OperatorCall(operator, args, kwargs, retry=retry, plan_key=key)
        )

    async def _call_now(self, call: OperatorCall) -> Any:
        return await self._remote.make(call)


def split_gradients(gradients: Any, inputs: Any) -> AsyncGradients:
    """Return a coroutine of one gradient for each input; for placeholders, the tuple at once."""
    if isinstance(gradients, Placeholder):
        return one_for_each(gradients, inputs)
    return _awaited(gradients)


async def _awaited(call: Coroutine[Any, Any, Any]) -> tuple[Any, ...]:
    return tuple(await call)
