"""Programs: recorded calls that are sent as one message and run by one interpreter.

with session.program() as p:
    total = p.ops.math.add(x, y)
    p.output(p.ops.math.mul(total, total))
p.result
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NoReturn

from opdispatch.errors import ArgumentError
from opdispatch.local_state.grad_mode import AUTOGRAD_STATE
from opdispatch.local_state.local_dispatch_key_set import DEFAULT_STATE, LOCAL_STATE
from opdispatch_client.remote_ops import RemoteOps
from opdispatch_client.remote_value import RemoteValue
from opdispatch_client.request_arguments import as_list, check_flag
from opdispatch_wire.modes import modes_of_task
from opdispatch_wire.nesting_limits import MAX_NESTING, ValueCount, check_nesting
from opdispatch_wire.programs import MAX_PROGRAM_BYTES, MAX_STEPS
from opdispatch_wire.tensors import is_tensor
from opdispatch_wire.v1 import remote_pb2, values_pb2
from opdispatch_wire.values import check_text, fill_value


class PlaceholderUsed(TypeError):  # noqa: N818 - to most callers no error, but a recording
    """A placeholder was passed to a call outside of ``Recording.call``."""

    def __init__(self, recording: Recording) -> None:
        super().__init__(
            "a placeholder of a program is an argument of session.call, session.ops and the "
            "program's own call and ops, and of nothing else"
        )
        self.recording = recording


class Placeholder:
    """The placeholder for an input of a program, or for the result of one of its calls.

    It can be an argument of later calls. ``result[1]`` is an item of a list result, or one of
    several results.
    """

    __slots__ = ("_items", "_number", "_source", "recording")

    def __init__(
        self, recording: Recording, source: str, number: int, items: tuple[int, ...] = ()
    ) -> None:
        self.recording = recording
        self._source = source
        self._number = number
        self._items = items

    def write_to(self, message: values_pb2.Reference) -> None:
        """Write its reference to a message."""
        if self._source == "step":
            message.step = self._number
        else:
            message.input = self._number
        if self._items:
            message.items.extend(self._items)

    def __getitem__(self, item: object) -> Placeholder:
        if not isinstance(item, int) or item < 0:
            raise ArgumentError(
                f"{self!r} has no item {item!r}: its value is unknown until the program has run; "
                "expected an index from 0 into a list or the returns of an operator"
            )
        return Placeholder(self.recording, self._source, self._number, (*self._items, item))

    def __iter__(self) -> NoReturn:
        raise ArgumentError(
            f"{self!r} cannot be unpacked: its length is unknown until the program has run",
            hint="take its items by index: result[0], result[1]",
        )

    def __bool__(self) -> NoReturn:
        raise ArgumentError(f"{self!r} is neither true nor false before the program has run")

    def to(self, device: str) -> NoReturn:
        """Raise ArgumentError: the devices where the program will run are unknown yet."""
        raise ArgumentError(
            f"{self!r} cannot be moved to {device!r} within a program",
            hint="move inputs before the program, and outputs after it, with RemoteTensor.to(); or "
            "call array::astype, whose `device` is one of the program's interpreter",
        )

    def to_device(self, device: str, /, *, stream: Any = None) -> NoReturn:
        """Call ``to``, under the array API standard's name."""
        self.to(device)

    def __opdispatch_fill_value__(self, message: values_pb2.Value, at: str) -> None:
        if not self.recording.is_filling:
            raise PlaceholderUsed(self.recording)
        self.write_to(message.reference)

    def __repr__(self) -> str:
        items = "".join(f"[{item}]" for item in self._items)
        return f"<Placeholder {self._source} {self._number}{items}>"


