"""Python functions as programs: called once with placeholders, then sent as one message.

@session.as_program
def norm(x, y):
    return session.ops.math.add(session.ops.math.mul(x, x), session.ops.math.mul(y, y))

A traced graph can be made a program in the same way.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from opdispatch import Graph
from opdispatch.errors import ArgumentError
from opdispatch.tracing.pytree import constant_key, leaves, map_leaves
from opdispatch_client.program_recording import Placeholder, Recording, is_remote_or_tensor
from opdispatch_wire.nesting_limits import ValueCount, check_nesting

# Most programs kept for one function, each for different constants.
_CACHED = 64

Function = Callable[..., Any]


class _Trace(NamedTuple):
    """One program of a function.

    ``captured`` are tensors that it uses without receiving them as arguments; they follow the
    arguments. ``shape`` is the function's return value, with the index of an output in place of
    each placeholder.
    """

    data: bytes
    captured: Sequence[Any]
    shape: Any
    keeps: bool


@dataclass(frozen=True, slots=True)
class _Output:
    place: int


class TracedFunction:
    """A function and its programs. Thread-safe.

    ``_lock`` protects ``_traces``. Arguments other than tensors are constants of a program; for new
    values, the function is traced again.
    """

    def __init__(self, function: Function, *, remote: bool) -> None:
        self._function = function
        self._remote = remote
        self._lock = threading.Lock()
        self._traces: OrderedDict[Any, _Trace] = OrderedDict()

    def prepare(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[_Trace, list[Any]]:
        """Return the program for these arguments, and its inputs.

        Raises the function's own error.
        """
        count = ValueCount()
        for place, value in (*enumerate(args), *kwargs.items()):
            check_nesting(value, f"$.args[{place}]", count)
        inputs = [*_tensors_in(args), *_tensors_in(kwargs)]
        key = (
            tuple(_key_of(value) for value in args),
            tuple((name, _key_of(value)) for name, value in kwargs.items()),
        )
        with self._lock:
            try:
                trace = self._traces.get(key)
            except TypeError:  # unhashable, such as a set, which may have changed
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
            return recording.new_input(value) if is_remote_or_tensor(value) else value

        placed, named = map_leaves(stand_in, (args, kwargs))
        count = len(recording.inputs)
        if isinstance(self._function, Graph):
            returned = self._function.run(recording.call, placed, named)
        else:
            returned = self._function(*placed, **named)

        def output(value: Any) -> Any:
            if not isinstance(value, Placeholder) and not is_remote_or_tensor(value):
                return value
            place = len(recording.message.outputs)
            recording.add_output(value, remote=self._remote)
            return _Output(place)

        check_nesting(returned, "the result", ValueCount())
        shape = map_leaves(output, returned)
        recording.is_over = True
        return _Trace(
            recording.message.SerializeToString(deterministic=True),
            recording.inputs[count:],
            shape,
            recording.keeps,
        )


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
    return _TENSOR if is_remote_or_tensor(value) else (type(value), constant_key(value))


def _tensors_in(tree: Any) -> Iterator[Any]:
    """Iterate over the inputs, in the order of their occurrence."""
    return filter(is_remote_or_tensor, leaves(tree))


_TENSOR = "a tensor"


def fill(shape: Any, results: Sequence[Any]) -> Any:
    """Return the function's return value, with results in place of their indices."""
    return map_leaves(
        lambda leaf: results[leaf.place] if isinstance(leaf, _Output) else leaf, shape
    )
