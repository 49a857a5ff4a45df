"""Programs of an asyncio session: recorded in a block, or traced from a function."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Self

from opdispatch_client.program_recording import RecordedProgram
from opdispatch_client.traced_function import Function, TracedFunction, fill

AsyncRunProgram = Callable[[bytes, Sequence[Any], bool], Awaitable[list[Any]]]
"""Sends a program with its inputs, and whether it keeps results; returns the outputs."""


class AsyncProgram(RecordedProgram):
    """A program of an asyncio session: recorded in an ``async with`` block, run at its end.

    If the block raises, nothing is sent. The error of a call has the index of its step as
    ``facts["step"]``.
    """

    def __init__(self, run: AsyncRunProgram) -> None:
        super().__init__()
        self._run = run

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, exc_type: object, exc: object, traceback: object) -> None:
        data = self._end()
        if exc_type is None:
            self._results = await self._run(data, self.inputs, self.keeps)


def as_program(
    function: Function, run: AsyncRunProgram, *, remote: bool
) -> Callable[..., Awaitable[Any]]:
    """Return a coroutine function that runs as a program of an asyncio session."""
    traced = TracedFunction(function, remote=remote)

    @functools.wraps(function)
    async def call(*args: Any, **kwargs: Any) -> Any:
        trace, inputs = traced.prepare(args, kwargs)
        results = await run(trace.data, [*inputs, *trace.captured], trace.keeps)
        return fill(trace.shape, results)

    return call
