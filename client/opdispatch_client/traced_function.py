"""Python functions that become programs: called once with placeholders, then sent as one message.

@session.as_program
def norm(x, y):
    return session.ops.math.add(session.ops.math.mul(x, x), session.ops.math.mul(y, y))
"""

from __future__ import annotations

import functools
import threading
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from opdispatch.errors import ArgumentError
from opdispatch_client.program import (
    Placeholder,
    Recording,
    RunProgram,
    RunProgramAsync,
    is_remote_or_tensor,
)

# How many programs of one function are kept, for different constants.
_CACHED = 64

Function = Callable[..., Any]


class _Trace(NamedTuple):
    """One program of a function.

    ``captured`` are tensors that it did not get as arguments; they follow those. ``shape`` is what
    the function returned, with the number of an output in the place of each placeholder.
    """

    data: bytes
    captured: Sequence[Any]
    shape: Any
    keeps: bool


class _Output(NamedTuple):
    place: int


class TracedFunction:
    """A function and its programs. Any thread may use it.

    ``_lock`` protects ``_traces``. Arguments that are no tensors are constants of a program:
    for others, the function is traced again.
    """

    def __init__(self, function: Function, *, remote: bool) -> None:
        self._function = function
        self._remote = remote
        self._lock = threading.Lock()
        self._traces: OrderedDict[Any, _Trace] = OrderedDict()

    def prepare(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[_Trace, list[Any]]:
        """The program for these arguments, and its inputs. Raises what the function raises."""
        inputs = [*_tensors_in(args), *_tensors_in(kwargs.values())]
        key = (
            tuple(_key_of(value) for value in args),
            tuple((name, _key_of(value)) for name, value in kwargs.items()),
        )
        with self._lock:
            try:
                trace = self._traces.get(key)
            except TypeError:  # a set, say: nobody knows whether it is still the same
                return self._trace(args, kwargs), inputs
            if trace is not None:
                self._traces.move_to_end(key)
                return trace, inputs
        trace = self._trace(args, kwargs)
        with self._lock:
            self._traces[key] = trace
            while len(self._traces) > _CACHED:
                self._traces.popitem(last=False)
        return trace, inputs

    def _trace(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Trace:
        recording = Recording()

        def stand_in(value: Any) -> Any:
            if isinstance(value, list | tuple):
                return _sequence(value, [stand_in(item) for item in value])
            if isinstance(value, dict):
                return {key: stand_in(item) for key, item in value.items()}
            return recording.new_input(value) if is_remote_or_tensor(value) else value

        placed = [stand_in(value) for value in args]
        named = {name: stand_in(value) for name, value in kwargs.items()}
        count = len(recording.inputs)
        returned = self._function(*placed, **named)
        shape = self._add_outputs(recording, returned)
        recording.is_over = True
        return _Trace(
            recording.message.SerializeToString(deterministic=True),
            recording.inputs[count:],
            shape,
            recording.keeps,
        )

    def _add_outputs(self, recording: Recording, value: Any) -> Any:
        if isinstance(value, list | tuple):
            return _sequence(value, [self._add_outputs(recording, item) for item in value])
        if isinstance(value, dict):
            return {key: self._add_outputs(recording, item) for key, item in value.items()}
        if isinstance(value, Placeholder) or is_remote_or_tensor(value):
            place = len(recording.message.outputs)
            recording.add_output(value, remote=self._remote)
            return _Output(place)
        return value


def _key_of(value: Any) -> Any:
    if isinstance(value, Placeholder):
        raise ArgumentError(
            "a function that is a program was called within another one; call the function that "
            "it was made from",
            hint="it is the attribute __wrapped__",
        )
    if isinstance(value, list | tuple):
        return type(value), tuple(_key_of(item) for item in value)
    if isinstance(value, dict):
        return dict, tuple((type(key), key, _key_of(item)) for key, item in value.items())
    return _TENSOR if is_remote_or_tensor(value) else (type(value), value)


def _tensors_in(values: Iterable[Any]) -> Iterator[Any]:
    """The inputs, in the order in which they are met, also in lists, tuples and dicts."""
    for value in values:
        if isinstance(value, list | tuple):
            yield from _tensors_in(value)
        elif isinstance(value, dict):
            yield from _tensors_in(value.values())
        elif is_remote_or_tensor(value):
            yield value


_TENSOR = "a tensor"


def _sequence(like: list[Any] | tuple[Any, ...], items: list[Any]) -> list[Any] | tuple[Any, ...]:
    return items if isinstance(like, list) else tuple(items)


def _fill(shape: Any, results: Sequence[Any]) -> Any:
    if isinstance(shape, _Output):
        return results[shape.place]
    if isinstance(shape, list | tuple):
        return _sequence(shape, [_fill(item, results) for item in shape])
    if isinstance(shape, dict):
        return {key: _fill(item, results) for key, item in shape.items()}
    return shape


def as_program(function: Function, run: RunProgram, *, remote: bool) -> Function:
    """A function that runs as a program of a blocking session."""
    traced = TracedFunction(function, remote=remote)

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        trace, inputs = traced.prepare(args, kwargs)
        return _fill(trace.shape, run(trace.data, [*inputs, *trace.captured], trace.keeps))

    return call


def as_async_program(
    function: Function, run: RunProgramAsync, *, remote: bool
) -> Callable[..., Awaitable[Any]]:
    """A coroutine function that runs as a program of an asyncio session."""
    traced = TracedFunction(function, remote=remote)

    @functools.wraps(function)
    async def call(*args: Any, **kwargs: Any) -> Any:
        trace, inputs = traced.prepare(args, kwargs)
        results = await run(trace.data, [*inputs, *trace.captured], trace.keeps)
        return _fill(trace.shape, results)

    return call