class Recording:
    """The calls of a program while it is recorded. For one thread.

    Tensors become inputs: each is sent once, however many calls use it.
    """

    def __init__(self) -> None:
        self.message = remote_pb2.Program()
        self.inputs: list[Any] = []
        self.is_filling = False
        self.is_over = False
        self._bytes = 0
        self._places: dict[int, Placeholder] = {}
        self._modes = modes_of_task()
        # The task's state at the start; while it is the same object, no fields need comparing.
        local = LOCAL_STATE.get()
        self._local = local if local is DEFAULT_STATE else None
        self._autograd = AUTOGRAD_STATE.get()

    def call(self, operator: str, /, *args: Any, **kwargs: Any) -> Placeholder:
        """Record a call. Raises ArgumentError, and WireError for values that cannot be sent."""
        if self.is_over:
            raise ArgumentError(
                f"{operator} was called with a placeholder of a program that has been sent already"
            )
        is_same = LOCAL_STATE.get() is self._local and AUTOGRAD_STATE.get() is self._autograd
        if not is_same and modes_of_task() != self._modes:
            raise ArgumentError(
                f"{operator} was called in a block, such as no_grad or autocast, within a program, "
                "which cannot record blocks",
                hint="put the block around the whole program",
            )
        number = len(self.message.steps)
        if number >= MAX_STEPS:
            raise ArgumentError(
                f"the program has {number} calls; the limit is {MAX_STEPS}",
                hint="split the program, and pass results between the parts as remote tensors",
            )
        operator = check_text(operator, "$.operator")
        self.is_filling = True
        count = ValueCount()
        step = self.message.steps.add(operator=operator)
        try:
            for i, value in enumerate(args):
                # Most arguments are results of this program, or inputs that it already has.
                if type(value) is Placeholder and value.recording is self:
                    value.write_to(step.args.add().reference)
                    continue
                if (known := self._places.get(id(value))) is not None:
                    known.write_to(step.args.add().reference)
                    continue
                self._fill(step.args.add(), value, f"$.program.steps[{number}].args[{i}]", count)
            for name, value in kwargs.items():
                at = f"$.program.steps[{number}].kwargs[{name!r}]"
                self._fill(step.kwargs[check_text(name, at)], value, at, count)
            size = self._bytes + step.ByteSize()
            if size > MAX_PROGRAM_BYTES:
                raise ArgumentError(
                    f"the program has {size} bytes; the limit is {MAX_PROGRAM_BYTES}",
                    hint="arrays are inputs of a program, and not parts of it",
                )
            self._bytes = size
        except BaseException:
            del self.message.steps[number]
            raise
        finally:
            self.is_filling = False
        return Placeholder(self, "step", number)

    @property
    def ops(self) -> RemoteOps[Placeholder]:
        """``call`` with the syntax of operators: ``p.ops.math.add(x, y)``."""
        return RemoteOps(self.call)

    def new_input(self, value: Any) -> Placeholder:
        """Return a placeholder for a value that is passed to the program when it is sent."""
        self.inputs.append(value)
        return Placeholder(self, "input", len(self.inputs) - 1)

    def add_output(self, value: Any, *, remote: bool) -> None:
        """Request a value as an output. Raises ArgumentError unless it belongs to this program."""
        if is_remote_or_tensor(value):
            value = self._argument(value)
        if not isinstance(value, Placeholder) or value.recording is not self:
            raise ArgumentError(f"{value!r} is not a value of this program; expected a placeholder")
        if self.is_over:
            raise ArgumentError("the program has been sent already")
        if len(self.message.outputs) >= MAX_STEPS:
            raise ArgumentError(f"the program has {MAX_STEPS} outputs, which is the limit")
        remote = check_flag(remote, "remote")
        value.write_to(self.message.outputs.add(keep=remote).what)

    @property
    def keeps(self) -> bool:
        """Whether any output stays in the interpreter."""
        return any(output.keep for output in self.message.outputs)

    def _fill(self, message: values_pb2.Value, value: Any, at: str, count: ValueCount) -> None:
        check_nesting(value, at, count)
        value = self._argument(value)
        if type(value) is Placeholder:
            value.write_to(message.reference)
        else:
            fill_value(message, value, at=at)

    def _argument(self, value: Any) -> Any:
        """Return the value, with placeholders of this program in place of tensors."""
        if isinstance(value, Placeholder):
            if value.recording is not self:
                raise ArgumentError(f"{value!r} is of another program")
            return value
        if is_remote_or_tensor(value):
            known = self._places.get(id(value))
            if known is None:
                # the placeholder keeps the value alive, and so its id in use
                known = self._places[id(value)] = self.new_input(value)
            return known
        if isinstance(value, list | tuple):
            return [self._argument(item) for item in value]
        if isinstance(value, dict):
            return {key: self._argument(item) for key, item in value.items()}
        return value


def is_remote_or_tensor(value: Any) -> bool:
    """Return whether a value becomes an input of a program, not a constant in it."""
    return isinstance(value, RemoteValue) or is_tensor(value)


def find_recording(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Recording | None:
    """Return the recording of the first placeholder among a call's arguments, also in lists.

    None if there is none, or it is nested too deeply to be sent.
    """
    return _find_recording((*args, *kwargs.values()), 0, set())


def _find_recording(values: Iterable[Any], depth: int, seen: set[int]) -> Recording | None:
    for value in values:
        if isinstance(value, Placeholder):
            return value.recording
        # Each list once, even if it occurs in others many times.
        if isinstance(value, list | tuple) and depth < MAX_NESTING and id(value) not in seen:
            seen.add(id(value))
            if found := _find_recording(value, depth + 1, seen):
                return found
    return None


class RecordedProgram(Recording):
    """The base of both kinds of sessions' programs."""

    def __init__(self) -> None:
        super().__init__()
        self._results: list[Any] | None = None

    def output(self, *values: Any, remote: bool = False) -> None:
        """Request values as outputs: as arrays or, with `remote`, as remote tensors.

        They are in ``result``, in the order in which they were requested.
        """
        for value in values:
            self.add_output(value, remote=remote)

    @property
    def results(self) -> list[Any]:
        """The requested values, in order. Raises ArgumentError before the program has run."""
        if self._results is None:
            raise ArgumentError("the program has not run; its results are there after the block")
        return self._results

    @property
    def result(self) -> Any:
        """The requested values: None, one value, or a tuple."""
        results = self.results
        if len(results) == 1:
            return results[0]
        return tuple(results) if results else None

    def _end(self) -> bytes:
        self.is_over = True
        return self.message.SerializeToString(deterministic=True)

    def __repr__(self) -> str:
        state = "done" if self._results is not None else "sent" if self.is_over else "recording"
        count = len(self.message.steps)
        return f"<{type(self).__name__} of {count} call{'s' * (count != 1)} [{state}]>"


def one_for_each(values: Any, inputs: Any) -> tuple[Any, ...]:
    """Return one of ``values`` for each input, also if ``values`` is a placeholder for a list."""
    return tuple(values[place] for place in range(len(as_list(inputs))))
